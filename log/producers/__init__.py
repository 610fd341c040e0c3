"""Idempotent and transactional producers of a partition (KIP-98).

- `entry`: one producer
- `table`: all producers, the recent ones as objects and the others packed
- `state`: producers and snapshots of a partition
- `snapshots`: the format of .snapshot files
- `replay`: from batches to the state of their producers
- `in_flight_batches`: the last batches of producers, read again after a start
"""
