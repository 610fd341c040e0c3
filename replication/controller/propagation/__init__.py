"""Propagation of the controller's decisions to the live brokers of a cluster (ZooKeeper mode; no I/O).

- `requests`: LeaderAndIsr, UpdateMetadata and StopReplica, built from metadata
- `broker_queue`: the queue of requests to one broker
- `epoch_propagation`: the queues of one controller epoch, and the differences between publications
- `propagation`: the publisher of the controller in a cluster
"""
