"""Configurations of topics, brokers and groups.

- `resources`: types of resources, and operations on their values
- `nodes`: operations on the nodes of configurations, and notices of changes
- `changes`: changes of configurations by the controller
- `member_changes`: changes of configurations by any broker of a cluster
- `entity_changes`: changes of configurations of users, client ids and IP addresses
- `limits`: size limits of configurations
- `sources`: sources of configuration values
"""
