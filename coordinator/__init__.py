"""Coordinators of groups and transactions: state machines that return the records to write.

- `result`: results of a request (records, responses), and what happens to them once the records are replicated
- `request_context`: properties of a request that are not in its message
- `coordinator_state`: the states of a coordinator's shard
- `timers`: deadlines by key, on a monotonic clock
- `steps`: decisions about many groups or transactions, made in steps
- `partitioning`: the partition of an internal topic that a key belongs to
- `linear_pattern`: regular expressions from clients, matched in linear time
- `groups`: the group coordinator
- `transactions`: the transaction coordinator
"""
