"""Security of listeners and of connections between brokers.

- `tls`: encryption, keys and certificates
- `principal`: the identity of a client
- `authorization`: what a principal may do
"""
