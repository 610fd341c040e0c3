"""Access control lists in the metadata store, as in Kafka 3.9's ZooKeeper mode.

- `bindings`: resource patterns, entries and filters
- `nodes`: paths and contents of nodes
- `acl_cache`: the ACLs of the cluster, loaded at start and followed by notices
"""
