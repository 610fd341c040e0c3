"""Checks of running brokers.

- `invariants`: invariants of a broker
- `log_audit`: comparison of a log's files and memory with its records
"""
