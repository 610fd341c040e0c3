"""Functions on Produce requests for the handler, the fast path and transaction verification."""

from typing import TYPE_CHECKING, Final

from odradek.protocol.messages.produce import ProduceRequestTopicProduceData

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager

TOPIC_IDS_SINCE: Final = 13

_ATTRIBUTES_AT: Final = 22
_MAGIC_AT: Final = 16
_TRANSACTIONAL: Final = 0x10
"""Bit in the lower byte of a batch's attributes."""


def is_transactional_batch(records: bytes | memoryview | None) -> bool:
    """Return whether a produced batch is part of a transaction."""
    return bool(
        records
        and len(records) > _ATTRIBUTES_AT
        and records[_MAGIC_AT] == 2
        and records[_ATTRIBUTES_AT] & _TRANSACTIONAL
    )


def find_partition(
    replicas: "ReplicaManager", topic: ProduceRequestTopicProduceData, index: int, version: int
) -> "Partition":
    """Return the partition of a request. Raises KafkaError like `ReplicaManager.get` and `get_by_id`."""
    if version >= TOPIC_IDS_SINCE:
        return replicas.get_by_id(topic.topic_id, index)
    return replicas.get(topic.name, index)
