"""Commands about security.

- `users`: `odradek user`
- `acls`: `odradek acl`
- `store_options`: options of both, for the store of a broker that is stopped
- `tokens`: `odradek token`
- `certificates`: `odradek tls`
"""
