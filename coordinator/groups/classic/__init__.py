"""The classic group protocol.

- `group`: a group's state and members
- `member`: a member
- `generation_records`: a group's records
- `consumer_protocol`: the subscription in a member's metadata
- `joining`: JoinGroup
- `rebalance`: start and end of a rebalance, and session deadlines
- `membership`: SyncGroup, Heartbeat, LeaveGroup
"""
