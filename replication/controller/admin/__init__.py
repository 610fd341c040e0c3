"""Admin requests: their validation, and their execution by the controller.

- `topics`: CreateTopics, CreatePartitions and DeleteTopics
- `configs`: AlterConfigs and IncrementalAlterConfigs
- `config_description`: DescribeConfigs
- `broker_loggers`: levels of loggers, which both of them treat as configurations
- `elections`: ElectLeaders
- `reassignments`: AlterPartitionReassignments and ListPartitionReassignments
- `features`: finalized features
- `automatic_topics`: topics that are created automatically
- `auto_creation`: their creation by any broker of a cluster
- `metadata_wait`: waiting for the metadata cache of a member of a cluster
- `log_capacity`: file descriptors for new logs
"""
