"""Coordinators of groups and transactions: state machines that return the records to write.

- `result`: result of a request: records to write, and responses to send after their replication
- `request_context`: properties of a request that are not in its message
- `coordinator_state`: the states of a coordinator's shard
- `shard_interface`: the interface of group and transaction shards for the runtime of the server
- `timers`: deadlines by key, on the monotonic clock
- `steps`: work on many groups or transactions, divided into steps
- `partitioning`: the partition of an internal topic for a key
- `linear_pattern`: regular expressions of clients, matched in linear time
- `groups`: the group coordinator
- `transactions`: the transaction coordinator
"""
