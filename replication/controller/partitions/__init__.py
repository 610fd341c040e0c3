"""Changes of leaders, ISRs and replicas of existing partitions.

- `alter_partition`: changes of ISRs by leaders
- `elections`: elections that the controller starts itself
- `controlled_shutdown`: leaderships of a broker that is about to stop, or whose process has ended
- `reassignment`: reassignment of partitions to other replicas
- `operator_requests`: reassignments and elections that operators write into the store
"""
