"""States of partitions and replicas, computed without I/O.

- `assignment`: replicas of new partitions
- `partition_states`: states of partitions, and the election of leaders
- `replica_states`: removal of replicas from the ISR
- `epoch_floor`: least leader epochs, from what the log directories contain
"""
