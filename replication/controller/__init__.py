"""The controller, and the admin requests that it executes.

- `controller`: registration, election, and changes of the store and the image
- `topic_admin`: validation of CreateTopics, CreatePartitions and DeleteTopics
- `topic_deletion`: deletion in two steps
- `topic_ids`: random ids
- `assignment`: replicas of new partitions
- `log_capacity`: file descriptors for new logs
- `config_admin`: changes of configurations
- `config_description`: DescribeConfigs
- `config_sources`: sources of configuration values
- `features`: finalized features
"""
