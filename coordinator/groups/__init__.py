"""The group coordinator: one shard for each partition of `__consumer_offsets`.

- `shard`: the public class, which dispatches requests, replays records and runs timers
- `shard_state`: state that the modules of a shard share
- `settings`: the coordinator's numeric settings
- `prechecks`: validation before the lookup of a group
- `records`: keys and values of `__consumer_offsets`
- `responses`: responses, and error responses to whole requests
- `classic`: groups, members and rebalances of the classic protocol
- `admin`: DescribeGroups, ListGroups, DeleteGroups
- `offsets`: the table of committed offsets
- `offset_commands`: OffsetCommit, OffsetFetch, OffsetDelete
- `offset_wire`: conversion of these requests and responses between their API versions and a shard
- `transactional_offsets`: TxnOffsetCommit
- `offset_expiry`: expiry of offsets and empty groups
- `topic_deletion`: deletion of the offsets of deleted topics
"""
