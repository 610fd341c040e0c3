"""Creation, change and deletion of topics in the store.

- `ids`: random ids
- `changes`: changes of topics and of the states of their partitions
- `deletion`: deletion in two steps
- `replica_deletion`: deletion of the replicas of deleted topics in a cluster
"""
