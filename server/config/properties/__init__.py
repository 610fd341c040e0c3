"""Properties of the broker, by subject.

- `network`: listeners, connections and requests
- `storage`: data directories, segments, retention and compaction
- `cluster`: identity, topic creation and replication
- `zookeeper`: the connection to ZooKeeper
- `groups`: consumer groups and committed offsets
- `transactions`: transactions
- `security`: TLS
- `authorization`: authorization
- `sasl`: SASL
- `oauth_tokens`: tokens of brokers (OAUTHBEARER)
- `passwords`: encryption of passwords in the metadata store
- `delegation_tokens`: delegation tokens
- `event_log`: the log of events
- `telemetry`: metrics that clients push
- `accepted`: properties that are accepted without effect
- `reasons`: reasons why properties have no effect
"""
