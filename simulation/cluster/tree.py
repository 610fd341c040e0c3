"""The state of partitions in the simulated ZooKeeper, read without a session."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.znode_store import Znode
from odradek.simulation.history import Partition
from odradek.simulation.machine.zookeeper import ZooKeeper


class StoredPartition(NamedTuple):
    """A partition's topic id, and its state.

    written, topic_written: the last transactions that wrote the state and the topic's node
    topic_created: the transaction that created the topic's node
    """

    topic_id: bytes
    state: PartitionMetadata
    written: int = 0
    topic_written: int = 0
    topic_created: int = 0


class StoredTopic(NamedTuple):
    """A topic's node: its topic id, and the transactions that created it and wrote it last."""

    topic_id: bytes
    created: int
    written: int


class StoredPartitions:
    """The partitions in ZooKeeper, read again after changes only."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._transaction = -1
        self._found: dict[Partition, StoredPartition] = {}

    def read(self) -> dict[Partition, StoredPartition]:
        """Return all partitions that have a state. The result is never changed."""
        if self._transaction != self._zookeeper.last_transaction:
            self._transaction = self._zookeeper.last_transaction
            self._found = read_partitions(self._zookeeper, self._found)
        return self._found


def read_partitions(
    zookeeper: ZooKeeper, known: Mapping[Partition, StoredPartition] = MappingProxyType({})
) -> dict[Partition, StoredPartition]:
    """Return all partitions that have a state. Those that are as in `known` are taken from there."""
    table = zookeeper.tree.parts[0]
    found = {}
    for topic, node in _list_topic_nodes(zookeeper):
        assignment: znodes.TopicAssignment | None = None
        for index in map(int, table.children(znodes.partitions_path(topic))):
            written = table.load(znodes.state_path(topic, index))
            if written is None:
                continue
            stored = known.get((topic, index))
            if stored is None or (written.modified_id, node.modified_id) != (stored.written, stored.topic_written):
                assignment = assignment or znodes.decode_topic(node.data)
                if index not in assignment.replicas:
                    continue
                state = znodes.decode_state(written.data, written.version, assignment, index)
                topic_id = assignment.topic_id or b""
                stored = StoredPartition(topic_id, state, written.modified_id, node.modified_id, node.created_id)
            found[topic, index] = stored
    return found


def read_topics(
    zookeeper: ZooKeeper, known: Mapping[str, StoredTopic] = MappingProxyType({})
) -> dict[str, StoredTopic]:
    """Return the nodes of all topics. Those that are as in `known` are taken from there."""
    found = {}
    for name, node in _list_topic_nodes(zookeeper):
        topic = known.get(name)
        if topic is None or topic.written != node.modified_id:
            topic = StoredTopic(znodes.decode_topic(node.data).topic_id or b"", node.created_id, node.modified_id)
        found[name] = topic
    return found


def _list_topic_nodes(zookeeper: ZooKeeper) -> Iterator[tuple[str, Znode]]:
    table = zookeeper.tree.parts[0]
    for name in table.children(znodes.TOPICS):
        node = table.load(znodes.topic_path(name))
        if node is not None:
            yield name, node


def read_children(zookeeper: ZooKeeper, path: str) -> frozenset[str]:
    """Return the names of a node's children."""
    return frozenset(zookeeper.tree.parts[0].children(path))


def read_number(zookeeper: ZooKeeper, path: str) -> int:
    """Return the number in a node, -1 if there is none."""
    node = zookeeper.tree.parts[0].load(path)
    return -1 if node is None or not node.data else int(node.data)


def read_written(zookeeper: ZooKeeper, path: str) -> int:
    """Return the last transaction that wrote a node, -1 if there is none."""
    node = zookeeper.tree.parts[0].load(path)
    return -1 if node is None else node.modified_id


def read_data(zookeeper: ZooKeeper, path: str) -> bytes | None:
    """Return the data of a node, None if it does not exist or has none."""
    node = zookeeper.tree.parts[0].load(path)
    return None if node is None else node.data


def read_registrations(zookeeper: ZooKeeper) -> dict[int, int]:
    """Return the epochs of the registered brokers by their ids."""
    table = zookeeper.tree.parts[0]
    found = {}
    for name in table.children(znodes.BROKER_IDS):
        node = table.load(znodes.broker_path(int(name)))
        if node is not None:
            found[int(name)] = node.created_id
    return found
