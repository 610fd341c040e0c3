"""Users, ACLs and quotas of a cluster.

- `scram_users`: SCRAM users
- `acls`: ACLs
- `quotas`: quotas of clients
"""
