"""Metrics of brokers and clients: names, values, dashboards and alerts.

- `prometheus_server`: a Prometheus server for tests, which scrapes brokers
- `telemetry_requests`: requests about client metrics, valid and invalid
"""
