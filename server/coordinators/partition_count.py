"""The number of partitions of an internal topic whose metadata is lost.

The partition of a group or transactional id is its hash modulo this number. With a wrong number its offsets or its
transaction are not found. Directories of partitions may be missing, and the configured number may differ from the
topic's: the number has to be consistent with the ids in the partitions found.
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
"""Batches that are read of each partition: a few ids exclude every wrong number."""

PlacedId = tuple[str, int]
"""A group or transactional id and the partition that has it."""


def count_partitions(topic: str, found: int, configured: int, logs: Iterable[PartitionLog]) -> int:
    """Return the number of partitions of an internal topic, at least `found`. `logs` are its partitions found.

    It is the configured number if that is consistent with the ids in the logs, else the smallest number that is. Blocks
    while it reads. Raises OSError.
    """
    placed = {one for log in logs for one in _read_placed_ids(log)}
    count = find_fitting_count(found, configured, placed)
    if misplaced := _count_misplaced(placed, count):
        logger.warning(
            "no number of partitions fits all ids in an internal topic; offsets or transactions of the misplaced ids "
            "are lost topic=%s partitions=%d misplaced_ids=%d",
            topic,
            count,
            misplaced,
        )
    return count


def find_fitting_count(found: int, configured: int, placed: Collection[PlacedId]) -> int:
    """Return the number of partitions that fits all ids, or else the one of two likely numbers that fits more ids."""
    likely = max(found, configured)
    for count in chain([likely], range(found, MAX_FOUND_PARTITIONS + 1)):
        if all(partition_for(name, count) == partition for name, partition in placed):
            return count
    return likely if _count_misplaced(placed, likely) <= _count_misplaced(placed, found) else found


def _count_misplaced(placed: Iterable[PlacedId], count: int) -> int:
    return sum(partition_for(name, count) != partition for name, partition in placed)


def _read_placed_ids(log: PartitionLog) -> Iterator[PlacedId]:
    batches = ((segment, position, header) for segment in log.segments for position, header in segment.headers())
    for segment, position, header in islice(batches, _SAMPLED_BATCHES):
        for name in _read_ids(log.topic, header, segment.file.pread(position, header.size_bytes)):
            yield name, log.partition


def _read_ids(topic: str, header: BatchHeader, batch: bytes) -> Iterator[str]:
    if header.is_control:
        return
    try:
        for record in iter_records(batch):
            name = _parse_id(topic, record.key or b"")
            if name is not None:
                yield name
    except ValueError as error:
        logger.error(
            "skipping a malformed batch in the search for group and transactional ids topic=%s offset=%d error=%s",
            topic,
            header.base_offset,
            error,
        )


def _parse_id(topic: str, key: bytes) -> str | None:
    """Return the group or transactional id in a record's key; None if the key has none. Raises ValueError."""
    if topic == TRANSACTION_STATE_TOPIC:
        name = read_transaction_key(key)
        return name if isinstance(name, str) else None
    group_key = read_key(key)
    return None if isinstance(group_key, int) else group_key.group
