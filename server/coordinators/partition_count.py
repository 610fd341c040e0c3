"""The number of partitions of an internal topic whose metadata is lost.

A group or transactional id belongs to the partition that its hash has modulo this number. With a wrong number its
offsets or its transaction are not found. Partitions without a directory are not counted, and the configured number may
be another than that of the topic: the number has to fit the ids in the partitions found.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Final

from odradek.coordinator.groups.records import read_key
from odradek.coordinator.partitioning import partition_for
from odradek.coordinator.transactions.records import read_transaction_key
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.found_directories import MAX_FOUND_PARTITIONS
from odradek.protocol.batches.record_batch import BatchHeader
from odradek.protocol.records import iter_records
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC

logger = logging.getLogger(__name__)

_SAMPLED_BATCHES: Final = 200
"""Batches read of each partition: a few ids exclude every wrong number."""

PlacedId = tuple[str, int]
"""A group or transactional id and the partition that has it."""


def count_partitions(topic: str, found: int, configured: int, logs: Iterable[PartitionLog]) -> int:
    """Return the number of partitions of an internal topic, at least `found`. `logs` are its partitions found.

    It is the configured number if the ids in the logs permit it, else the smallest one that they permit. Blocks while
    it reads. Raises OSError.
    """
    placed = {one for log in logs for one in _placed_ids(log)}
    count = fitting_count(found, configured, placed)
    if misplaced := _misplaced(placed, count):
        logger.warning(
            "no number of partitions fits all ids in %s, which will have %d; offsets or transactions of %d are lost",
            topic,
            count,
            misplaced,
        )
    return count


def fitting_count(found: int, configured: int, placed: Collection[PlacedId]) -> int:
    """Return the number of partitions that fits most ids, which usually is all of them."""
    likely = max(found, configured)
    for count in chain([likely], range(found, MAX_FOUND_PARTITIONS + 1)):
        if all(partition_for(name, count) == partition for name, partition in placed):
            return count
    return likely if _misplaced(placed, likely) <= _misplaced(placed, found) else found


def _misplaced(placed: Iterable[PlacedId], count: int) -> int:
    return sum(partition_for(name, count) != partition for name, partition in placed)


def _placed_ids(log: PartitionLog) -> Iterator[PlacedId]:
    batches = ((segment, position, header) for segment in log.segments for position, header in segment.headers())
    for segment, position, header in islice(batches, _SAMPLED_BATCHES):
        for name in _ids(log.topic, header, segment.file.pread(position, header.size_bytes)):
            yield name, log.partition


def _ids(topic: str, header: BatchHeader, batch: bytes) -> Iterator[str]:
    if header.is_control:
        return
    try:
        for record in iter_records(batch):
            name = _id(topic, record.key or b"")
            if name is not None:
                yield name
    except ValueError as error:
        logger.error("skipping a batch of %s at offset %d: %s", topic, header.base_offset, error)


def _id(topic: str, key: bytes) -> str | None:
    """Return the group or transactional id in a record's key, None if the key is of another kind. Raises ValueError."""
    if topic == TRANSACTION_STATE_TOPIC:
        name = read_transaction_key(key)
        return name if isinstance(name, str) else None
    group_key = read_key(key)
    return None if isinstance(group_key, int) else group_key.group
