"""Configurations of topics, brokers and groups, and their admin requests.

- `nodes`: operations on the nodes of configurations, and notices of changes
- `changes`: changes of configurations by the controller
- `member_changes`: changes of configurations by any broker of a cluster
- `admin`: validation of AlterConfigs and IncrementalAlterConfigs
- `limits`: size limits of configurations
- `description`: DescribeConfigs
- `sources`: sources of configuration values
"""
