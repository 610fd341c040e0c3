"""Clusters of broker processes, with ZooKeeper: load, faults, and the comparison of replicas.

- `load`: numbered records of an idempotent producer, and the check that each acknowledged one is read once
- `transactions`: numbered transactions, and the check that each is read completely or not at all
- `groups`: a member of a consumer group that runs during faults
- `mixed`: a cluster of Odradek's and Apache Kafka's brokers
- `replicas`: state of partitions, and comparison of the logs of all replicas
"""
