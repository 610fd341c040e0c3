"""Security of listeners and of connections between brokers.

- `tls`: encryption, keys and certificates
- `principal`: the identity of a client
- `java_patterns`: regular expressions of Java in rules that map names
- `password_encoder`: encryption of dynamically configured passwords
- `sasl`: proofs of this identity
- `authorization`: what a principal may do
"""
