"""The worker's part of one compaction, which reads and writes files only, in a thread or in a process.

It first maps the last offset of each key in the dirty part. Then it rewrites one group of segments after the other into
files with the suffix .cleaned. These are complete and synced when the caller replaces the group with them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from odradek.log.background.pacing import Pacer
from odradek.log.compaction.offset_map import OffsetMap
from odradek.log.compaction.rules import BatchFilter, CleanedTransactions, LastRecord, iter_keys, open_records
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

_MIN_READ_BYTES = 4096
_PRODUCERS_PER_CHECK = 1000
# Limits the duration of a sync, during which the process sends no heartbeat and other users of the disk wait.
_SYNC_BYTES = 64 << 20


class CompactionFailed(Exception):  # noqa: N818 - a result of a compaction
    """The log cannot be compacted, because its records cannot be read; the message contains the reason."""


class Cancelled(Exception):  # noqa: N818 - not an error
    """The compaction was cancelled."""


class WorkerLost(Exception):  # noqa: N818 - a result of a compaction
    """The compaction process ended. The log is unchanged, and compaction can be retried."""


class WorkerStalled(WorkerLost):
    """The process made no progress and was killed. The log is unchanged, and compaction can be retried later."""


class CompactionJob(NamedTuple):
    """Description of a compaction, in values that `marshal` supports.

    sources: (base offset, size in bytes) of the segments below `end_offset`, ascending
    all_bases: base offsets of all segments of the log; the marker of a transaction may be in any later segment
    unwritten_aborted: (base offset, encoded entries) of each transaction index whose file lacks entries
    first_dirty_position: position of a batch at or before `first_dirty_offset`, in the segment that contains the offset
    end_offset: end of the range to compact
    dedupe_bytes, load_factor: memory for the offset map, and the share of it to use
    read_bytes: size of a read
    bytes_per_second: limit of the I/O rate
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
        """Implement SegmentConfig: cleaned segments are not preallocated."""
        return 0


class MappedKeys(NamedTuple):
    """The last offset that the offset map covers, within its memory limit, and its number of keys."""

    latest_offset: int
    keys: int


class Worker(Protocol):
    """Carries out compactions, one after the other. `begin` and `write` block, and are called in a thread.

    They raise OSError, CompactionFailed for a log that cannot be compacted, Cancelled, or WorkerLost.
    """

    def begin(self, job: CompactionJob) -> MappedKeys:
        """Start a compaction: map the keys of the dirty part."""
        ...

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        """Write the cleaned segment of a group of adjacent segments. Groups are passed in the order of offsets.

        `producers` contains one RECORD per producer of the log.
        """
        ...

    def cancel(self) -> None:
        """Make the call in progress end soon. Called in any thread."""
        ...

    def close(self) -> None:
        """Release the worker's resources. Called in any thread, when no call is in progress."""
        ...


class LocalWorker:
    """A Worker that runs in the calling thread, with any file system."""

    def __init__(self, fs: FileSystem, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._fs = fs
        self._monotonic = monotonic
        self._sleep = sleep
        self._is_cancelled = False
        self._run: CompactionRun | None = None

    def begin(self, job: CompactionJob) -> MappedKeys:
        pacer = Pacer(job.bytes_per_second, self._monotonic, self._sleep, self._check)
        self._run = CompactionRun(self._fs, job, pacer)
        with _wrapping_errors():
            return self._run.map_keys()

    def write(self, bases: tuple[int, ...], producers: bytes) -> None:
        assert self._run is not None, "begin must be called first"
        with _wrapping_errors():
            self._run.write(bases, producers)

    def _check(self) -> None:
        if self._is_cancelled:
            raise Cancelled

    def cancel(self) -> None:
        self._is_cancelled = True

    def close(self) -> None:
        self._run = None


@contextmanager
def _wrapping_errors() -> Iterator[None]:
    """Raise CompactionFailed in place of any exception except OSError and Cancelled."""
    try:
        yield
    except (OSError, Cancelled):
        raise
    except Exception as error:
        raise CompactionFailed(f"{type(error).__name__}: {error}") from error


def remove_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove the .cleaned files of an unfinished compaction. Raises OSError."""
    for name in fs.list_names(directory):
        if name.endswith(CLEANED_SUFFIX):
            remove_if_exists(fs, f"{directory}/{name}")


class CompactionRun:
    """A compaction: `map_keys`, then `write` for each group. `pause(size_bytes)` is called for each read and write."""

    def __init__(self, fs: FileSystem, job: CompactionJob, pause: Callable[[int], None]) -> None:
        self._fs = fs
        self._job = job
        self._pause = pause
        self._read_bytes = max(_MIN_READ_BYTES, job.read_bytes)
        self._sizes = dict(job.sources)
        self._aborted: list[AbortedTransaction] = []
        self.offsets = OffsetMap(job.dedupe_bytes, job.load_factor)
        self._transactions = CleanedTransactions(())
        self._filter: BatchFilter | None = None

    def map_keys(self) -> MappedKeys:
        """Map the last offset of each key in the dirty part.

        Raises OSError, CorruptTransactionIndexError, InvalidRecordError, CompressionError.
        """
        job = self._job
        remove_cleaned(self._fs, job.directory)
        self._aborted = self._read_aborted()
        self._transactions = CleanedTransactions(self._aborted)
        self._map(CleanedTransactions(entry for entry in self._aborted if entry.last_offset >= job.first_dirty_offset))
        self._filter = BatchFilter(
            self.offsets,
            self._transactions,
            upper_offset=job.end_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
        )
        return MappedKeys(self.offsets.latest_offset, len(self.offsets))

    def _read_aborted(self) -> list[AbortedTransaction]:
        """Return the aborted transactions of the whole log: the entries on the disk and those in the job."""
        job, aborted = self._job, []
        # The log may append to the index of its last segment during the read.
        unwritten = {job.all_bases[-1]: b"", **dict(job.unwritten_aborted)}
        for base_offset in job.all_bases:
            path = self._path(base_offset, TRANSACTION_INDEX_SUFFIX)
            if base_offset in unwritten:
                aborted += read_growing(self._fs, path, unwritten[base_offset])
            else:
                aborted += TransactionIndex(self._fs, path).entries()
        return aborted

    def _map(self, transactions: CleanedTransactions) -> None:
        """Fill the offset map, up to the end of the range or until the map is full."""
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
                    transactions.is_marker_removable(header, batch)
                elif not transactions.is_aborted(header) and not self._map_batch(header, batch):
                    return
                offsets.latest_offset = header.last_offset
            offsets.latest_offset = (bases[index + 1] if index + 1 < len(bases) else self._job.end_offset) - 1

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Add the keys of a batch. Return False if the map is full; it then ends with the last record that fit."""
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
        """Write the cleaned segment of a group (see `Worker.write`).

        `producers` is the current state: since the start of the compaction other batches have become producers' last.
        """
        batch_filter, job = self._filter, self._job
        assert batch_filter is not None, "map_keys must be called first"
        batch_filter.last_records = self._last_records(producers)
        bases = list(bases)
        cleaned = Segment(self._fs, job.directory, bases[0], job, now_ms=job.now_ms, fresh=True, suffix=CLEANED_SUFFIX)
        self._transactions.index = cleaned.transaction_index
        synced_bytes = 0
        for base_offset in bases:
            for header, batch in self._batches(base_offset, 0):
                self._pause(header.size_bytes)
                retained = batch_filter.apply(header, batch)
                if retained is not None:
                    header, data = retained
                    cleaned.append((data,), header.size_bytes, header.last_offset, header.max_timestamp)
                    self._pause(header.size_bytes)
                    if cleaned.size_bytes - synced_bytes >= _SYNC_BYTES:
                        cleaned.file.sync()
                        synced_bytes = cleaned.size_bytes
        cleaned.seal()
        cleaned.file.sync()
        for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            self._fs.sync_path(cleaned.path(kind))
        self._fs.set_modified_ms(cleaned.path(LOG_SUFFIX), self._fs.modified_ms(self._path(bases[-1], LOG_SUFFIX)))
        self._pause(0)

    def _last_records(self, producers: bytes) -> dict[int, LastRecord]:
        last_records: dict[int, LastRecord] = {}
        for number, (producer_id, epoch, _, offset, *_) in enumerate(RECORD.iter_unpack(producers)):
            last_records[producer_id] = LastRecord(offset, epoch)
            if number % _PRODUCERS_PER_CHECK == 0:
                self._pause(0)
        return last_records

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._job.directory}/{file_name(base_offset, suffix)}"

    def _batches(self, base_offset: int, position: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches of a segment from a position on. Raises InvalidRecordError, OSError."""
        path = self._path(base_offset, LOG_SUFFIX)
        file, end = self._fs.open(path), self._sizes[base_offset]
        chunk, chunk_start = memoryview(b""), position
        while position < end:
            at = position - chunk_start
            if at + RECORD_BATCH_OVERHEAD > len(chunk):
                chunk, chunk_start, at = memoryview(file.pread(position, self._read_bytes)), position, 0
                if len(chunk) < RECORD_BATCH_OVERHEAD:
                    raise InvalidRecordError(f"{path} ends with an incomplete batch at position {position}")
            header = read_header(chunk, at)
            size_bytes = header.size_bytes
            if size_bytes < RECORD_BATCH_OVERHEAD or position + size_bytes > end:
                raise InvalidRecordError(f"batch at position {position} of {path} has an invalid length {size_bytes}")
            if at + size_bytes > len(chunk):
                chunk = memoryview(file.pread(position, max(size_bytes, self._read_bytes)))
                chunk_start, at = position, 0
            batch = chunk[at : at + size_bytes]
            if not crc_is_valid(batch):
                raise InvalidRecordError(f"batch at position {position} of {path} does not match its checksum")
            yield header, batch
            position += size_bytes
