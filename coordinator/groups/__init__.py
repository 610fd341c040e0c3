"""The group coordinator: one shard for each partition of `__consumer_offsets`.

- `shard`: the public class, which dispatches requests, replays records and runs timers
- `shard_state`: state that the modules of a shard share
- `settings`: the coordinator's numeric settings
- `prechecks`: validation that precedes the lookup of a group
- `records`: keys and values of `__consumer_offsets`
- `responses`: responses, and their form for a request that failed as a whole
- `classic`: groups, members and rebalances of the classic protocol
- `admin`: DescribeGroups, ListGroups, DeleteGroups
- `offsets`: the table of committed offsets
- `offset_commands`: OffsetCommit, OffsetFetch, OffsetDelete
- `offset_wire`: the same requests between the wire and a shard
- `transactional_offsets`: TxnOffsetCommit
- `offset_expiry`: expiry of offsets and empty groups
- `topic_deletion`: deletion of the offsets of deleted topics
"""
