"""Requests about the cluster.

- `controller_requests`: requests of brokers to the controller
- `broker_control`: requests of the controller to the brokers of a cluster
- `elections`: ElectLeaders
- `reassignments`: AlterPartitionReassignments, ListPartitionReassignments
- `quorum`: DescribeQuorum
- `features`: UpdateFeatures
"""
