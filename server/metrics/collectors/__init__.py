"""Metrics and their values, by subject. Each module declares metrics and reads them from the parts of the broker.

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
"""
