"""Moves of replicas between log directories of a broker (KIP-113).

- `steps`: steps of a move, some of which run in a thread
- `future_log`: comparison of a future log with the current log, and copy of its state
- `move`: one move
- `replica_moves`: all moves of a broker
- `found_logs`: future logs that a start finds
"""
