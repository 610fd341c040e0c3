"""One read of the partitions of a fetch: the rows of the response, within its size limits.

The first batch of a response is returned whole even if it exceeds the limits (KIP-74). A reader whose history diverges
from the log gets the offset of the divergence (KIP-595). Fetches with read_committed end at the last stable offset and
list aborted transactions (KIP-98).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from odradek.log.storage.filesystem import ColdReadError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchResponseAbortedTransaction,
    FetchResponseEpochEndOffset,
    FetchResponsePartitionData,
)
from odradek.protocol.schema import rows
from odradek.replication.replicas.leader_state import NEVER
from odradek.replication.replicas.partition import READ_COMMITTED, Partition
from odradek.server.fetching.cold_reads import ColdReads
from odradek.server.fetching.purgatory import PartitionWatch
from odradek.server.fetching.reader import FetchReader

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.log.segments.transaction_index import AbortedTransaction
    from odradek.log.storage.filesystem import FileRegion
    from odradek.server.fetching.session_cache import FetchPartition

NO_RECORDS: Final = b""
STORAGE_ERROR_SINCE: Final = 6
_INVALID_OFFSET: Final = -1

_EXPECTED_ERRORS: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that are no failed fetches, as in Kafka's `ReplicaManager.readFromLog`."""

FetchRow = tuple["FetchPartition", FetchResponsePartitionData]
Cause = Callable[["FetchPartition", KafkaError], KafkaError]


class FetchTarget(PartitionWatch):
    """A partition to fetch, and its watcher while the fetch waits.

    available_bytes: bytes available at the last check of the partition
    """

    __slots__ = ("available_bytes", "requested")

    def __init__(self, requested: "FetchPartition", partition: Partition) -> None:
        self.requested = requested
        self.partition = partition
        self.available_bytes = 0


class LimitedRead:
    """Reads targets in the order of the calls of `read`.

    finds_ends: `ends` has the partitions whose records are returned up to the last one that the reader may read, each
        with the offset after it
    rows: the rows that differ from those last sent to the client; with `names_all` all rows
    find_cause: returns the error to report for an error raised by a read
    fetched_ms: the time of a follower's fetch, on the monotonic clock, given to the first read of a fetch only, which
        records the follower's progress
    previous_ms: the time of the follower's fetch before that one on the same connection, or in the same session
    cold_reads: reads what is on the disk only; None if the fetch waits for the disk instead
    waits_for_first: the fetch waits for the disk until it has records of one partition, in spite of `cold_reads`
    is_urgent: the response is sent without waiting for more bytes
    """

    __slots__ = (
        "_cold_reads", "_fetched_ms", "_find_cause", "_isolation_level", "_names_all", "_previous_ms", "_reader",
        "_remaining_bytes", "_sent", "_version", "_waits_for_first", "ends", "finds_ends", "has_failed", "is_urgent",
        "read_bytes", "rows",
    )  # fmt: skip

    def __init__(
        self,
        version: int,
        reader: FetchReader,
        max_bytes: int,
        names_all: bool,
        find_cause: Cause,
        fetched_ms: int | None = None,
        previous_ms: int = NEVER,
        cold_reads: ColdReads | None = None,
        waits_for_first: bool = False,
    ) -> None:
        self._version = version
        self._cold_reads = cold_reads
        self._waits_for_first = waits_for_first
        self._reader = reader
        self._isolation_level = reader.isolation_level
        self._fetched_ms = fetched_ms
        self._previous_ms = previous_ms
        # The partitions with records, and the sizes of these.
        self._sent: list[tuple[Partition, int]] = []
        self._remaining_bytes = max_bytes
        self._names_all = names_all
        self._find_cause = find_cause
        self.finds_ends = False
        self.ends: list[tuple[Partition, int]] = []
        self.rows: list[FetchRow] = []
        self.read_bytes = 0
        self.is_urgent = False
        self.has_failed = False

    def read(self, targets: Iterable[FetchTarget]) -> None:
        """Read more targets."""
        _, leader_only, follower, _, rack, _ = self._reader
        for target in targets:
            requested, partition = target.requested, target.partition
            current_epoch, fetched_epoch = requested.current_leader_epoch, requested.last_fetched_epoch
            try:
                # `readable_log`, inline.
                log = partition.log
                if (
                    log is None
                    or (leader_only and not partition.is_leader)
                    or (current_epoch >= 0 and current_epoch != partition.leader_epoch)
                ):
                    log = partition.readable_log(current_epoch, leader_only=leader_only)
                state = log.state
                if follower >= 0:
                    if follower not in partition.followers:
                        partition.check_follower(follower, current_epoch)
                elif rack and self._redirect(requested, partition, log):
                    target.available_bytes = 0
                    continue
                is_at_end = requested.fetch_offset == state.log_end_offset and (
                    fetched_epoch < 0 or fetched_epoch == state.leader_epochs.latest_epoch
                )
                if is_at_end or (
                    fetched_epoch < 0
                    and self._remaining_bytes <= 0 < self.read_bytes
                    and _is_in_log(log, requested.fetch_offset)
                ):
                    # Nothing to read, or the response is full: the common case in a fetch of many partitions.
                    if self._fetched_ms is not None:
                        self._record_progress(requested, partition, log)
                    if is_at_end:
                        log.add_end_hint()
                    target.available_bytes = 0
                    if self._names_all or requested.is_changed(state.high_watermark, state.log_start_offset):
                        self.rows.append((requested, self._make_empty_row(requested, log)))
                    continue
                row, size_bytes = self._read_one(requested, partition, log)
            except KafkaError as error:
                if error.code not in _EXPECTED_ERRORS:
                    partition.traffic.failed_fetch_requests += 1
                self.refuse(requested, self._find_cause(requested, error), is_urgent=True)
                continue
            target.available_bytes = size_bytes
            self.read_bytes += size_bytes
            self._remaining_bytes -= size_bytes
            if (
                self._names_all
                or size_bytes
                or row.diverging_epoch.epoch >= 0
                or requested.is_changed(row.high_watermark, row.log_start_offset)
            ):
                self.rows.append((requested, row))

    def count_sent(self) -> None:
        """Count the records, those for a follower also for the throttle of replication: the response is sent."""
        follower = self._reader.follower
        if follower >= 0:
            for partition, size_bytes in self._sent:
                partition.count_replicated(follower, size_bytes)
        else:
            for partition, size_bytes in self._sent:
                partition.traffic.bytes_out += size_bytes

    def refuse(self, requested: "FetchPartition", error: KafkaError, *, is_urgent: bool) -> None:
        """Add a row with an error."""
        self.has_failed = True
        self.is_urgent = self.is_urgent or is_urgent
        self.rows.append((requested, make_error_row(requested.index, error, self._version)))

    def _read_one(
        self, requested: "FetchPartition", partition: Partition, log: "PartitionLog"
    ) -> tuple[FetchResponsePartitionData, int]:
        """Return a partition's row and the number of bytes in it.

        The response becomes urgent if the reader's history diverges from the log, if the records are not in the active
        segment, or if the partition has records that do not fit into the response.
        """
        leader_only = self._reader.leader_only
        fetched_epoch, diverging = requested.last_fetched_epoch, None
        # The log's last epoch ends at its end.
        if fetched_epoch >= 0 and (
            fetched_epoch != log.state.leader_epochs.latest_epoch or requested.fetch_offset > log.state.log_end_offset
        ):
            diverging = partition.diverging_epoch(fetched_epoch, requested.fetch_offset, leader_only=leader_only)
        if diverging is None and self._fetched_ms is not None:
            self._record_progress(requested, partition, log)
        partition.traffic.fetch_requests += 1
        row = self._make_empty_row(requested, log)
        if diverging is not None:
            row.diverging_epoch = FetchResponseEpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            row.aborted_transactions = None
            self.is_urgent = True
            return row, 0
        follower = self._reader.follower
        if follower >= 0 and partition.is_throttled(follower):
            return row, 0
        max_bytes = min(requested.max_bytes, max(0, self._remaining_bytes))
        is_first = self.read_bytes == 0
        may_wait = self._cold_reads is None or (self._waits_for_first and is_first)
        try:
            region, aborted = _find_records(requested, partition, self._reader, max_bytes, is_first, may_wait)
        except ColdReadError as wanted:
            assert self._cold_reads is not None
            if self._cold_reads.begin(partition, wanted):
                return row, 0
            region, aborted = _find_records(requested, partition, self._reader, max_bytes, is_first, True)
        if region is None:
            if self.read_bytes and requested.fetch_offset < self._find_upper_offset(log):
                self.is_urgent = True
            return row, 0
        if aborted:
            row.aborted_transactions = rows(_make_aborted_row, aborted)
        row.records = region
        self._sent.append((partition, region.size_bytes))
        if region.file is not log.state.active.file:
            self.is_urgent = True
        elif self.finds_ends and region.size_bytes < max_bytes:
            self.ends.append((partition, self._find_upper_offset(log)))
        return row, region.size_bytes

    def _record_progress(self, requested: "FetchPartition", partition: Partition, log: "PartitionLog") -> None:
        """Record the follower's log end, which is its fetch offset, unless that is outside of the leader's log.

        The high watermark in the row may have advanced by that.
        """
        assert self._fetched_ms is not None
        if _is_in_log(log, requested.fetch_offset):
            partition.update_follower(
                self._reader.follower,
                requested.fetch_offset,
                requested.fetcher_log_start_offset,
                self._fetched_ms,
                self._reader.broker_epoch,
                self._previous_ms,
            )

    def _redirect(self, requested: "FetchPartition", partition: Partition, log: "PartitionLog") -> bool:
        """Return whether the consumer is to read from a follower in its rack; then its row names that follower."""
        reader = self._reader
        replica = partition.select_read_replica(reader.rack, reader.listener, requested.fetch_offset)
        if replica is None:
            return False
        row = self._make_empty_row(requested, log)
        row.preferred_read_replica = replica
        self.rows.append((requested, row))
        self.is_urgent = True
        return True

    def _find_upper_offset(self, log: "PartitionLog") -> int:
        state = log.state
        if self._isolation_level is None:
            return state.log_end_offset
        return state.last_stable_offset if self._isolation_level else state.high_watermark

    def _make_empty_row(self, requested: "FetchPartition", log: "PartitionLog") -> FetchResponsePartitionData:
        state = log.state
        return FetchResponsePartitionData(
            partition_index=requested.index,
            high_watermark=state.high_watermark,
            last_stable_offset=state.last_stable_offset,
            log_start_offset=state.log_start_offset,
            aborted_transactions=[] if self._isolation_level == READ_COMMITTED else None,
            records=NO_RECORDS,
        )


def _make_aborted_row(entry: "AbortedTransaction") -> FetchResponseAbortedTransaction:
    return FetchResponseAbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)


def _find_records(
    requested: "FetchPartition",
    partition: Partition,
    reader: FetchReader,
    max_bytes: int,
    at_least_one: bool,
    may_wait: bool,
) -> "tuple[FileRegion | None, Sequence[AbortedTransaction]]":
    """Return the records of a partition, and the aborted transactions in them. Raises as `Partition.read`."""
    region = partition.read(
        requested.fetch_offset,
        max_bytes,
        isolation_level=reader.isolation_level,
        at_least_one=at_least_one,
        current_leader_epoch=requested.current_leader_epoch,
        leader_only=reader.leader_only,
        may_wait=may_wait,
    )
    if region is None or reader.isolation_level != READ_COMMITTED:
        return region, ()
    return region, partition.aborted_transactions(requested.fetch_offset, region, may_wait=may_wait)


def measure_available(
    target: FetchTarget, reader: FetchReader, max_bytes: int, cold_reads: ColdReads
) -> tuple[int, bool]:
    """Return the number of bytes that a target has for a response of `max_bytes`, and whether the response is urgent.

    0 while `cold_reads` has to find them on the disk. Raises KafkaError like `Partition.read`.
    """
    requested, partition, leader_only = target.requested, target.partition, reader.leader_only
    log = partition.readable_log(requested.current_leader_epoch, leader_only=leader_only)
    if reader.follower >= 0:
        partition.check_follower(reader.follower, requested.current_leader_epoch)
    fetched_epoch = requested.last_fetched_epoch
    if fetched_epoch >= 0:
        diverging = partition.diverging_epoch(fetched_epoch, requested.fetch_offset, leader_only=leader_only)
        if diverging is not None:
            return 0, True
    if reader.follower >= 0 and partition.is_throttled(reader.follower):
        return 0, False
    # As the response will read it: for more bytes it might need fewer headers, so that one on the disk is not noticed.
    max_bytes = min(requested.max_bytes, max_bytes)
    try:
        region, _ = _find_records(requested, partition, reader, max_bytes, True, False)
    except ColdReadError as wanted:
        if cold_reads.begin(partition, wanted):
            return 0, False
        region, _ = _find_records(requested, partition, reader, max_bytes, True, True)
    if region is None:
        return 0, False
    return region.size_bytes, region.file is not log.state.active.file


def make_error_row(index: int, error: KafkaError, version: int) -> FetchResponsePartitionData:
    """Return the row of a partition that cannot be read."""
    code = error.code
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponsePartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=_INVALID_OFFSET,
        last_stable_offset=_INVALID_OFFSET,
        log_start_offset=_INVALID_OFFSET,
        aborted_transactions=None,
        records=NO_RECORDS,
    )


def _is_in_log(log: "PartitionLog", offset: int) -> bool:
    return log.state.log_start_offset <= offset <= log.state.log_end_offset
