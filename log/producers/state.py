"""State of a partition's idempotent and transactional producers (KIP-98), and its .snapshot files.

The open transactions determine the first unstable offset, which limits the last stable offset.
"""

import logging
from bisect import insort
from contextlib import suppress
from heapq import heappop, heappush
from typing import NamedTuple

from odradek.log.producers.entry import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, BatchMetadata, ProducerEntry
from odradek.log.producers.snapshots import CorruptSnapshotError, SnapshotWrite, decode_snapshot, encode_snapshot
from odradek.log.producers.table import RECORD, ProducerTable
from odradek.log.segments.segment_files import SNAPSHOT_SUFFIX, file_name
from odradek.log.storage.filesystem import FileSystem, is_shortage, remove_if_exists, write_whole
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_MAX_SEQUENCE = 0x7FFFFFFF
_MAX_EPOCH = 0x7FFF
_FEW_PRODUCERS = 2_000
"""Above this number, at which a snapshot has 92 KB, snapshots are written in a thread."""


class Verification:
    """Verification of a producer's open transaction at its coordinator, before its first batch (KIP-890).

    The batch may be appended only while this object is the producer's verification: data or a marker that is appended
    meanwhile removes it. `lowest_sequence` is the lowest sequence of the waiting batches, which must be appended first.
    `adds_partition`: the request adds the partition to the transaction instead of verifying it; then each transaction
    has a separate epoch.
    """

    __slots__ = ("adds_partition", "began_ms", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, monotonic_ms: int, adds_partition: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.began_ms = monotonic_ms
        self.adds_partition = adds_partition

    def add_waiting_batch(self, epoch: int, sequence: int) -> None:
        """Record another batch that waits for the same verification."""
        if epoch > self.epoch or (epoch == self.epoch and sequence < self.lowest_sequence):
            self.epoch = epoch
            self.lowest_sequence = sequence


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended. `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerState:
    """Producers of one partition, in memory and as snapshots in its directory.

    `end_offset` is the offset up to which the state includes the log. `first_unstable_offset` is the first offset of
    the oldest transaction that is open, or whose marker is not yet below the high watermark; -1 if there is none.
    Methods that write snapshots raise OSError.
    """

    def __init__(
        self, fs: FileSystem, directory: str, *, expiration_ms: int, snapshots: list[int] | None = None
    ) -> None:
        """Create an empty state. `snapshots` are those in the directory, by offset, ascending; None to list them."""
        self._fs = fs
        self.directory = directory
        self.expiration_ms = expiration_ms
        self.producers = ProducerTable()
        self.verifications: dict[int, Verification] = {}
        self.end_offset = 0
        self.last_snapshot_offset = 0
        self.first_unstable_offset = NO_OFFSET
        self._ongoing: set[int] = set()
        self._ongoing_starts: list[int] = []
        """A heap of the start offsets of open transactions; it may contain starts of completed ones."""
        self._unreplicated: dict[int, int] = {}
        self._snapshots = self._list_snapshots() if snapshots is None else snapshots
        self._spared_snapshot = NO_OFFSET
        self._unsynced_snapshot = NO_OFFSET
        self._largest_loaded_id = -1

    @property
    def largest_id(self) -> int:
        """The largest producer id, -1 for none, including expired producers of a snapshot."""
        return max(self._largest_loaded_id, max(self.producers, default=-1))

    # Checks and records of appends

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """Return the batch with exactly these sequence numbers, if it is among the producer's last ten."""
        entry = self.producers.get(producer_id)
        # Most batches are the next ones, and need no search.
        if entry is None or entry.epoch != epoch or first_sequence == entry.last_sequence + 1:
            return None
        batch = entry.find_batch(last_sequence)
        if batch is None:
            return None
        first = last_sequence - batch.offset_delta
        return batch if first_sequence == (first if first >= 0 else first + _MAX_SEQUENCE + 1) else None

    def check_data(
        self, producer_id: int, epoch: int, first_sequence: int, *, is_transactional: bool, is_client: bool
    ) -> None:
        """Check that a data batch may follow.

        Raises KafkaError INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.

        Sequences are checked for clients only: coordinators do not number their batches.
        """
        entry = self.producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise _old_epoch(entry, epoch)
        if is_client and self.verifications:
            self._check_verified_sequence(producer_id, first_sequence, entry)
        if entry is None:
            return
        if is_client and entry.epoch != NO_EPOCH:
            if epoch != entry.epoch:
                expected = 0
            else:
                expected = 0 if entry.last_sequence == _MAX_SEQUENCE else entry.last_sequence + 1
            if first_sequence != expected:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} epoch {epoch} sent sequence {first_sequence}, expected {expected}",
                )
        if entry.transaction_start >= 0 and not is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an open transaction and sent a batch outside of it",
            )

    def has_gap_before(self, producer_id: int, epoch: int, first_sequence: int) -> bool:
        """Return whether batches of this epoch are missing before one with this first sequence."""
        entry = self.producers.get(producer_id)
        last_sequence = entry.last_sequence if entry is not None and entry.epoch == epoch else NO_SEQUENCE
        return 0 < (first_sequence - last_sequence - 1) & _MAX_SEQUENCE < 1 << 30

    def _check_verified_sequence(self, producer_id: int, sequence: int, entry: ProducerEntry | None) -> None:
        verification = self.verifications.get(producer_id)
        if verification is None:
            return
        is_unknown = entry is None or not entry.has_batches
        if sequence > verification.lowest_sequence or (verification.adds_partition and is_unknown and sequence != 0):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} began a transaction here with sequence {sequence}, expected "
                f"{0 if is_unknown else verification.lowest_sequence}",
            )

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, monotonic_ms: int, *, adds_partition: bool
    ) -> Verification | None:
        """Begin the verification that a transactional batch needs; return None if its transaction is open already.

        Raises KafkaError INVALID_PRODUCER_EPOCH.
        """
        entry = self.producers.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _old_epoch(entry, epoch)
            if entry.transaction_start >= 0 and entry.epoch == epoch:
                return None
        verification = self.verifications.get(producer_id)
        if verification is None:
            verification = Verification(epoch, sequence, monotonic_ms, adds_partition)
            self.verifications[producer_id] = verification
        else:
            verification.add_waiting_batch(epoch, sequence)
        return verification

    def check_in_transaction(self, producer_id: int, epoch: int) -> None:
        """Check that an unverified transactional batch is in an open transaction.

        Raises KafkaError INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE.
        """
        entry = self.producers.get(producer_id)
        if entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch:
            return
        if entry is not None and epoch < entry.epoch:
            raise _old_epoch(entry, epoch)
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an ongoing transaction")

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Check that a transaction marker may follow. Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        entry = self.producers.get(producer_id)
        if entry is None:
            return
        repeated = epoch == entry.epoch and (entry.transaction_start < 0 or epoch == _MAX_EPOCH)
        if epoch < entry.epoch or (transaction_version >= 2 and epoch == entry.epoch and not repeated):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {entry.epoch}, the marker {epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {entry.coordinator_epoch}",
            )

    def add_data(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        is_transactional: bool,
    ) -> None:
        """Record a data batch that was written."""
        entry = self.producers.recent.get(producer_id)
        if entry is None:
            entry = self.producers.get(producer_id) or self.producers.add(producer_id)
        entry.add(epoch, last_sequence, last_offset, last_offset - first_offset, timestamp)
        if is_transactional:
            self.verifications.pop(producer_id, None)
            if entry.transaction_start < 0:
                entry.transaction_start = first_offset
                self._ongoing.add(first_offset)
                heappush(self._ongoing_starts, first_offset)
                self._find_first_unstable()

    def add_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, is_abort: bool
    ) -> CompletedTransaction | None:
        """Record a marker that was written. Return the transaction that it ends, if one is open, for `complete`."""
        entry = self.producers.get(producer_id) or self.producers.add(producer_id)
        verification = self.verifications.get(producer_id)
        # A marker of the epoch that is being verified ends the transaction before that one.
        if verification is not None and not (verification.adds_partition and verification.epoch == epoch):
            del self.verifications[producer_id]
        start, entry.transaction_start = entry.transaction_start, NO_OFFSET
        entry.set_epoch(epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        return CompletedTransaction(producer_id, start, offset, is_abort) if start >= 0 else None

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset for the transaction index: the start of the next open transaction."""
        return self._first_ongoing(except_for=completed.first_offset, default=completed.last_offset + 1)

    def complete(self, completed: CompletedTransaction) -> None:
        """Complete a transaction. It is unstable until its marker is below the high watermark."""
        self._ongoing.discard(completed.first_offset)
        self._unreplicated[completed.first_offset] = completed.last_offset
        self._find_first_unstable()

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Remove completed transactions whose markers are below the high watermark from the unstable ones."""
        if self._unreplicated:
            self._unreplicated = {s: last for s, last in self._unreplicated.items() if last >= high_watermark}
            self._find_first_unstable()

    def log_start_advanced(self, log_start_offset: int) -> None:
        """Advance the offsets of the state that are below the log's start."""
        self.high_watermark_advanced(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)
        self.last_snapshot_offset = self._snapshots[-1] if self._snapshots else log_start_offset

    def remove_expired(self, now_ms: int, end: int, count: int) -> int:
        """Remove producers without a write for `expiration_ms` (producer.id.expiration.ms).

        Visits up to `count` of them before position `end`. Returns the position of the first one that was visited, as
        `end` of the next call; 0 if none is left.
        """
        for producer_id in self.producers.idle_since(now_ms - self.expiration_ms, end, count):
            self.producers.remove(producer_id)
        return max(0, end - count)

    def remove_expired_verifications(self, monotonic_ms: int) -> None:
        """Remove verifications that began `expiration_ms` ago."""
        for producer_id, verification in list(self.verifications.items()):
            if monotonic_ms - verification.began_ms >= self.expiration_ms:
                del self.verifications[producer_id]

    def take_over(self, other: "ProducerState") -> None:
        """Take over the producers of another replica of the log, which this one replaces; both have the same end.

        These include producers whose batches are not in the log any more, and verifications in progress. This state's
        snapshots remain.
        """
        self._share_producers(other)
        self.expiration_ms = other.expiration_ms
        self.verifications = other.verifications
        self._largest_loaded_id = other._largest_loaded_id

    def _share_producers(self, other: "ProducerState") -> None:
        """Share the producers and open transactions of another state, which is not used any more."""
        self.producers = other.producers
        self._ongoing = other._ongoing
        self._ongoing_starts = other._ongoing_starts
        self._unreplicated = other._unreplicated
        self.first_unstable_offset = other.first_unstable_offset

    def _first_ongoing(self, *, except_for: int = NO_OFFSET, default: int = NO_OFFSET) -> int:
        """Return the start of the first open transaction, of which there may be many thousands, or of the second."""
        ongoing, starts = self._ongoing, self._ongoing_starts
        while starts and starts[0] not in ongoing:
            heappop(starts)
        if not starts or starts[0] != except_for:
            return starts[0] if starts else default
        heappop(starts)
        first = self._first_ongoing(default=default)
        heappush(starts, except_for)
        return first

    def _find_first_unstable(self) -> None:
        first = self._first_ongoing()
        unreplicated = min(self._unreplicated, default=NO_OFFSET)
        if first < 0 or 0 <= unreplicated < first:
            first = unreplicated
        self.first_unstable_offset = first

    # Snapshots

    @property
    def is_empty(self) -> bool:
        return not self.producers and not self._unreplicated

    @property
    def latest_snapshot_offset(self) -> int | None:
        return self._snapshots[-1] if self._snapshots else None

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    @property
    def is_saved(self) -> bool:
        """Return whether the newest snapshot is of `end_offset` and durable."""
        return self.end_offset <= self.last_snapshot_offset and self._unsynced_snapshot == NO_OFFSET

    @property
    def unsynced_paths(self) -> set[str]:
        """The file of the newest snapshot, if it may not be durable."""
        return set() if self._unsynced_snapshot == NO_OFFSET else {self.snapshot_path(self._unsynced_snapshot)}

    def take_snapshot(self, *, sync: bool) -> int | None:
        """Write the state at `end_offset`, unless a snapshot is as new; return the offset in its name."""
        if self.end_offset <= self.last_snapshot_offset:
            if sync and self._unsynced_snapshot == self.last_snapshot_offset:
                self._fs.sync_path(self.snapshot_path(self._unsynced_snapshot))
                self._unsynced_snapshot = NO_OFFSET
            return None
        data = encode_snapshot(self.producers.records)
        path = self.snapshot_path(self.end_offset)
        if self.end_offset == self._spared_snapshot and self._fs.read_bytes(path) == data:
            self._spared_snapshot = NO_OFFSET
            if sync:
                self._fs.sync_path(path)
        else:
            self._write_snapshot(path, data, sync=sync)
        if self.end_offset not in self._snapshots:
            self._snapshots.append(self.end_offset)
        self.last_snapshot_offset = self.end_offset
        self._unsynced_snapshot = NO_OFFSET if sync else self.end_offset
        return self.end_offset

    @property
    def is_large(self) -> bool:
        """Return whether snapshots are to be written in a thread, because a write takes long."""
        return len(self.producers) > _FEW_PRODUCERS

    def copy_snapshot(self) -> SnapshotWrite:
        """Copy the state at `end_offset`, to be written in a thread. Call `add_snapshot` after the write."""
        self.last_snapshot_offset = self.end_offset
        path = self.snapshot_path(self.end_offset)
        return SnapshotWrite(path, self.end_offset, bytes(self.producers.records))

    def has_snapshot(self, offset: int) -> bool:
        """Return whether there is a snapshot of `offset`."""
        return offset in self._snapshots

    def add_snapshot(self, offset: int) -> None:
        """Register the snapshot of `offset`, which was written."""
        if offset not in self._snapshots:
            insort(self._snapshots, offset)

    def _write_snapshot(self, path: str, data: bytes, *, sync: bool) -> None:
        try:
            write_whole(self._fs, path, data, sync=sync)
        except OSError:
            with suppress(OSError):
                self._fs.remove(path)
            raise

    def take_snapshot_if_room(self, *, sync: bool) -> None:
        """Take a snapshot unless a resource is short, after which a recovery takes longer. Raises OSError.

        A snapshot within the last segment need not be synced: the recovery of that segment ignores it.
        """
        try:
            self.take_snapshot(sync=sync)
        except OSError as error:
            if not is_shortage(error):
                raise

    def spare_latest_snapshot(self, offset: int) -> None:
        """Begin the recovery of a segment at `offset`: ignore the newest snapshot if it is later, but keep its file.

        Usually the recovery proves it correct, and writing it again for each partition would take most of the time of
        such a start. Call `settle_latest_snapshot` afterwards.
        """
        if self._snapshots and self._snapshots[-1] > offset:
            self._spared_snapshot = self._snapshots.pop()

    def settle_latest_snapshot(self, *, sync: bool) -> None:
        """End the recovery at `end_offset`: write a snapshot, and remove the kept file if it is of another offset."""
        self.take_snapshot_if_room(sync=sync)
        spared, self._spared_snapshot = self._spared_snapshot, NO_OFFSET
        if spared >= 0 and spared != self.end_offset:
            remove_if_exists(self._fs, self.snapshot_path(spared))

    def remove_stray_snapshots(self, segment_base_offsets: list[int]) -> None:
        """Remove snapshots of no segment's base offset, except the newest one if it is above all base offsets."""
        bases = set(segment_base_offsets)
        self._snapshots = self._list_snapshots()
        strays = [offset for offset in self._snapshots if offset not in bases]
        if strays and (not bases or strays[-1] > max(bases)):
            strays.pop()
        for offset in strays:
            self._remove_snapshot(offset)

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest snapshot within the log. The caller then replays the batches from `end_offset` on."""
        for offset in list(self._snapshots):
            if offset > log_end_offset or offset <= log_start_offset:
                self._remove_snapshot(offset)
        if log_end_offset == self.end_offset:
            self.log_start_advanced(log_start_offset)
            return
        self._clear()
        self._load(log_start_offset, now_ms)

    def load_earlier(self, log_start_offset: int, end_offset: int, now_ms: int) -> "ProducerState":
        """Return the producers of the newest snapshot up to `end_offset`, for `replace` after a replay of the rest."""
        snapshots = [offset for offset in self._snapshots if log_start_offset < offset <= end_offset]
        earlier = ProducerState(self._fs, self.directory, expiration_ms=self.expiration_ms, snapshots=snapshots)
        earlier._load(log_start_offset, now_ms)
        return earlier

    def replace(self, earlier: "ProducerState") -> None:
        """Replace the state by that of an earlier offset, to which the log is truncated; remove later snapshots."""
        self._share_producers(earlier)
        self._set_end_back(earlier.end_offset, earlier.last_snapshot_offset)

    def revert_to(self, end_offset: int) -> None:
        """Set `end_offset` back to the end of the last batch, and remove the snapshots after it.

        If it raises OSError, only their files remain.
        """
        earlier = [offset for offset in self._snapshots if offset <= end_offset]
        self._set_end_back(end_offset, earlier[-1] if earlier else 0)

    def _set_end_back(self, end_offset: int, last_snapshot_offset: int) -> None:
        self.end_offset = end_offset
        self.last_snapshot_offset = last_snapshot_offset
        if self._unsynced_snapshot > end_offset:
            self._unsynced_snapshot = NO_OFFSET
        for offset in [one for one in self._snapshots if one > end_offset]:
            self._remove_snapshot(offset)

    def truncate_fully(self, offset: int) -> None:
        """Remove all producers and snapshots; the log now starts and ends at `offset`."""
        self._clear()
        for snapshot in list(self._snapshots):
            self._remove_snapshot(snapshot)
        self.last_snapshot_offset = 0
        self.end_offset = offset

    def forget_snapshot(self, offset: int) -> str | None:
        """Remove the snapshot of a deleted segment from the list, if it has one; return the name of the file."""
        if offset not in self._snapshots:
            return None
        self._snapshots.remove(offset)
        return file_name(offset, SNAPSHOT_SUFFIX)

    def _load(self, log_start_offset: int, now_ms: int) -> None:
        while self._snapshots:
            offset = self._snapshots[-1]
            try:
                records = decode_snapshot(self._fs.read_bytes(self.snapshot_path(offset)))
            except (CorruptSnapshotError, FileNotFoundError) as error:
                logger.warning("removing producer snapshot file=%s why=%s", self.snapshot_path(offset), error)
                self._remove_snapshot(offset)
                continue
            self.producers.load(records)
            self._largest_loaded_id = max(self._largest_loaded_id, max(self.producers, default=-1))
            self._ongoing = {fields[-1] for fields in RECORD.iter_unpack(records) if fields[-1] >= 0}
            self._ongoing_starts = sorted(self._ongoing)
            self.remove_expired(now_ms, len(self.producers), len(self.producers))
            self.last_snapshot_offset = self.end_offset = offset
            self._find_first_unstable()
            return
        self.last_snapshot_offset = self.end_offset = log_start_offset

    def _clear(self) -> None:
        self.producers.clear()
        self._ongoing.clear()
        self._ongoing_starts.clear()
        self._unreplicated.clear()
        self.first_unstable_offset = NO_OFFSET

    def _list_snapshots(self) -> list[int]:
        if not self._fs.is_directory(self.directory):
            return []
        names = self._fs.list_names(self.directory)
        stems = [name[: -len(SNAPSHOT_SUFFIX)] for name in names if name.endswith(SNAPSHOT_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _remove_snapshot(self, offset: int) -> None:
        self._snapshots.remove(offset)
        remove_if_exists(self._fs, self.snapshot_path(offset))


def _old_epoch(entry: ProducerEntry, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {entry.producer_id} has epoch {entry.epoch}, the batch {epoch}",
    )
