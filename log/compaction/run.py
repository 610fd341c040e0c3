"""The worker's part of one compaction, which only reads and writes files: in a thread, or in a process.

First the last offset of each key in the dirty part is mapped. Then the log is rewritten, group of segments by group:
each into new files with the suffix .cleaned, complete and synced, with which the caller replaces the group.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from odradek.log.background.pacing import Pacer
from odradek.log.compaction.offset_map import OffsetMap
from odradek.log.compaction.rules import Filter, LastRecord, Transactions, iter_keys, open_records
from odradek.log.producers.table import RECORD
from odradek.log.segments.segment import Segment
from odradek.log.segments.segment_files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from odradek.log.segments.transaction_index import AbortedTransaction, TransactionIndex, read_growing
from odradek.log.storage.filesystem import FileSystem, remove_if_exists
from odradek.protocol.batches.record_batch import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    crc_is_valid,
    read_header,
)

_LEAST_READ_BYTES = 4096
_DECODED_AT_ONCE = 1000
# Limits the time of a single sync, in which the process reports no progress and other users of the disk wait.
_SYNC_BYTES = 64 << 20


class CompactionFailed(Exception):  # noqa: N818 - what happened, as seen by the log
    """The log cannot be compacted as it is; str has the reason."""


class Cancelled(Exception):  # noqa: N818 - not an error
    """The compaction was cancelled."""


class WorkerLost(Exception):  # noqa: N818 - as CompactionFailed
    """The compaction process exited; str has the status. The log is unchanged, and compaction can be retried."""


class WorkerStalled(WorkerLost):
    """The process made no progress and was killed. The log is unchanged, and compaction can be retried later."""


class Job(NamedTuple):
    """Description of a log to compact, in plain values.

    sources: (base offset, size in bytes) of the segments before `end_offset`, ascending
    all_bases: base offsets of all segments of the log: the marker of data in an early one may be in a late one
    unwritten_aborted: (base offset, encoded entries) of each segment whose transaction index lacks entries on the disk
    first_dirty_position: a batch of the segment that holds `first_dirty_offset` begins there, at that offset or before
    end_offset: where the range that is compacted ends
    dedupe_bytes, load_factor: memory for the keys, and how much of it may be used
    read_bytes: read in one go
    bytes_per_second: what may be read and written
    """

    directory: str
    sources: tuple[tuple[int, int], ...]
    all_bases: tuple[int, ...]
    unwritten_aborted: tuple[tuple[int, bytes], ...]
    first_dirty_offset: int
    first_dirty_position: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    segment_index_bytes: int
    dedupe_bytes: int
    load_factor: float
    read_bytes: int
    bytes_per_second: float

    @property
    def preallocated_bytes(self) -> int:
        """A SegmentConfig's: nothing else is appended to what compaction writes."""
        return 0


class Mapped(NamedTuple):
    """The last offset of the dirty part that is mapped, within the limit of memory, and its number of keys."""

    latest_offset: int
    keys: int


class Worker(Protocol):
    """Carries out compactions, one after the other. All but `cancel` and `close` block, and are called in a thread.

    `begin` and `write` raise OSError, CompactionFailed for a log that cannot be compacted, Cancelled, or WorkerLost.
    """

    def begin(self, job: Job) -> Mapped: ...

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        """Write what becomes of these neighbouring segments. Groups come in the order of offsets.

        `producers` is a RECORD for each producer of the log.
        """
        ...

    def cancel(self) -> None:
        """Have the call that is in progress end soon. In any thread."""
        ...

    def close(self) -> None:
        """It is not needed any more. In any thread, when no call is in progress."""
        ...


class LocalWorker:
    """A Worker in the calling thread, with any file system."""

    def __init__(self, fs: FileSystem, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._fs = fs
        self._monotonic = monotonic
        self._sleep = sleep
        self._is_cancelled = False
        self._run: CompactionRun | None = None

    def begin(self, job: Job) -> Mapped:
        pacer = Pacer(job.bytes_per_second, self._monotonic, self._sleep, self._check)
        self._run = CompactionRun(self._fs, job, pacer)
        with _plain_failures():
            return self._run.map_keys()

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        assert self._run is not None, "begin comes first"
        with _plain_failures():
            self._run.write(bases, producers)

    def _check(self) -> None:
        if self._is_cancelled:
            raise Cancelled

    def cancel(self) -> None:
        self._is_cancelled = True

    def close(self) -> None:
        self._run = None


@contextmanager
def _plain_failures() -> Iterator[None]:
    try:
        yield
    except (OSError, Cancelled):
        raise
    except Exception as error:
        raise CompactionFailed(f"{type(error).__name__}: {error}") from error


def remove_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove what an unfinished compaction left. Raises OSError."""
    for name in fs.list_names(directory):
        if name.endswith(CLEANED_SUFFIX):
            remove_if_exists(fs, f"{directory}/{name}")


class CompactionRun:
    """`map_keys`, then `write` for group after group. `pause(bytes)` is called for what was read and written."""

    def __init__(self, fs: FileSystem, job: Job, pause: Callable[[int], None]) -> None:
        self._fs = fs
        self._job = job
        self._pause = pause
        self._read_bytes = max(_LEAST_READ_BYTES, job.read_bytes)
        self._sizes = dict(job.sources)
        self._aborted: list[AbortedTransaction] = []
        self.offsets = OffsetMap(job.dedupe_bytes, job.load_factor)
        self._transactions = Transactions(())
        self._filter: Filter | None = None

    def map_keys(self) -> Mapped:
        """Raises OSError, CorruptTransactionIndexError, InvalidRecordError, CompressionError."""
        job = self._job
        remove_cleaned(self._fs, job.directory)
        self._aborted = self._read_aborted()
        self._transactions = Transactions(self._aborted)
        self._map(Transactions(entry for entry in self._aborted if entry.last_offset >= job.first_dirty_offset))
        self._filter = Filter(
            self.offsets,
            self._transactions,
            upper_offset=job.end_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
        )
        return Mapped(self.offsets.latest_offset, len(self.offsets))

    def _read_aborted(self) -> list[AbortedTransaction]:
        """Aborted transactions of the whole log: those on the disk, and those the job carries."""
        job, aborted = self._job, []
        # The log appends to the index of its last segment meanwhile.
        unwritten = {job.all_bases[-1]: b"", **dict(job.unwritten_aborted)}
        for base_offset in job.all_bases:
            path = self._path(base_offset, TRANSACTION_INDEX_SUFFIX)
            if base_offset in unwritten:
                aborted += read_growing(self._fs, path, unwritten[base_offset])
            else:
                aborted += TransactionIndex(self._fs, path).entries()
        return aborted

    def _map(self, transactions: Transactions) -> None:
        """Up to the first key that memory does not hold."""
        start_offset, offsets = self._job.first_dirty_offset, self.offsets
        bases = [base_offset for base_offset, _ in self._job.sources]
        first = max((index for index, base in enumerate(bases) if base <= start_offset), default=0)
        for index in range(first, len(bases)):
            position = self._job.first_dirty_position if index == first else 0
            for header, batch in self._batches(bases[index], position):
                self._pause(header.size_bytes)
                if header.last_offset < start_offset:
                    continue
                if header.is_control:
                    transactions.is_spent(header, batch)
                elif not transactions.is_aborted(header) and not self._map_batch(header, batch):
                    return
                offsets.latest_offset = header.last_offset
            offsets.latest_offset = (bases[index + 1] if index + 1 < len(bases) else self._job.end_offset) - 1

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Return whether there was room; if not, the map ends with the last record that there was room for."""
        start_offset, offsets = self._job.first_dirty_offset, self.offsets
        data, position = open_records(header, batch)
        for _, _, _, offset_delta, key, _ in iter_keys(data, position, header.record_count):
            offset = header.base_offset + offset_delta
            if key is None or offset < start_offset:
                continue
            if offsets.is_full:
                return False
            offsets.put(key, offset)
            offsets.latest_offset = offset
        return True

    def write(self, bases: Iterable[int], producers: bytes) -> None:
        """`producers`: as they are now; a batch may have become the last one only since the start."""
        decide, job = self._filter, self._job
        assert decide is not None, "map_keys comes first"
        decide.last_records = self._last_records(producers)
        bases = list(bases)
        target = Segment(self._fs, job.directory, bases[0], job, now_ms=job.now_ms, fresh=True, suffix=CLEANED_SUFFIX)
        self._transactions.index = target.transaction_index
        synced_bytes = 0
        for base_offset in bases:
            for header, batch in self._batches(base_offset, 0):
                self._pause(header.size_bytes)
                result = decide.apply(header, batch)
                if result is not None:
                    kept, data = result
                    target.append((data,), kept.size_bytes, kept.last_offset, kept.max_timestamp)
                    self._pause(kept.size_bytes)
                    if target.size_bytes - synced_bytes >= _SYNC_BYTES:
                        target.file.sync()
                        synced_bytes = target.size_bytes
        target.seal()
        target.file.sync()
        for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            self._fs.sync_path(target.path(kind))
        self._fs.set_modified_ms(target.path(LOG_SUFFIX), self._fs.modified_ms(self._path(bases[-1], LOG_SUFFIX)))
        self._pause(0)

    def _last_records(self, producers: bytes) -> dict[int, LastRecord]:
        found: dict[int, LastRecord] = {}
        for number, (producer_id, epoch, _, offset, *_) in enumerate(RECORD.iter_unpack(producers)):
            found[producer_id] = LastRecord(offset, epoch)
            if number % _DECODED_AT_ONCE == 0:
                self._pause(0)
        return found

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._job.directory}/{file_name(base_offset, suffix)}"

    def _batches(self, base_offset: int, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment from a position on. Raises InvalidRecordError, OSError."""
        path = self._path(base_offset, LOG_SUFFIX)
        file, end = self._fs.open(path), self._sizes[base_offset]
        chunk, chunk_start = memoryview(b""), position
        while position < end:
            at = position - chunk_start
            if at + RECORD_BATCH_OVERHEAD > len(chunk):
                chunk, chunk_start, at = memoryview(file.pread(position, self._read_bytes)), position, 0
                if len(chunk) < RECORD_BATCH_OVERHEAD:
                    raise InvalidRecordError(f"{path} ends in the midst of a batch at position {position}")
            header = read_header(chunk, at)
            size_bytes = header.size_bytes
            if size_bytes < RECORD_BATCH_OVERHEAD or position + size_bytes > end:
                raise InvalidRecordError(f"bad batch at position {position} of {path}")
            if at + size_bytes > len(chunk):
                chunk = memoryview(file.pread(position, max(size_bytes, self._read_bytes)))
                chunk_start, at = position, 0
            batch = chunk[at : at + size_bytes]
            if not crc_is_valid(batch):
                raise InvalidRecordError(f"bad batch at position {position} of {path}")
            yield header, batch
            position += size_bytes
