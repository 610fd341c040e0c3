"""Delays of other clients while one client sends a heavy or unusual load to the broker, beside Apache Kafka.

    python -m benchmarks.fairness [--only NAME] [--rounds N] [--broker odradek|kafka|both] [--baseline DIRECTORY]

- `loads`: the loads, each with a preparation and an action
- `frames`: their requests
- `ping`: the other client, in a separate process
"""
