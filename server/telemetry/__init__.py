"""Metrics that clients push to the broker (KIP-714).

- `properties`: the properties of a subscription, and their checks
- `subscriptions`: the subscriptions, which are configurations of resources of the type CLIENT_METRICS
- `deadlines`: times at which keys expire
- `instances`: the client instances with their subscription ids and push times
- `otlp`: decoder of OpenTelemetry's MetricsData
- `names`: names of metrics and labels in Prometheus
- `series`: the latest values of each client instance
- `client_telemetry`: the requests GetTelemetrySubscriptions and PushTelemetry
"""
