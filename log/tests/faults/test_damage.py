"""Damaged files of a log are repaired, or refused with a message that has the file's name, but never served.

Each case has the damage, the kind of the last stop, the logged message, and the records that remain.
"""

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest

from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.settings import LogManagerSettings
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import DamagedLogError
from odradek.log.storage import checkpoints
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import DIRECTORY, NOW_MS, append, config, idempotent, open_log, read_all
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.record_batch import crc_is_valid
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import ControlType, build_batch, build_control_batch, iter_records

SMALL = config(segment_index_bytes=600, internal_segment_bytes=500, index_interval_bytes=0)
COUNT = 40


class StoredLog:
    """A log of several segments with a producer, timestamps, two leader epochs and an aborted transaction."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem(now_ms=NOW_MS)
        log = open_log(self.fs, SMALL)
        for number in range(COUNT):
            append(log, idempotent(number, timestamp=NOW_MS + number), leader_epoch=number // 25)
            if number == 12:
                data = build_batch(
                    [(NOW_MS, b"k", b"aborted", ())],
                    producer_id=9, producer_epoch=0, base_sequence=0, transactional=True,
                )  # fmt: skip
                marker = build_control_batch(
                    ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS
                )
                append(log, memoryview(data))
                self.marker = log.log_end_offset
                log.append_as_leader(memoryview(marker), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
        log.close(NOW_MS)
        names = self.fs.list_names(DIRECTORY)
        self.txnindex = next(f"{DIRECTORY}/{name}" for name in names if name.endswith(".txnindex"))
        self.end = log.log_end_offset
        self.expected = read_all(log)
        self.segments = list(log.segments)
        self.epochs = log.leader_epochs.entries

    def path(self, number: int, kind: str) -> str:
        return f"{DIRECTORY}/{self.segments[number].base_offset:020d}{kind}"

    def write(self, path: str, position: int, data: bytes) -> None:
        self.fs.open(path, create=True).write_pieces(position, [data], len(data))

    def position(self, number: int, batch: int) -> int:
        """Return the position of a batch in its segment."""
        return [position for position, _ in self.segments[number].headers()][batch]

    def copy(self, old: str, new: str) -> None:
        data = self.fs.read_bytes(old)
        self.fs.open(new, create=True).truncate(0)
        self.write(new, 0, data)


Damage = Callable[[StoredLog], object]
FindOffset = Callable[[StoredLog], int]


class Case(NamedTuple):
    """`keep` is the offset from which on records are lost; `point` and `start` are the offsets in the checkpoints."""

    damage: Damage
    message: str
    is_clean: bool = True
    keep: FindOffset | None = None
    point: FindOffset = lambda stored: stored.end
    start: FindOffset = lambda stored: 0


def truncated(number: int, kind: str, size: int) -> Damage:
    return lambda stored: stored.fs.open(stored.path(number, kind)).truncate(size)


def grown(number: int, kind: str, size: int) -> Damage:
    def damage(stored: StoredLog):
        path = stored.path(number, kind)
        stored.fs.open(path).truncate(stored.fs.size_bytes(path) + size)

    return damage


def removed(number: int, kind: str) -> Damage:
    return lambda stored: stored.fs.remove(stored.path(number, kind))


def overwritten(number: int, kind: str, position: int, data: bytes) -> Damage:
    return lambda stored: stored.write(stored.path(number, kind), position, data)


def changed_txnindex(at: int, value: FindOffset) -> Damage:
    return lambda stored: stored.write(stored.txnindex, at, struct.pack(">q", value(stored)))


def flipped(number: int, batch: int, at: int) -> Damage:
    """One bit of a batch."""

    def damage(stored: StoredLog):
        path, position = stored.path(number, ".log"), stored.position(number, batch) + at
        [byte] = stored.fs.open(path).pread(position, 1)
        stored.write(path, position, bytes([byte ^ 1]))

    return damage


def without_snapshots(stored: StoredLog):
    for name in stored.fs.list_names(DIRECTORY):
        if name.endswith(".snapshot"):
            stored.fs.remove(f"{DIRECTORY}/{name}")


def corrupt_snapshots(stored: StoredLog):
    for name in stored.fs.list_names(DIRECTORY):
        if name.endswith(".snapshot"):
            stored.write(f"{DIRECTORY}/{name}", 8, b"\xff")


def interrupted_roll(stored: StoredLog):
    """The new segment has its file, its index has its full size, and nothing was written to either."""
    stored.write(f"{DIRECTORY}/{stored.end:020d}.log", 0, b"")
    stored.fs.open(f"{DIRECTORY}/{stored.end:020d}.index", create=True).truncate(600)
    stored.write(f"{DIRECTORY}/{stored.end:020d}.timeindex.tmp", 0, b"half")


def interrupted_deletion(stored: StoredLog):
    """Of the oldest segment some files are renamed, the others are not."""
    stored.fs.rename(stored.path(0, ".log"), stored.path(0, ".log") + ".deleted")


def interrupted_compaction(stored: StoredLog):
    """An unfinished replacement, and behind it a swap file of the same change."""
    stored.copy(stored.path(1, ".log"), stored.path(1, ".log") + ".cleaned")
    stored.copy(stored.path(2, ".log"), stored.path(2, ".log") + ".swap")


def interrupted_swap(stored: StoredLog):
    """A finished replacement of a segment that is only partly removed."""
    for kind in (".log", ".index", ".timeindex"):
        stored.copy(stored.path(1, kind), stored.path(1, kind) + ".swap")
    stored.fs.remove(stored.path(1, ".log"))


def base(number: int) -> FindOffset:
    return lambda stored: stored.segments[number].base_offset


def up_to(number: int, batch: int = 0) -> FindOffset:
    def keep(stored: StoredLog):
        headers = [header for _, header in stored.segments[number].headers()]
        return headers[batch].base_offset

    return keep


MIDDLE = 2
CASES = {
    # Indexes, after a stop that was clean
    "index is missing": Case(removed(MIDDLE, ".index"), r"missing index file=\S+\.index"),
    "timeindex is missing": Case(removed(MIDDLE, ".timeindex"), r"missing index file=\S+\.timeindex"),
    "index without a log": Case(
        lambda stored: stored.write(f"{DIRECTORY}/{777:020d}.index", 0, b"12345678"), r"index without log .*777\.index"
    ),
    "index leads nowhere": Case(
        overwritten(MIDDLE, ".index", 0, struct.pack(">ii", 0, 999_999)), r"index is damaged.*file=\S+\.index"
    ),
    "index leads into a batch": Case(
        overwritten(MIDDLE, ".index", 0, struct.pack(">ii", 0, 13)), r"index is damaged.*file=\S+\.index"
    ),
    "index leads to the wrong batch": Case(
        lambda stored: stored.write(
            stored.path(MIDDLE, ".index"), 0, struct.pack(">ii", 0, stored.position(MIDDLE, -1))
        ),
        r"index is damaged.*file=\S+\.index",
    ),
    "index of the last segment leads nowhere": Case(
        overwritten(-1, ".index", 0, struct.pack(">ii", 1, 1 << 30)), r"index is damaged.*file=\S+\.index"
    ),
    "index is full of zeros": Case(grown(MIDDLE, ".index", 400), ""),
    "index is empty": Case(truncated(MIDDLE, ".index", 0), ""),
    "index is cut": Case(truncated(MIDDLE, ".index", 11), ""),
    "timeindex is empty": Case(truncated(MIDDLE, ".timeindex", 0), r"index is damaged.*file=\S+index"),
    "timeindex is cut": Case(truncated(MIDDLE, ".timeindex", 17), r"index is damaged.*file=\S+index"),
    "timeindex leads nowhere": Case(
        overwritten(MIDDLE, ".timeindex", 0, struct.pack(">qi", NOW_MS - 9, 1)), r"index is damaged.*file=\S+index"
    ),
    "timeindex is full of zeros": Case(grown(MIDDLE, ".timeindex", 240), r"index is damaged.*file=\S+index"),
    "txnindex is cut": Case(
        lambda stored: stored.fs.open(stored.txnindex).truncate(20), r"its transaction index: \S+\.txnindex: size 20 "
    ),
    "txnindex has another version": Case(
        lambda stored: stored.write(stored.txnindex, 0, b"\x7f"),
        r"transaction index: \S+\.txnindex: unknown entry version",
    ),
    **{
        f"txnindex has a wrong {what}": Case(
            changed_txnindex(at, wrong),
            r"its transaction index: \S+\.txnindex: the log has no batches that match Aborted",
            is_clean=False, point=base(-1),
        )
        for what, at, wrong in (
            ("producer id", 2, lambda stored: 7),
            ("first offset", 10, lambda stored: stored.marker - 2),
            ("marker", 18, lambda stored: stored.marker - 1),
            ("last stable offset", 26, lambda stored: stored.marker),
            ("last stable offset behind it", 26, lambda stored: stored.marker + 2),
        )
    },
    # Segments, below the recovery point or not
    "length is too large": Case(flipped(MIDDLE, 1, 9), r"records are damaged.*\.log", keep=up_to(MIDDLE, 1)),
    "length is too small": Case(
        lambda stored: stored.write(stored.path(MIDDLE, ".log"), stored.position(MIDDLE, 1) + 8, bytes(4)),
        r"records are damaged.*\.log", keep=up_to(MIDDLE, 1),
    ),
    "batch fails its checksum": Case(
        flipped(MIDDLE, 1, 70),
        r"log truncated at its first bad byte file=\S+\.log at=\d+ why=a batch does not match its checksum",
        is_clean=False, point=lambda stored: 0, keep=up_to(MIDDLE, 1),
    ),
    "base offset is wrong": Case(
        flipped(MIDDLE, 1, 4), r"log truncated at its first bad byte file=\S+\.log .*why=a batch has offsets",
        is_clean=False, point=base(MIDDLE), keep=up_to(MIDDLE, 1),
    ),
    "batch has another format": Case(
        flipped(MIDDLE, 0, 16), r"file=\S+\.log at=0 why=a batch has magic 3",
        is_clean=False, point=base(1), keep=up_to(MIDDLE),
    ),
    "batch is cut off": Case(
        lambda stored: stored.fs.open(stored.path(-1, ".log")).truncate(stored.position(-1, -1) + 65),
        r"file=\S+\.log .*why=a batch is incomplete", is_clean=False, keep=up_to(-1, -1),
    ),
    "header is cut off": Case(
        lambda stored: stored.fs.open(stored.path(-1, ".log")).truncate(stored.position(-1, -1) + 20),
        r"file=\S+\.log .*why=a batch header is incomplete", is_clean=False, keep=up_to(-1, -1),
    ),
    "zeros at the end": Case(grown(-1, ".log", 5000), r"zeros .*file=\S+\.log at=\d+ bytes=\d+", is_clean=False),
    "zeros at the end after a clean stop": Case(grown(-1, ".log", 5000), r"zeros .*file=\S+\.log at=\d+ bytes=\d+"),
    "garbage at the end": Case(
        lambda stored: stored.write(stored.path(-1, ".log"), stored.segments[-1].size_bytes, b"garbage" * 30),
        r"log truncated at its first bad byte file=\S+\.log", is_clean=False,
    ),
    "segment lost its end": Case(
        lambda stored: stored.fs.open(stored.path(1, ".log")).truncate(stored.position(1, 1)),
        r"file=\S+\.log .*why=its end is missing", is_clean=False, point=base(1), keep=up_to(1, 1),
    ),
    # Wrong checkpoints
    "recovery point behind the end": Case(
        lambda stored: None, r"does not reach its recovery point directory=\S+ end=\d+ point=9999",
        point=lambda stored: 9999,
    ),
    "recovery point behind the end, unclean": Case(
        flipped(-1, 0, 70), r"does not reach its recovery point", is_clean=False, point=lambda stored: 9999,
        keep=up_to(-1, 0),
    ),
    "epochs are garbage": Case(
        lambda stored: stored.write(f"{DIRECTORY}/leader-epoch-checkpoint", 0, b"xx"),
        r"rebuilding leader epochs from the batches: \S+leader-epoch-checkpoint",
    ),
    "epochs behind the end": Case(
        lambda stored: checkpoints.write_leader_epochs(
            stored.fs, f"{DIRECTORY}/leader-epoch-checkpoint", [*stored.epochs, (7, 5000)], sync=False
        ),
        "",
    ),
    # Snapshots
    "no snapshot": Case(without_snapshots, r"no snapshot directory=\S+"),
    "snapshots are corrupt": Case(corrupt_snapshots, r"removing producer snapshot file=\S+\.snapshot why=bad checksum"),
    "snapshots are corrupt, unclean": Case(
        corrupt_snapshots, r"removing producer snapshot file=\S+\.snapshot", is_clean=False, point=base(-1)
    ),
    # Interrupted changes
    "roll": Case(interrupted_roll, r"removing incomplete file .*\.timeindex\.tmp", is_clean=False),
    "deletion": Case(interrupted_deletion, r"index without log .*\.index", is_clean=False, start=base(1)),
    "compaction": Case(interrupted_compaction, "", is_clean=False),
    "swap": Case(interrupted_swap, "", is_clean=False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_damage(case: Case, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    stored = StoredLog()
    keep = stored.end if case.keep is None else case.keep(stored)
    start, point = case.start(stored), case.point(stored)
    case.damage(stored)
    log = open_log(stored.fs, SMALL, is_clean=case.is_clean, recovery_point=point, log_start_offset=start)
    log.update_high_watermark(log.log_end_offset)
    expected = [(offset, value) for offset, value in stored.expected if start <= offset < keep]
    if log.log_end_offset > keep:
        # A part that a start does not scan is not cut: reads before the damage succeed, later ones are refused.
        assert read_until_refused(log) == expected
        assert log.failure is None
    else:
        assert log.log_end_offset == keep
        check_all(stored, log, expected)
    assert re.search(case.message, caplog.text), caplog.text
    if log.log_end_offset == keep:
        append(log, [b"next"], leader_epoch=2)
        again = open_log(stored.fs, SMALL, is_clean=False, recovery_point=log.recovery_point, log_start_offset=start)
        assert read_all(again) == [*expected, (keep, b"next")]


def check_all(stored: StoredLog, log: PartitionLog, expected: list[tuple[int, bytes | None]]) -> None:
    """Assert that every kind of lookup finds the expected records."""
    assert read_all(log) == expected
    producer = log.producer_state.producers.get(7)
    numbers = {offset: int(value) for offset, value in expected if value is not None and value.isdigit()}
    assert (producer.last_sequence if producer else -1) == max(numbers.values(), default=-1)
    for offset, value in expected:
        region = log.read(offset, 1, upper_offset=log.log_end_offset, at_least_one=True)
        assert value in region.read()
    for offset, number in numbers.items():
        found = run_steps(log.offset_for_timestamp(NOW_MS + number))
        assert found.offset == (0 if number == 0 else offset)
    assert log.leader_epochs.entries == [
        (epoch, max(first, log.log_start_offset)) for epoch, first in stored.epochs if first < log.log_end_offset
    ]
    if expected[-1][0] > stored.marker:
        region = log.read(stored.marker - 1, 10_000, upper_offset=log.log_end_offset, at_least_one=True)
        assert region is not None
        aborted = log.aborted_transactions(stored.marker - 1, region)
        assert [(entry.producer_id, entry.last_offset) for entry in aborted] == [(9, stored.marker)]


def read_until_refused(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        try:
            region = log.read(offset, 1, upper_offset=log.log_end_offset, at_least_one=True)
        except KafkaError as error:
            assert error.code == ErrorCode.CORRUPT_MESSAGE
            assert ".log" in (error.message or "")
            break
        data = region.read()
        if not crc_is_valid(data):
            break
        found += [(record.offset, record.value) for record in iter_records(data)]
        offset = found[-1][0] + 1
    return found


def test_a_flipped_byte_below_the_recovery_point_is_detected_by_the_checksum_only():
    """As in Apache Kafka: a start does not read the whole log, and clients reject a batch with a wrong checksum."""
    stored = StoredLog()
    flipped(MIDDLE, 1, 70)(stored)
    log = open_log(stored.fs, SMALL, recovery_point=stored.end)
    assert log.log_end_offset == stored.end
    log.update_high_watermark(stored.end)
    assert read_until_refused(log) == [(o, v) for o, v in stored.expected if o < up_to(MIDDLE, 1)(stored)]


@pytest.mark.parametrize("batch", range(5))
def test_no_record_is_served_at_a_wrong_offset_after_a_crash(batch: int) -> None:
    """The checksum of a batch does not cover its base offset: a batch after it shows that the offset is wrong."""
    large = config(internal_segment_bytes=100_000, index_interval_bytes=0)
    for bit in range(64):
        fs = MemoryFileSystem(now_ms=NOW_MS)
        log = open_log(fs, large)
        for number in range(6):
            append(log, [b"%d" % (2 * number), b"%d" % (2 * number + 1)], leader_epoch=number // 3)
        [segment] = log.segments
        position = [position for position, _ in segment.headers()][batch] + 7 - bit // 8
        log.close(NOW_MS)
        file = fs.open(segment.path(".log"))
        file.write_pieces(position, [bytes([file.pread(position, 1)[0] ^ 1 << bit % 8])], 1)
        again = open_log(fs, large, is_clean=False)
        assert read_all(again) == [(offset, b"%d" % offset) for offset in range(2 * batch)], bit
        assert again.leader_epochs.entries == [(epoch, start) for epoch, start in [(0, 0), (1, 6)] if start < 2 * batch]


def test_leader_epochs_are_correct_after_a_flipped_bit_and_a_crash() -> None:
    fs = MemoryFileSystem(now_ms=NOW_MS)
    log = open_log(fs, SMALL)
    for number in range(40):
        append(log, [b"%d" % number], leader_epoch=number // 8)
    expected = log.leader_epochs.entries
    log.close(NOW_MS)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    content = fs.read_bytes(path)
    assert len(expected) == 5
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        fs.open(path).write_pieces(0, [bytes(damaged)], len(damaged))
        log = open_log(fs, SMALL, is_clean=False, recovery_point=30)
        assert log.leader_epochs.entries == expected, bytes(damaged)
        assert checkpoints.read_leader_epochs(fs, path) == expected
        log.close(NOW_MS)


def test_a_wrong_log_start_removes_no_records():
    stored = StoredLog()
    with pytest.raises(DamagedLogError, match="its start in log-start-offset-checkpoint is 9999; correct that entry"):
        open_log(stored.fs, SMALL, recovery_point=stored.end, log_start_offset=9999)
    assert read_all(open_log(stored.fs, SMALL, recovery_point=stored.end)) == stored.expected


def opened(fs: MemoryFileSystem) -> LogManager:
    settings = LogManagerSettings(num_recovery_threads_per_data_dir=1)
    manager = LogManager(
        fs, ["/data", "/other"], LogConfig({}), lambda topic: None, 1, settings=settings,
        random_bytes=lambda count: bytes(count),
    )  # fmt: skip
    manager.open(NOW_MS)
    return manager


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_directory_whose_checkpoint_cannot_be_read_is_offline_and_reported(name, caplog):
    stored = StoredLog()
    opened(stored.fs).close(NOW_MS)
    stored.write(f"/data/{name}", 0, b"not a number")
    manager = opened(stored.fs)
    assert manager.online_directories == ["/other"]
    assert f"/data/{name}" in caplog.text


@pytest.mark.parametrize("damage", ["partition.metadata", "log-start-offset-checkpoint"])
def test_a_damaged_partition_alone_is_offline_and_reported(damage, caplog):
    stored = StoredLog()
    manager = opened(stored.fs)
    manager.create_log("other", 0, bytes(16), NOW_MS)
    manager.create_log("fine", 0, bytes(16), NOW_MS)
    directory = manager.get("other", 0).log_directory
    manager.close(NOW_MS)
    if damage == "partition.metadata":
        stored.write(f"{directory}/other-0/partition.metadata", 0, b"xx")
    else:
        checkpoints.write_offsets(stored.fs, f"{directory}/{damage}", {("other", 0): 77})
    caplog.clear()
    manager = opened(stored.fs)
    assert sorted(manager.online_directories) == ["/data", "/other"]
    assert manager.get("topic", 0) is not None
    assert manager.get("fine", 0) is not None
    with pytest.raises(KafkaError) as error:
        manager.get("other", 0)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"partition is not served log={directory}/other-0" in caplog.text
    assert damage in caplog.text
