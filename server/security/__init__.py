"""Security of listeners and of connections between brokers.

- `tls`: encryption, keys and certificates
- `principal`: the identity of a client
- `sasl`: proofs of this identity
- `authorization`: what a principal may do
"""
