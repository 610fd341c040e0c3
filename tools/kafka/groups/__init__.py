"""Groups of consumers, and readers without a group.

- `group_types`: groups, their members and their lag, as values
- `consumer_protocol`: subscriptions and assignments of consumers
- `description`: groups with members, committed offsets and lag
- `share_groups`: share groups
- `streams_groups`: streams groups
- `readers`: clients that fetch, from the metrics of brokers
"""
