"""The replicas on this broker.

- `topic_traffic`: counters of records, for metrics
- `partition`: role and high watermark of a partition
- `leader_state`: a leader's followers and their progress
- `isr`: the in-sync replicas of a leader's partition, and a pending change of them
- `isr_changes`: AlterPartition requests to the controller
- `follower_replica`: appends and truncation by the follower of a partition
- `replica_manager`: the partitions on this broker
- `broker_control`: requests of the controller in a cluster
- `offset_lookup`: ListOffsets for one partition
- `throttle`: rate limits of replication
- `adoption`: a new metadata store for existing log directories
"""
