"""Safeguards of the broker that can be disabled, to show that the checker detects their absence.

- `definition`: a safeguard, and the way it is disabled
- `single_broker`: safeguards that runs with a single broker show
- `cluster`: safeguards that runs with several brokers show
- `catalogue`: all of them, and runs without one
"""
