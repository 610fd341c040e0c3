"""The replicas on this broker.

- `partition`: role, in-sync replicas and high watermark of a partition
- `replica_manager`: the partitions on this broker
- `offset_lookup`: ListOffsets for one partition
- `adoption`: a new metadata store for existing log directories
"""
