"""Metrics of a broker, for Prometheus.

The hot paths only count. Collectors read values from the parts of the broker at the time of a scrape. What a request
costs is measured by `server.measurements`.

- `declaration`: how a metric is declared, with Kafka's MBean
- `collectors`: metrics and their values, by subject
- `catalog`: all metrics, and their documentation
- `exposition`: the text format
- `readiness`: the answer of /readyz
- `view`: the state of the broker, and all collectors
- `endpoint`: the HTTP server
- `broker_metrics`: all of it, for a broker
"""
