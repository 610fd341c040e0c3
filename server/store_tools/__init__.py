"""Metadata stores without their broker: users and ACLs before the first start, or while the broker is stopped.

- `errors`: errors of the commands
- `store`: the store of a stopped broker, or that of a cluster
- `users`: SCRAM users
- `acl_rules`: the ACLs that the options of `odradek acl` stand for
- `acls`: ACLs
"""
