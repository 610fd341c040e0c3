"""Runs with several brokers, which share a simulated ZooKeeper.

- `tree`: the state of partitions in ZooKeeper
- `scenario`: the scenario of a seed: properties, topics and faults
- `power`: the rule by which faults do not exceed what replication protects from
- `directories`: log directories that are offline, and moves of replicas between them
- `faults`: the faults of a run, and the operator
- `invariants`: conditions that hold after each step, in brokers and in ZooKeeper
- `branches`: branches of a partition's history, which unclean elections begin
- `committed`: records below a high watermark are the same in all replicas and remain
- `logs`: comparison of the replicas' logs
- `run`: the phases of a run
"""
