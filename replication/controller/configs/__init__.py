"""Configurations of topics, brokers and groups, and their admin requests.

- `changes`: changes of configurations
- `admin`: validation of AlterConfigs and IncrementalAlterConfigs
- `limits`: size limits of configurations
- `description`: DescribeConfigs
- `sources`: sources of configuration values
"""
