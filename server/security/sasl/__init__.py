"""SASL: proofs of a client's identity.

- `mechanism`: the interface of a mechanism
"""
