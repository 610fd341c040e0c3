"""Clusters of broker processes, with ZooKeeper: load, faults, and the comparison of replicas.

- `load`: numbered records of an idempotent producer, and the check that each acknowledged one is read once
- `transactions`: numbered transactions, and the check that each is read completely or not at all
- `groups`: a member of a consumer group that runs during faults
- `strict_readers`: members of consumer groups of three libraries, to which no error may be reported
- `mixed`: a cluster of Odradek's and Apache Kafka's brokers
- `links`, `proxies`: links between two processes that can be cut, and the process of their TCP proxies
- `faults`: random faults of brokers, ZooKeeper and links
- `copying`: Kafka's TransactionalMessageCopier during faults
- `chaos`: all of these with clients in Python and Java, for any time: python -m compat_tests.cluster.chaos
- `replicas`: state of partitions, and comparison of the logs of all replicas
- `status`: `odradek cluster status`, run with the properties of a client
- `failover`, `mixed_brokers`, `administration`: tests
"""
