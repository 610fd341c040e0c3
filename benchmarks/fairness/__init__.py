"""Delays of other clients while one client puts a heavy or odd load on the broker, beside Apache Kafka.

    python -m benchmarks.fairness [--only NAME] [--rounds N] [--broker odradek|kafka|both] [--baseline DIRECTORY]

- `loads`: the loads, each as preparation and act
- `frames`: their requests
- `ping`: the other client, a process of its own
"""
