"""The age of segments, for retention.

A segment is as old as its newest record, or as the last change of its file if no record has a timestamp. The header of
a batch that this process appended as leader has the largest timestamp of its records. The header of a batch that was
found on the disk or copied from a leader may have another one: with a timestamp in 1970 retention would delete new
records, with one in the distant future it would keep the log forever. Therefore the records of such a segment are read,
in a thread, if retention by the timestamps in the headers and by the file's modification time gives different results.
"""

from collections.abc import Generator
from contextlib import suppress

from odradek.log.segments.segment import Segment
from odradek.log.segments.timestamps import BatchSearch
from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.batches.record_batch import NO_TIMESTAMP, InvalidRecordError
from odradek.protocol.batches.streaming import Step


def is_older(segment: Segment, bound_ms: int) -> bool:
    """Return whether the newest record is certainly from before `bound_ms`. Raises OSError."""
    newest_ms = segment.verified_timestamp_ms
    if newest_ms is not None:
        return newest_ms < bound_ms
    return segment.largest_timestamp_ms < bound_ms and segment.modified_ms < bound_ms


def is_doubtful(segment: Segment, bound_ms: int) -> bool:
    """Return whether the records must be read to decide if the segment is older than `bound_ms`. Raises OSError."""
    if segment.verified_timestamp_ms is not None:
        return False
    return (segment.largest_timestamp_ms < bound_ms) is not (segment.modified_ms < bound_ms)


def read_largest_timestamp(segment: Segment, size_bytes: int) -> Generator[Step, None, int]:
    """Find the largest timestamp of the records in the first `size_bytes` of a segment, in steps. Raises OSError.

    For a batch that cannot be read the timestamp in its header is used.
    """
    largest = NO_TIMESTAMP
    for position, header in segment.headers(0, size_bytes):
        timestamp = header.max_timestamp
        if not header.is_log_append_time:
            with suppress(InvalidRecordError, CompressionError):
                timestamp = yield from BatchSearch(segment, position, header).largest_timestamp()
        largest = max(largest, timestamp)
        yield None
    return largest
