"""Audit of a log: compares its files and memory with its records, read from start to end.

Offsets increase without a gap in logs that were never compacted, checksums are correct, and leader epochs never
decrease. Indexes, leader epochs, and open and aborted transactions match the records.
"""

from collections.abc import Iterator

from odradek.log.partition_log import PartitionLog
from odradek.log.segments.segment import Segment
from odradek.protocol.batches.record_batch import BatchHeader
from odradek.protocol.records import ControlType, crc_is_valid, iter_records, parse_control_record


def find_faults(log: PartitionLog, *, has_gaps: bool, leader_epoch: int | None = None) -> Iterator[str]:
    """Report errors of a log.

    `has_gaps`: the log may have been compacted, regardless of its current configuration. `leader_epoch`: the leader's.
    """
    audit = _Audit(log, has_gaps or log.config.compacts)
    for what in audit.faults():
        yield f"{log.directory}: {what}"
    if leader_epoch is not None and audit.latest_epoch > leader_epoch:
        yield f"{log.directory}: a batch has leader epoch {audit.latest_epoch}, the leader has {leader_epoch}"


class _Audit:
    """One pass over a log. `latest_epoch` is the largest leader epoch of the batches read."""

    def __init__(self, log: PartitionLog, has_gaps: bool) -> None:
        self._log = log
        self._has_gaps = has_gaps
        # The first offset of each producer's open transaction.
        self._open: dict[int, int] = {}
        self._next_offset = -1
        self.latest_epoch = -1

    def faults(self) -> Iterator[str]:
        log = self._log
        for segment, after in zip(log.segments, [*log.segments[1:], None], strict=True):
            if segment.base_offset < self._next_offset:
                yield f"segment {segment.base_offset} begins before {self._next_offset}, the end of the one before"
            end = log.log_end_offset if after is None else after.base_offset
            yield from self._segment(segment, end)
        yield from self._stability()

    def _segment(self, segment: Segment, end_offset: int) -> Iterator[str]:
        ends: dict[int, int] = {}
        aborted: list[tuple[int, int, int]] = []
        latest_timestamp = -1
        times: dict[int, int] = {}
        for position, header in segment.headers():
            batch = memoryview(segment.file.pread(position, header.size_bytes))
            yield from self._batch(header, batch)
            ends[position] = header.last_offset
            latest_timestamp = max(latest_timestamp, header.max_timestamp)
            times[header.last_offset] = latest_timestamp
            self._note_transaction(header, batch, aborted)
        if self._next_offset > end_offset:
            yield f"segment {segment.base_offset} ends at {self._next_offset}, behind {end_offset}"
        for relative, position in segment.offset_index.entries():
            if ends.get(position) != segment.base_offset + relative:
                yield (
                    f"offset index of {segment.base_offset} has {segment.base_offset + relative} at {position}, "
                    f"where there is {ends.get(position)}"
                )
        for timestamp, relative in segment.time_index.entries():
            offset = segment.base_offset + relative
            if times.get(offset, timestamp) > timestamp:
                yield f"time index of {segment.base_offset} has {timestamp} for {offset}, but {times[offset]} is there"
        written = [entry[:3] for entry in segment.transaction_index.entries()]
        # Compaction removes the records of aborted transactions and keeps the index entries.
        if written != aborted and not self._has_gaps:
            yield f"transaction index of {segment.base_offset} has {written}, the records have {aborted}"

    def _batch(self, header: BatchHeader, batch: memoryview) -> Iterator[str]:
        where = f"the batch at {header.base_offset}"
        if not crc_is_valid(batch):
            yield f"{where} has a wrong checksum"
        if header.base_offset < self._next_offset:
            yield f"{where} comes after offset {self._next_offset - 1}"
        elif header.base_offset > self._next_offset >= 0 and not self._has_gaps:
            yield f"{where} follows a gap from {self._next_offset}"
        if header.partition_leader_epoch < self.latest_epoch:
            yield f"{where} has leader epoch {header.partition_leader_epoch} after {self.latest_epoch}"
        known = self._log.leader_epochs.epoch_for(header.base_offset)
        if known != header.partition_leader_epoch and header.base_offset >= self._log.log_start_offset:
            yield f"{where} has leader epoch {header.partition_leader_epoch}, the checkpoint has {known}"
        self.latest_epoch = max(self.latest_epoch, header.partition_leader_epoch)
        self._next_offset = header.next_offset

    def _note_transaction(self, header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int, int]]) -> None:
        if header.is_control:
            for record in iter_records(batch):
                kind = parse_control_record(record).control_type
                first = self._open.pop(header.producer_id, None)
                if kind is ControlType.ABORT and first is not None:
                    aborted.append((header.producer_id, first, header.last_offset))
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    def _stability(self) -> Iterator[str]:
        log = self._log
        if self._has_gaps:
            return
        stable = min([*self._open.values(), log.high_watermark])
        # A marker above the high watermark does not end its transaction yet.
        is_settled = log.high_watermark == log.log_end_offset
        if is_settled and log.last_stable_offset != max(stable, log.log_start_offset):
            yield f"the last stable offset is {log.last_stable_offset}, the records have {stable}"
