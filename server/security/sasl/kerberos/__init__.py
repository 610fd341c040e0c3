"""GSSAPI: Kerberos tickets.

- `names`: principals and the rules for their short names
- `acceptor`: authentication of a client that presents a ticket
"""
