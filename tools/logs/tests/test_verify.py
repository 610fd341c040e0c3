"""`log verify` reports each kind of damage with its file, and nothing for intact directories; it changes nothing."""

import struct
from collections.abc import Callable
from typing import NamedTuple

import pytest

from odradek.log.producers.snapshots import decode_snapshot, encode_snapshot
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSETS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import NOW_MS, append, batch, config, misnumbered, open_log
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.records import Codec
from odradek.tools.logs.findings import MAX_REPORTED, Finding, Report, Severity
from odradek.tools.logs.partition_state import VerifyOptions
from odradek.tools.logs.tests.support import COUNT, Damage, StoredDirectory, appended, removed
from odradek.tools.logs.verify import NotALogError, select, verify

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def test_an_intact_directory_has_no_findings():
    stored = StoredDirectory()
    found, totals = stored.verify()
    assert found == []
    assert totals.partitions == 1
    assert totals.records == COUNT + 2
    size = sum(stored.fs.size_bytes(stored.path(n, ".log")) for n in range(len(stored.bases)))
    assert totals.size_bytes == size


def test_a_partition_and_a_crashed_directory_have_no_errors():
    stored = StoredDirectory()
    assert stored.verify(stored.directory)[0] == []
    stored.mark_unclean()
    found, _ = stored.verify()
    assert [(each.severity, each.check) for each in found] == [(NOTE, "state")]


class Case(NamedTuple):
    """`file` ends the path of the finding. `after_crash`: the directory is not cleanly stopped."""

    damage: Damage
    severity: Severity
    check: str
    file: str
    problem: str = ""
    after_crash: bool = False


def rewritten(number: int, batch_number: int, at: int, data: bytes) -> Damage:
    """A field of a batch's header, with a new checksum."""

    def damage(stored: StoredDirectory) -> None:
        path, position = stored.path(number, ".log"), stored.positions[number][batch_number]
        content = stored.read(path)
        content[position + at : position + at + len(data)] = data
        [length] = struct.unpack_from(">i", content, position + 8)
        crc = crc32c(content[position + 21 : position + 12 + length])
        content[position + 17 : position + 21] = struct.pack(">I", crc)
        stored.write(path, content)

    return damage


def truncated(number: int, kind: str, less: int) -> Damage:
    def damage(stored: StoredDirectory) -> None:
        path = stored.path(number, kind)
        stored.fs.open(path).truncate(stored.fs.size_bytes(path) - less)

    return damage


def changed(number: int, kind: str, position: int, data: bytes) -> Damage:
    return lambda stored: stored.change(stored.path(number, kind), position, data)


def offset(name: str, value: Callable[[StoredDirectory], int]) -> Damage:
    return lambda stored: stored.set_offset(name, value(stored))


def written(name: str, data: bytes) -> Damage:
    return lambda stored: stored.write(f"{stored.root}/{name}", data)


def in_partition(name: str, data: bytes) -> Damage:
    return lambda stored: stored.write(f"{stored.directory}/{name}", data)


def snapshot(change: Callable[[list[list[int]]], object]) -> Damage:
    """A producer in the second snapshot, with a valid checksum."""

    def damage(stored: StoredDirectory) -> None:
        path = stored.path(2, ".snapshot")
        layout = struct.Struct(">qhiqiqiq")
        producers = [list(each) for each in layout.iter_unpack(decode_snapshot(bytes(stored.read(path))))]
        change(producers)
        stored.write(path, encode_snapshot(b"".join(layout.pack(*each) for each in producers)))

    return damage


def set_field(producer: int, field: int, value: int) -> Callable[[list[list[int]]], None]:
    def change(producers: list[list[int]]) -> None:
        next(each for each in producers if each[0] == producer)[field] = value

    return change


HALF_BATCH = bytes(8) + struct.pack(">ii", 1000, 0) + b"\2" + bytes(50)
OTHER_ID = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"

CASES = {
    # Batches
    "a flipped bit": Case(lambda s: s.flip(1, 0, 65), ERROR, "batch", ".log", "does not match its checksum"),
    "a flipped bit in the last segment": Case(lambda s: s.flip(-1, 0, 65), ERROR, "batch", ".log", after_crash=True),
    "a wrong length": Case(changed(1, ".log", 8, b"\0\0\xff\0"), ERROR, "batch", ".log", "its length is wrong"),
    "a short length": Case(changed(1, ".log", 8, b"\0\0\0\5"), ERROR, "batch", ".log", "a batch has length 5"),
    "an old format": Case(changed(1, ".log", 16, b"\1"), ERROR, "batch", ".log", "message format v1"),
    "a torn header": Case(appended(-1, ".log", b"torn"), WARNING, "torn-tail", ".log", "header", after_crash=True),
    "a torn batch": Case(
        appended(-1, ".log", HALF_BATCH), WARNING, "torn-tail", ".log", "incomplete", after_crash=True
    ),
    "a bad last batch": Case(lambda s: s.flip(-1, -1, 65), WARNING, "torn-tail", ".log", after_crash=True),
    "a torn batch of a clean stop": Case(appended(-1, ".log", HALF_BATCH), ERROR, "torn-tail", ".log"),
    "a torn batch in an earlier segment": Case(truncated(0, ".log", 5), ERROR, "batch", ".log", after_crash=True),
    "trailing zeros": Case(appended(-1, ".log", bytes(5000)), WARNING, "zeros", ".log", "5000 bytes", after_crash=True),
    "a lost segment": Case(
        removed(2, ".log", ".index", ".timeindex", ".snapshot"), ERROR, "gap", ".log", "are missing"
    ),
    "a lower base offset": Case(
        changed(1, ".log", 0, bytes(8)), ERROR, "offsets", ".log", "a batch begins at offset 0"
    ),
    "a higher base offset": Case(
        changed(1, ".log", 0, struct.pack(">q", 900)), ERROR, "offsets", ".log", "a batch has offsets 900"
    ),
    "a wrong record count": Case(rewritten(1, 0, 57, struct.pack(">i", 9)), ERROR, "header", ".log", "9 records"),
    "no producer epoch": Case(rewritten(1, 0, 51, b"\xff\xff"), ERROR, "header", ".log", "has epoch -1"),
    "a wrong largest timestamp": Case(
        rewritten(1, 0, 35, struct.pack(">q", 5)), WARNING, "records", ".log", "largest timestamp 5"
    ),
    "a record that is too long": Case(rewritten(1, 0, 61, b"\x7e"), ERROR, "records", ".log", "cannot be read"),
    "a record with another offset": Case(rewritten(1, 0, 64, b"\2"), ERROR, "records", ".log", "offset delta 1"),
    "a wrong codec": Case(rewritten(1, 0, 21, b"\0\3"), ERROR, "records", ".log", "cannot be read"),
    "an earlier leader epoch": Case(
        rewritten(-1, 0, 12, bytes(4)), ERROR, "leader-epoch", ".log", "has leader epoch 0, an earlier one 1"
    ),
    # Indexes
    "an index entry inside of a batch": Case(changed(1, ".index", 4, struct.pack(">i", 75)), ERROR, "index", ".index"),
    "an index entry with a low offset": Case(
        lambda s: s.change(s.path(1, ".index"), -8, struct.pack(">i", 2)), ERROR, "index", ".index"
    ),
    "an index entry behind the end": Case(
        appended(1, ".index", struct.pack(">ii", 100, 90_000)), ERROR, "index", ".index", "behind the batches"
    ),
    "a part of an index entry": Case(appended(1, ".index", b"abc"), WARNING, "index-size", ".index", "3 bytes"),
    "an index that was not trimmed": Case(
        appended(1, ".index", bytes(80)), WARNING, "index-size", ".index", "80 bytes"
    ),
    "a missing index": Case(removed(1, ".index"), WARNING, "missing-index", ".index"),
    "a missing time index": Case(removed(1, ".timeindex"), WARNING, "missing-index", ".timeindex"),
    "a time index entry without a batch": Case(
        changed(1, ".timeindex", 0, struct.pack(">q", NOW_MS)), ERROR, "time-index", ".timeindex", "no batch has"
    ),
    "a time index without its last entry": Case(
        truncated(1, ".timeindex", 12), WARNING, "time-index", ".timeindex", "the largest timestamp of the segment"
    ),
    "a time index entry behind the end": Case(
        appended(1, ".timeindex", struct.pack(">qi", NOW_MS * 2, 90)), ERROR, "time-index", ".timeindex", "behind"
    ),
    "an index without a segment": Case(
        in_partition("00000000000000000001.index", b""), WARNING, "leftover", "1.index", "no .log file"
    ),
    "a removed transaction index": Case(
        lambda s: s.fs.remove(s.txnindex()), ERROR, "transaction-index", ".txnindex", "is missing"
    ),
    "another aborted transaction": Case(
        lambda s: s.change(s.txnindex(), 10, struct.pack(">q", 3)),
        ERROR,
        "transaction-index",
        ".txnindex",
        "the batches",
    ),
    "an entry without a marker": Case(
        lambda s: s.write(s.path(0, ".txnindex"), struct.pack(">hqqqq", 0, 7, 0, 1, 2)),
        ERROR,
        "transaction-index",
        ".txnindex",
        "no transaction ends",
    ),
    "an unknown version": Case(
        lambda s: s.change(s.txnindex(), 0, b"\0\7"), ERROR, "transaction-index", ".txnindex", "version 7"
    ),
    # Snapshots and leader epochs
    "a snapshot with a bad checksum": Case(
        changed(2, ".snapshot", 20, b"\x55"), WARNING, "snapshot", ".snapshot", "bad checksum"
    ),
    "a snapshot with another sequence": Case(
        snapshot(set_field(7, 2, 99)), WARNING, "snapshot", ".snapshot", "last sequence 99"
    ),
    "a snapshot without a producer": Case(
        snapshot(lambda producers: producers.pop(0)), WARNING, "snapshot", ".snapshot", "is missing"
    ),
    "a snapshot with another producer": Case(
        snapshot(lambda producers: producers.append([77, 0, 0, 0, 0, 0, 0, -1])),
        WARNING,
        "snapshot",
        ".snapshot",
        "which the log does not have",
    ),
    "a snapshot behind the end": Case(
        lambda s: s.write(f"{s.directory}/{999:020d}.snapshot", encode_snapshot(b"")), WARNING, "snapshot", ".snapshot"
    ),
    "a later leader epoch": Case(
        in_partition(LEADER_EPOCHS_FILE, b"0\n2\n0 0\n1 30\n"), ERROR, "leader-epoch", "checkpoint"
    ),
    "a missing leader epoch": Case(
        in_partition(LEADER_EPOCHS_FILE, b"0\n1\n0 0\n"), ERROR, "leader-epoch", "checkpoint", "epoch 1, which starts"
    ),
    "a leader epoch behind the end": Case(
        in_partition(LEADER_EPOCHS_FILE, b"0\n3\n0 0\n1 27\n2 999\n"), ERROR, "leader-epoch", "checkpoint", "999"
    ),
    "a malformed leader epoch": Case(
        in_partition(LEADER_EPOCHS_FILE, b"0\n2\n0 0\n"), ERROR, "leader-epoch", "checkpoint"
    ),
    # Other files
    "a malformed topic id": Case(in_partition(PARTITION_METADATA_FILE, b"?"), ERROR, "topic-id", "metadata"),
    "a deleted file": Case(in_partition(f"{0:020d}.log.deleted", b""), NOTE, "leftover", ".deleted"),
    "an interrupted compaction": Case(
        in_partition(f"{0:020d}.log.cleaned", b""), WARNING, "leftover", ".cleaned", after_crash=True
    ),
    "an interrupted replacement": Case(
        in_partition(f"{0:020d}.log.swap", b""), WARNING, "leftover", ".swap", after_crash=True
    ),
    # The log directory
    "a recovery point behind the end": Case(
        offset(RECOVERY_POINTS_FILE, lambda s: s.end + 1), ERROR, "checkpoint", "-point-offset-checkpoint"
    ),
    "a high watermark behind the end": Case(
        offset(HIGH_WATERMARKS_FILE, lambda s: s.end + 1), ERROR, "checkpoint", HIGH_WATERMARKS_FILE
    ),
    "a high watermark behind the end of a crash": Case(
        offset(HIGH_WATERMARKS_FILE, lambda s: s.end + 1), WARNING, "checkpoint", HIGH_WATERMARKS_FILE, after_crash=True
    ),
    "a start behind the end": Case(
        offset(LOG_START_OFFSETS_FILE, lambda s: s.end + 1), ERROR, "checkpoint", LOG_START_OFFSETS_FILE
    ),
    "a malformed checkpoint": Case(written(RECOVERY_POINTS_FILE, b"7\n"), ERROR, "checkpoint", RECOVERY_POINTS_FILE),
    "a malformed cleaner checkpoint": Case(
        written(CLEANER_OFFSETS_FILE, b"7\n"), WARNING, "checkpoint", CLEANER_OFFSETS_FILE
    ),
    "an entry without a partition": Case(
        written(HIGH_WATERMARKS_FILE, b"0\n1\ngone 0 5\n"), NOTE, "checkpoint", HIGH_WATERMARKS_FILE
    ),
    "a malformed meta.properties": Case(
        written(META_PROPERTIES_FILE, b"version=9\n"), ERROR, "meta", META_PROPERTIES_FILE
    ),
    "no meta.properties": Case(lambda s: s.fs.remove(f"{s.root}/{META_PROPERTIES_FILE}"), WARNING, "meta", "/data"),
}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_reported(name: str):
    case = CASES[name]
    stored = StoredDirectory()
    if case.after_crash:
        stored.mark_unclean()
    case.damage(stored)
    found, _ = stored.verify()
    wanted = [
        each
        for each in found
        if (each.severity, each.check) == (case.severity, case.check)
        and each.path.endswith(case.file)
        and case.problem in each.problem
    ]
    assert wanted, f"not among the findings: {found}"
    assert all(each.remedy for each in wanted)


def test_damage_is_reported_at_its_position_and_later_batches_are_checked():
    stored = StoredDirectory()
    stored.flip(1, 1, 65)
    found, totals = stored.verify()
    assert [each.check for each in found] == ["batch"], "the index entries of the batch are no findings"
    assert found[0].position == stored.positions[1][1]
    assert totals.records == COUNT + 1


def test_a_torn_tail_below_the_recovery_point_is_an_error():
    stored = StoredDirectory()
    stored.mark_unclean()
    stored.set_offset(RECOVERY_POINTS_FILE, stored.end)
    stored.flip(-1, -1, 65)
    found, _ = stored.verify()
    [torn] = [each for each in found if each.check == "torn-tail"]
    assert torn.severity is ERROR
    assert f"recovery point {stored.end}" in torn.problem


def test_a_batch_is_found_behind_a_damaged_length_without_an_index():
    stored = StoredDirectory()
    stored.mark_unclean()
    stored.fs.remove(stored.path(-1, ".index"))
    stored.change(stored.path(-1, ".log"), 8, b"\x7f\xff\xff\xff")
    found, totals = stored.verify()
    [damage] = [each for each in found if each.check == "batch"]
    assert f"{stored.positions[-1][1]} bytes are skipped" in damage.problem
    assert totals.records == COUNT + 1


def test_records_are_not_read_without_their_check():
    stored = StoredDirectory()
    rewritten(1, 0, 64, b"\2")(stored)
    assert stored.verify(check_records=False)[0] == []


@pytest.mark.parametrize("codec", Codec)
def test_compressed_records_are_checked(codec: Codec):
    stored = StoredDirectory()
    stored.fs.make_directory("/data/other-0")
    checkpoints.write_partition_metadata(stored.fs, "/data/other-0", bytes(range(1, 17)))
    log = open_log(stored.fs, directory="/data/other-0", cfg=config(internal_segment_bytes=100_000))
    values = [b"v%d" % number * 30 for number in range(200)]
    append(log, batch(values, codec=codec, timestamp=[NOW_MS + 300 * number for number in range(200)]))
    wrong = misnumbered(batch([b"v"] * 3, codec=codec), [0, 5, 2])
    log.close(NOW_MS)
    assert stored.verify("/data/other-0")[0] == []
    path = f"/data/other-0/{0:020d}.log"
    content = bytearray(wrong)
    content[:8] = struct.pack(">q", 200)
    stored.write(path, stored.read(path) + content)
    found, _ = stored.verify("/data/other-0")
    assert [each.problem for each in found if each.check == "records"] == [
        "the batch with offsets 200 to 202: a record has offset delta 5, expected from 1 to 2"
    ]


def test_gaps_of_compaction_are_no_findings(monkeypatch: pytest.MonkeyPatch):
    stored = StoredDirectory()
    removed(2, ".log", ".index", ".timeindex", ".txnindex", ".snapshot")(stored)
    stored.set_offset(CLEANER_OFFSETS_FILE, stored.bases[3])
    found, _ = stored.verify()
    assert found == []
    # A compaction that was interrupted, or is in progress.
    stored.set_offset(CLEANER_OFFSETS_FILE, stored.bases[1])
    found, _ = stored.verify()
    assert [(each.severity, each.check) for each in found] == [(NOTE, "gap")]
    monkeypatch.setattr("odradek.tools.logs.directories.is_locked", lambda path: path == "/data/.lock")
    assert stored.verify()[0] == []


def test_gaps_of_a_first_compaction_are_no_errors(monkeypatch: pytest.MonkeyPatch):
    stored = StoredDirectory()
    removed(2, ".log", ".index", ".timeindex", ".snapshot")(stored)
    path = stored.path(0, ".log")
    content = stored.read(path)
    del content[stored.positions[0][2] : stored.positions[0][3]]
    stored.write(path, content)
    removed(0, ".index", ".timeindex")(stored)
    found, _ = stored.verify()
    assert [each.severity for each in found if each.check == "gap"] == [WARNING, WARNING]
    monkeypatch.setattr("odradek.tools.logs.directories.is_locked", lambda path: path == "/data/.lock")
    found, _ = stored.verify()
    assert [each.severity for each in found if each.check == "gap"] == [NOTE, NOTE]


def test_a_partition_in_two_log_directories():
    stored = StoredDirectory()
    other = StoredDirectory("/other/topic-0", stored.fs)
    found, _ = stored.verify("/data", "/other")
    [finding] = found
    assert (finding.severity, finding.check, finding.path) == (ERROR, "duplicate", other.directory)
    checkpoints.write_partition_metadata(stored.fs, other.directory, bytes(range(1, 17)))
    meta = checkpoints.read_meta_properties(stored.fs, "/data")
    assert meta is not None
    checkpoints.write_meta_properties(stored.fs, "/other", meta)
    found, _ = stored.verify("/data", "/other")
    assert [(each.check, each.problem.partition(" is")[0]) for each in found] == [
        ("meta", "the directory id"),
        ("topic-id", "the topic id"),
        ("duplicate", "the partition"),
    ]
    checkpoints.write_meta_properties(stored.fs, "/other", meta._replace(cluster_id="x", directory_id=bytes(16)))
    found, _ = stored.verify("/data", "/other")
    assert [(each.severity, each.problem) for each in found] == [
        (WARNING, "the cluster id is x, that of /data cluster; their partitions are not compared")
    ]


def test_a_replica_that_a_move_replaces_is_no_duplicate():
    stored = StoredDirectory()
    other = StoredDirectory("/other/topic-0", stored.fs)
    stored.write(f"{other.directory}/odradek-replaced-replica", b"")
    found, _ = stored.verify("/data", "/other")
    assert [(each.severity, each.check) for each in found] == [(NOTE, "leftover")]


def test_directories_with_suffixes_are_notes():
    stored = StoredDirectory()
    for suffix in ("delete", "stray", "future"):
        name = f"/data/topic-1.{'0' * 32}-{suffix}"
        stored.fs.make_directory(name)
        stored.write(f"{name}/{0:020d}.log", b"")
    found, totals = stored.verify()
    assert [(each.severity, each.check) for each in found if each.check == "directory"] == [(NOTE, "directory")] * 3
    assert totals.partitions == 3, "the deleted one is not checked"


def test_findings_of_one_kind_are_limited():
    stored = StoredDirectory()
    path = stored.path(0, ".index")
    stored.write(path, b"".join(struct.pack(">ii", 1000 + n, 100_000 + n) for n in range(40)))
    found, _ = stored.verify()
    listed = [each for each in found if each.check == "index"]
    assert len(listed) == MAX_REPORTED + 1
    assert listed[-1].problem == "30 more findings of this kind"


def test_a_replay_that_begins_after_retention():
    """The first segments were deleted: transactions and producers of their batches are unknown to a replay."""
    stored = StoredDirectory()
    for number in (0, 1, 2):
        removed(number, ".log", ".index", ".timeindex")(stored)
        for kind in (".snapshot", ".txnindex"):
            if stored.fs.exists(stored.path(number, kind)):
                stored.fs.remove(stored.path(number, kind))
    stored.set_offset(LOG_START_OFFSETS_FILE, stored.bases[3])
    assert [each for each in stored.verify()[0] if each.check not in ("leader-epoch",)] == []
    stored.fs.remove(stored.path(3, ".snapshot"))
    assert [each for each in stored.verify()[0] if each.check not in ("leader-epoch",)] == []


def test_a_disk_that_cannot_be_read():
    stored = StoredDirectory()
    selections = [select(stored.fs, "/data", lambda each: True)]
    memory = stored.fs
    assert isinstance(memory, MemoryFileSystem)
    memory.lost.add("/data/topic-0")
    found: list[Finding] = []
    verify(stored.fs, selections, VerifyOptions(), Report(found.append))
    assert [(each.severity, each.check) for each in found] == [(ERROR, "read")]


def test_one_segment():
    stored = StoredDirectory()
    for number in (0, 2, -1):
        found, totals = stored.verify(stored.path(number, ".log"))
        assert found == []
        assert totals.records == len(stored.positions[number])
    stored.flip(2, 1, 65)
    assert stored.verify(stored.path(1, ".log"))[0] == []
    found, _ = stored.verify(stored.path(2, ".log"))
    assert [each.check for each in found] == ["batch"]


def test_other_paths_are_refused():
    stored = StoredDirectory()
    stored.fs.make_directory("/empty")
    for path in ("/empty", "/missing", f"/data/{META_PROPERTIES_FILE}"):
        with pytest.raises(NotALogError, match=path):
            select(stored.fs, path, lambda each: True)


def test_a_partition_without_segments_ends_no_verification():
    # A crash after the directory of a partition was made.
    stored = StoredDirectory()
    stored.fs.make_directory(f"{stored.root}/topic-1")
    found, totals = stored.verify()
    assert [each for each in found if each.severity is not NOTE] == []
    assert (totals.partitions, totals.records) == (2, COUNT + 2)
