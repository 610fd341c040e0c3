"""Offset lookup of ListOffsets: by timestamp, or by one of the negative values that denote positions in the log.

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
"""The first ListOffsets version in which each of these negative timestamps is defined."""

NOT_FOUND: Final = TimestampOffset(-1, -1, -1)


def begin_search(log: PartitionLog, timestamp: int) -> Generator[Step, None, TimestampOffset | None] | None:
    """Return the search for a timestamp, in steps; None for special values, which need no search.

    Raises KafkaError UNSUPPORTED_VERSION for an undefined negative timestamp. The search raises LogDirFailure.
    """
    if timestamp == MAX_TIMESTAMP:
        return log.offset_of_max_timestamp()
    if timestamp < 0:
        if timestamp not in SPECIAL_TIMESTAMPS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not defined")
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
    """Return the offset for a timestamp or special value; NOT_FOUND if there is none below `upper_offset`.

    searched: the result of the search that `begin_search` returned; is_lagging: the high watermark of a new leader has
    not reached the start of its epoch (KIP-207). Raises KafkaError OFFSET_NOT_AVAILABLE if the result depends on it.
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
    """Raise KafkaError UNSUPPORTED_VERSION for a negative timestamp that a ListOffsets version does not define."""
    if timestamp < 0 and version < SPECIAL_TIMESTAMPS.get(timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not defined in version {version}")
