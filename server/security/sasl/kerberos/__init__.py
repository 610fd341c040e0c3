"""GSSAPI: Kerberos tickets.

- `library`: python-gssapi, an optional dependency
- `keytab`: files with the keys of principals
- `names`: principals and the rules for their short names
- `acceptor`: authentication of a client that presents a ticket
- `initiator`: authentication of this broker at others
"""
