"""A future log beside the current log: the part that both have in common, and state that is copied between them.

The current log may be truncated, also while the future log is not open, and diverge afterwards. As between replicas on
different brokers, equal leader epochs mean equal records (KIP-101).
"""

from odradek.log.leader_epochs import LeaderEpochs
from odradek.log.partition_log import PartitionLog


def find_common_end(current: PartitionLog, future: PartitionLog) -> int:
    """Return the offset up to which both logs have the same leader epochs, from the later one of their starts on."""
    start_offset = max(current.log_start_offset, future.log_start_offset)
    end_offset = min(current.log_end_offset, future.log_end_offset)
    starts = {offset for log in (current, future) for _, offset in log.leader_epochs.entries}
    for offset in sorted({start_offset, *starts}):
        if start_offset <= offset < end_offset and current.epoch_for_offset(offset) != future.epoch_for_offset(offset):
            return offset
    return end_offset


def copy_epochs(current: PartitionLog, future: PartitionLog) -> None:
    """Copy the leader epochs that began below the future log's end, or at the same end of both logs.

    They include epochs whose first batches were compacted, and one that has no batch yet. The next flush writes them.
    """
    state = future.state
    end_offset = future.log_end_offset
    has_all = end_offset == current.log_end_offset
    entries = [entry for entry in current.leader_epochs.entries if has_all or entry[1] < end_offset]
    if entries != state.leader_epochs.entries:
        state.leader_epochs = LeaderEpochs(entries)
        mark_epochs_unwritten(future)


def mark_epochs_unwritten(log: PartitionLog) -> None:
    """Make the next flush write and sync the leader epochs."""
    state = log.state
    state.leader_epochs.dirty = True
    if state.unsynced_epoch_at is None:
        state.unsynced_epoch_at = state.flushed_offset


def copy_offsets(current: PartitionLog, future: PartitionLog) -> None:
    """Advance the future log's start and high watermark to the current log's, as far as it has the records."""
    future.advance_log_start(min(current.log_start_offset, future.log_end_offset))
    future.update_high_watermark(current.high_watermark)


def skip_to(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Extend a log to `offset` without batches, by a new segment: compaction removed the last batches before it.

    Raises LogDirFailure, ShortageError.
    """
    try:
        log.roller.roll_at(offset, now_ms)
    except OSError as error:
        raise log.state.refuse_or_fail("roll", error) from error
    log.state.log_end_offset = offset
