"""Commands that use a metadata store without a broker.

- `store`: the store of a stopped broker, or that of a cluster
- `users`: `odradek user`
- `acls`: `odradek acl`
"""
