"""The membership of a broker in its cluster.

- `interface`: the steps of a start and a stop that depend on the kind of membership
- `clients`: metadata about clients: users, quotas, ACLs, delegation tokens
- `security_adoption`: adoption of ACLs, users, quotas and tokens of Apache Kafka
- `embedded`: a broker alone in its cluster, with an embedded metadata store
- `controlled_shutdown`: the move of leaderships before a stop
- `live_brokers`: a log line for each change of the live brokers
- `cluster`: a broker of a cluster that ZooKeeper coordinates
"""
