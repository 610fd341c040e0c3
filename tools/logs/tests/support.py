"""A log directory in memory with one partition, for the tests of the tools that read it."""

from collections.abc import Callable

from odradek.log.partition_log import PartitionLog
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import (
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MetaProperties,
)
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import DIRECTORY, NOW_MS, append, config, idempotent, open_log
from odradek.log.validation.batch import Origin
from odradek.protocol.records import ControlType, build_batch, build_control_batch
from odradek.tools.logs.findings import Finding, Report
from odradek.tools.logs.partition_state import VerifyOptions
from odradek.tools.logs.verify import VerifyTotals, select, verify

SMALL = config(segment_index_bytes=600, internal_segment_bytes=500, index_interval_bytes=0)
COUNT = 43
TOPIC_ID = bytes(range(16))
KEY = ("topic", 0)


def append_aborted(log: PartitionLog, base_sequence: int = 0) -> None:
    """Append a transaction and its abort marker."""
    data = build_batch(
        [(NOW_MS, b"k", b"aborted", ())],
        producer_id=9,
        producer_epoch=0,
        base_sequence=base_sequence,
        transactional=True,
    )
    marker = build_control_batch(
        ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS
    )
    append(log, memoryview(data), leader_epoch=log.latest_epoch)
    log.append_as_leader(memoryview(marker), leader_epoch=log.latest_epoch, now_ms=NOW_MS, origin=Origin.COORDINATOR)


class StoredDirectory:
    """A partition of several segments with a producer, timestamps, two leader epochs and an aborted transaction.

    Its broker has stopped cleanly. `bases`: the base offsets of the segments
    """

    def __init__(self, directory: str = DIRECTORY, fs: FileSystem | None = None) -> None:
        self.fs: FileSystem = MemoryFileSystem(now_ms=NOW_MS) if fs is None else fs
        self.directory = directory
        self.root = directory.rpartition("/")[0]
        log = open_log(self.fs, SMALL, directory=directory)
        for number in range(COUNT):
            append(log, idempotent(number, timestamp=NOW_MS + number), leader_epoch=number // 25)
            if number == 12:
                append_aborted(log)
        log.update_high_watermark(log.log_end_offset)
        log.close(NOW_MS)
        self.end = log.log_end_offset
        self.bases = [segment.base_offset for segment in log.segments]
        self.positions = [[position for position, _ in segment.headers()] for segment in log.segments]
        meta = MetaProperties(1, "cluster", 1, self.root.encode().rjust(16, b"\0")[-16:], {})
        checkpoints.write_meta_properties(self.fs, self.root, meta)
        checkpoints.write_partition_metadata(self.fs, directory, TOPIC_ID)
        self.set_offset(RECOVERY_POINTS_FILE, self.end)
        self.set_offset(HIGH_WATERMARKS_FILE, self.end)
        self.set_offset(LOG_START_OFFSETS_FILE, 0)
        checkpoints.write_clean_shutdown(self.fs, self.root)

    def set_offset(self, name: str, offset: int) -> None:
        checkpoints.write_offsets(self.fs, f"{self.root}/{name}", {KEY: offset})

    def mark_unclean(self) -> None:
        """Make the last stop a crash: the recovery point is the base of the last segment."""
        checkpoints.remove_clean_shutdown(self.fs, self.root)
        self.set_offset(RECOVERY_POINTS_FILE, self.bases[-1])

    def path(self, number: int, kind: str) -> str:
        return f"{self.directory}/{self.bases[number]:020d}{kind}"

    def txnindex(self) -> str:
        names = self.fs.list_names(self.directory)
        return next(f"{self.directory}/{name}" for name in names if name.endswith(".txnindex"))

    def read(self, path: str) -> bytearray:
        return bytearray(self.fs.read_bytes(path))

    def write(self, path: str, data: bytes | bytearray) -> None:
        file = self.fs.open(path, create=True)
        file.truncate(0)
        file.write_pieces(0, [data], len(data))

    def change(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file. A negative position counts from its end."""
        size_bytes = self.fs.size_bytes(path)
        self.fs.open(path).write_pieces(position % (size_bytes + 1), [data], len(data))

    def flip(self, number: int, batch: int, at: int) -> None:
        """Flip one bit of a batch."""
        path, position = self.path(number, ".log"), self.positions[number][batch] + at
        self.change(path, position, bytes([self.read(path)[position] ^ 1]))

    def _count_changes(self) -> int:
        return self.fs.operations if isinstance(self.fs, MemoryFileSystem) else 0

    def verify(self, *paths: str, check_records: bool = True) -> tuple[list[Finding], VerifyTotals]:
        """Verify paths, by default the log directory. The file system remains as it is."""
        found: list[Finding] = []
        changes = self._count_changes()
        selections = [select(self.fs, path, lambda each: True) for path in paths or (self.root,)]
        totals = verify(self.fs, selections, VerifyOptions(check_records=check_records), Report(found.append))
        assert self._count_changes() == changes, "a verification changes nothing"
        return found, totals


Damage = Callable[[StoredDirectory], object]


def appended(number: int, kind: str, data: bytes) -> Damage:
    def damage(stored: StoredDirectory) -> None:
        path = stored.path(number, kind)
        stored.write(path, stored.read(path) + data)

    return damage


def removed(number: int, *kinds: str) -> Damage:
    def damage(stored: StoredDirectory) -> None:
        for kind in kinds:
            stored.fs.remove(stored.path(number, kind))

    return damage
