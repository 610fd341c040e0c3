"""Topics of a cluster, and configurations.

- `topic_changes`: creation and deletion of a topic
- `configs`: configurations of resources, read from a cluster
- `config_changes`: changes of configurations
- `broker_loggers`: loggers of a broker that have a level of their own
- `offsets`: offsets of partitions
- `log_dirs`: log directories of brokers
- `eligible_leaders`: eligible leader replicas of partitions
- `record_production`: production of one record
"""
