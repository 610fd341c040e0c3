"""Clusters as the user tools see them.

- `connection`: connections to brokers
- `cluster`: requests to a broker, the controller, leaders and coordinators
- `problems`: why a part of a result is missing
- `status`: the state of a cluster as its clients see it
- `topics`: topics, their configurations, offsets and log directories
- `groups`: groups of consumers, and readers without a group
- `transactions`: transactions of coordinators, and in partitions
- `transaction_changes`: termination of a transaction
- `security`: SCRAM users, ACLs and quotas
- `similar_names`: the nearest names of a misspelt one
- `api_names`: names of APIs
- `times`: times and durations in command lines
"""
