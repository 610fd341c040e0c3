"""Cluster metadata, the controller, and replicas.

- `metadata`: the metadata image, and the store that it is loaded from
- `controller`: changes of topics, configurations and features
- `replicas`: the partitions on this broker
- `following`: replication from the leaders of partitions
- `remote`: interfaces to other brokers
- `pauses`: pauses of long work
"""
