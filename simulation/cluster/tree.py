"""The state of partitions in the simulated ZooKeeper, read without a session."""

from typing import NamedTuple

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata
from odradek.simulation.history import Partition
from odradek.simulation.machine.zookeeper import ZooKeeper


class StoredPartition(NamedTuple):
    """A partition's topic id, and its state."""

    topic_id: bytes
    state: PartitionMetadata


def read_partitions(zookeeper: ZooKeeper) -> dict[Partition, StoredPartition]:
    """Return all partitions that have a state."""
    table = zookeeper.tree.parts[0]
    found = {}
    for topic in table.children(znodes.TOPICS):
        node = table.load(znodes.topic_path(topic))
        if node is None:
            continue
        assignment = znodes.decode_topic(node.data)
        for index in assignment.replicas:
            state = table.load(znodes.state_path(topic, index))
            if state is not None:
                stored = znodes.decode_state(state.data, state.version, assignment, index)
                found[topic, index] = StoredPartition(assignment.topic_id or b"", stored)
    return found


def read_number(zookeeper: ZooKeeper, path: str) -> int:
    """Return the number in a node, -1 if there is none."""
    node = zookeeper.tree.parts[0].load(path)
    return -1 if node is None or not node.data else int(node.data)


def read_data(zookeeper: ZooKeeper, path: str) -> bytes | None:
    """Return the data of a node, None if it does not exist or has none."""
    node = zookeeper.tree.parts[0].load(path)
    return None if node is None else node.data


def registered_brokers(zookeeper: ZooKeeper) -> list[int]:
    """Return the ids of the registered brokers."""
    return [int(name) for name in zookeeper.tree.parts[0].children(znodes.BROKER_IDS)]
