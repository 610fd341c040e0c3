"""Metrics of a broker, for Prometheus.

Each module of metrics declares them and reads their values from the parts of the broker at the time of a scrape; the
hot paths only count. What a request costs is measured by `server.measurements`.

- `declaration`: how a metric is declared, with Kafka's MBean
- `requests`: numbers, errors and times of requests
- `traffic`: records and bytes, by topic
- `partitions`: logs and replicas, by partition
- `followers`: partitions that are fetched from their leaders
- `controller`: the state of the cluster
- `zookeeper`: the session with ZooKeeper
- `logs`: log directories
- `coordinators`: groups and transactions
- `clients`: metrics that clients have pushed
- `readers`: positions of clients that fetch
- `network`: connections, delayed requests, the reactor thread
- `sockets`: connections and bytes, requests, responses and authentications of a listener
- `security`: sessions that have ended, and quotas of clients
- `process`: CPU, memory, version
- `exposition`: the text format
- `readiness`: the answer of /readyz
- `view`: the state of the broker, and all collectors
- `endpoint`: the HTTP server
- `catalog`: all metrics, and their documentation
- `broker_metrics`: all of it, for a broker
"""
