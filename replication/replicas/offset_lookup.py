"""Which offset belongs to a timestamp, or to one of the values below zero that ListOffsets has for the log's ends.

Sources: Kafka documentation (protocol, ListOffsets), KIP-79, KIP-207, KIP-405, KIP-734, KIP-1005, KIP-1023.
"""

from collections.abc import Generator
from typing import Final

from odradek.log.partition_log import PartitionLog
from odradek.log.segments.timestamps import TimestampOffset
from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError

_NO_EPOCH: Final = -1

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6

SPECIAL_TIMESTAMPS: Final = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The ListOffsets version from which on each negative timestamp has a meaning."""

NOT_FOUND: Final = TimestampOffset(-1, -1, -1)


def begin_search(log: PartitionLog, timestamp: int) -> Generator[Step, None, TimestampOffset | None] | None:
    """The search that a timestamp needs, in steps; None for special values that are answered without one.

    Raises KafkaError UNSUPPORTED_VERSION for a negative timestamp without a meaning; the search LogDirFailure.
    """
    if timestamp == MAX_TIMESTAMP:
        return log.offset_of_max_timestamp()
    if timestamp < 0:
        if timestamp not in SPECIAL_TIMESTAMPS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning")
        return None
    return log.offset_for_timestamp(timestamp)


def find_offset(
    log: PartitionLog,
    timestamp: int,
    searched: TimestampOffset | None,
    upper_offset: int,
    leader_epoch: int,
    *,
    is_lagging: bool,
) -> TimestampOffset:
    """The offset that belongs to a timestamp or special value, NOT_FOUND if there is none below `upper_offset`.

    searched: what the search of `begin_search` has found; is_lagging: the high watermark of a new leader has not
    reached the start of its epoch (KIP-207). Raises KafkaError OFFSET_NOT_AVAILABLE where that decides the answer.
    """
    if timestamp == LATEST_TIMESTAMP:
        if not is_lagging:
            return TimestampOffset(upper_offset, -1, leader_epoch)
    elif timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return TimestampOffset(log.log_start_offset, -1, _earliest_epoch(log))
    elif timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return NOT_FOUND
    if searched is not None and searched.offset < upper_offset:
        return searched
    if is_lagging:
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the high watermark {log.high_watermark} has not reached the leader's epoch yet",
        )
    return NOT_FOUND


def _earliest_epoch(log: PartitionLog) -> int:
    earliest = log.leader_epochs.earliest()
    if earliest is None or earliest[1] > log.log_start_offset:
        return _NO_EPOCH
    return earliest[0]


def check_timestamp_supported(timestamp: int, version: int) -> None:
    """Raise KafkaError UNSUPPORTED_VERSION for a negative timestamp without meaning in a ListOffsets version."""
    if timestamp < 0 and version < SPECIAL_TIMESTAMPS.get(timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")
