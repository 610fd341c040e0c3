"""The log manager: names, opening, failed and full disks, creation and deletion, and crashes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.loading import DuplicateLogError
from odradek.log.management.log_directories import AllLogDirsFailed, DirectoryDescription
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import MetaProperties
from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.filesystem import DiskFullError, LogDirFailure, OsFileSystem, write_atomically
from odradek.log.storage.log_directory import InconsistentMetaError, marked_name, parse_directory_name
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.managers import (
    DIRECTORIES,
    NEW_ID,
    TOPIC_ID,
    append,
    damage,
    folders,
    opened,
    run_until,
    served,
    set_monotonic,
)
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import iter_batches, iter_records


def described(
    manager: LogManager, partitions: list[tuple[str, int]] | None = None
) -> list[DirectoryDescription]:
    """Run all steps of `describe_directories`. Return its result."""
    steps = manager.describe_directories(partitions)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", ("t", 0, "")),
        ("a-b.c_d-12", ("a-b.c_d", 12, "")),
        ("t-0." + "0af1" * 8 + "-delete", ("t", 0, "-delete")),
        ("t-3." + "0af1" * 8 + "-stray", ("t", 3, "-stray")),
        ("t-3." + "0af1" * 8 + "-future", ("t", 3, "-future")),
        ("t-3.0af1-delete", None),
        ("t-03", None),
        ("__cluster_metadata-0", None),
        ("t-", None),
        ("-0", None),
        ("t", None),
        ("t-x", None),
        ("lost+found", None),
    ],
)
def test_name_of_a_directory(name: str, expected: tuple[str, int, str] | None) -> None:
    parsed = parse_directory_name(name)
    assert (parsed[1:] if parsed else None) == expected


def test_marked_name_fits_a_file_system() -> None:
    name = marked_name("t" * 249, 123, bytes(16), "-delete")
    assert len(name) == 255
    assert name.endswith("-123." + "0" * 32 + "-delete")


# Open


def test_first_open_writes_meta_properties_and_locks() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, cluster_id="c1")
    metas = [checkpoints.read_meta_properties(fs, path) for path in DIRECTORIES]
    assert [(m.version, m.cluster_id, m.node_id) for m in metas if m] == [(1, "c1", 1)] * 2
    assert len({m.directory_id for m in metas if m}) == 2
    with pytest.raises(LockedError, match="/data/a is in use by another process; stop it, or change"):
        opened(fs)
    manager.close(0)
    again = opened(fs)
    assert again.cluster_id == "c1"


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (MetaProperties(1, "other", 1, None, {}), "cluster id other, but this broker's is c1; correct log.dirs$"),
        (MetaProperties(1, "c1", 2, None, {}), "node id 2, but this broker's is 1; correct log.dirs or the"),
        (MetaProperties(0, "c1", 2, None, {}), "node id 2, but this broker's is 1; correct log.dirs or the"),
    ],
)
def test_a_directory_of_another_broker(meta: MetaProperties, message: str) -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/b")
    checkpoints.write_meta_properties(fs, "/data/b", meta)
    with pytest.raises(InconsistentMetaError, match=f"/data/b/meta.properties has {message}"):
        opened(fs, cluster_id="c1")
    fs.lock("/data/a/.lock").release()


def test_a_new_directory_may_get_meta_properties_of_version_0() -> None:
    """As brokers of Apache Kafka with ZooKeeper require."""
    fs = MemoryFileSystem()
    opened(fs, cluster_id="c1", meta_version=0)
    text = fs.read_bytes("/data/a/meta.properties").decode()
    assert {"version=0", "broker.id=1", "cluster.id=c1"} <= set(text.splitlines())
    assert "node.id" not in text


def test_meta_properties_of_version_0_is_completed() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/a")
    checkpoints.write_meta_properties(fs, "/data/a", MetaProperties(0, "c1", 1, None, {"x": "y"}))
    manager = opened(fs, ["/data/a"])
    assert manager.cluster_id == "c1"
    meta = checkpoints.read_meta_properties(fs, "/data/a")
    assert meta is not None
    assert (meta.version, meta.node_id, meta.others) == (0, 1, {"x": "y"})
    assert meta.directory_id == manager.directories["/data/a"].directory_id


def test_a_clean_stop_is_marked_and_a_start_removes_the_mark() -> None:
    fs = MemoryFileSystem()
    opened(fs).close(0, broker_epoch=7)
    assert checkpoints.read_clean_shutdown(fs, "/data/a") == 7
    manager = opened(fs)
    assert checkpoints.read_clean_shutdown(fs, "/data/a") is None
    assert [d.was_clean for d in manager.directories.values()] == [True, True]
    fs.crash()
    assert [d.was_clean for d in opened(fs).directories.values()] == [False, False]


def test_a_restart_restores_logs_with_offsets_and_topic_id() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"0", b"1", b"2")
    log.update_high_watermark(2)
    log.delete_records_before(1)
    manager.close(0)
    manager = opened(fs)
    log = served(manager)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.flushed_offset) == (1, 2, 3, 3)
    assert manager.topic_id("t", 0) == TOPIC_ID


def test_other_files_and_directories_of_kafka_are_left_alone() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/data/a/__cluster_metadata-0")
    fs.make_directory("/data/a/lost+found")
    fs.open("/data/a/bootstrap.checkpoint", create=True)
    manager = opened(fs, ["/data/a"])
    assert manager.all_logs() == []
    assert manager.get("__cluster_metadata", 0) is None
    manager.close(0)
    assert fs.is_directory("/data/a/__cluster_metadata-0")
    assert fs.list_names("/data/a/__cluster_metadata-0") == []


def test_one_partition_in_two_directories() -> None:
    fs = MemoryFileSystem()
    for path in DIRECTORIES:
        fs.make_directory(f"{path}/t-0")
    with pytest.raises(DuplicateLogError, match="partition t-0 is in /data/a/t-0 and in /data/b/t-0"):
        opened(fs, ids={"t": TOPIC_ID})


def create_two_logs_of_one_name(fs: MemoryFileSystem, old_id: bytes | None = TOPIC_ID) -> None:
    """Delete a topic while the directory of its log is offline, create it again, and repair that directory."""
    manager = opened(fs)
    append(manager.create_log("t", 0, old_id, 0), b"old", b"old", b"old")
    manager.close(0)
    good = fs.read_bytes("/data/a/recovery-point-offset-checkpoint")
    damage(fs, "/data/a/recovery-point-offset-checkpoint")
    manager = opened(fs, ids={"t": TOPIC_ID})
    manager.delete_log("t", 0)
    append(manager.create_log("t", 0, NEW_ID, 0, is_new=True), b"new")
    served(manager).flush(0)
    manager.close(0)
    write_atomically(fs, "/data/a/recovery-point-offset-checkpoint", good)
    assert [folders(fs, path) for path in DIRECTORIES] == [["t-0"], ["t-0"]]


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_log_of_a_deleted_topic_that_reappears_is_renamed_as_stray(
    stop: str, is_damaged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    create_two_logs_of_one_name(fs)
    if is_damaged:
        damage(fs, "/data/a/t-0/00000000000000000000.log")
    if stop == "crash":
        fs.crash()
        for path in DIRECTORIES:
            checkpoints.remove_clean_shutdown(fs, path)
    caplog.clear()
    for _ in range(2):
        manager = opened(fs, ids={"t": NEW_ID})
        log = served(manager)
        assert (log.directory, log.log_end_offset, manager.topic_id("t", 0)) == ("/data/b/t-0", 1, NEW_ID)
        assert [folders(fs, path) for path in DIRECTORIES] == [["t-0-stray"], ["t-0"]]
        run_until(manager, 0, 70_000)
        assert checkpoints.read_offsets(fs, "/data/a/recovery-point-offset-checkpoint") == {}
        manager.close(0)
    [line] = [one.message for one in caplog.records if "as stray" in one.message]
    assert "directory=/data/a/t-0 renamed=/data/a/t-0." in line


@pytest.mark.parametrize("unused", DIRECTORIES)
def test_an_empty_log_without_a_topic_id_is_renamed_as_stray(unused: str) -> None:
    """Its directory failed during the creation; then its topic was deleted, and created again elsewhere."""
    fs = MemoryFileSystem()
    [used] = [path for path in DIRECTORIES if path != unused]
    manager = opened(fs, [used])
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"x")
    manager.close(0)
    fs.make_directory(f"{unused}/t-0")
    for _ in range(2):
        manager = opened(fs, ids={"t": TOPIC_ID})
        log = served(manager)
        assert (log.directory, log.log_end_offset, manager.topic_id("t", 0)) == (f"{used}/t-0", 1, TOPIC_ID)
        assert (folders(fs, unused), folders(fs, used)) == (["t-0-stray"], ["t-0"])
        manager.close(0)


@pytest.mark.parametrize(("old_id", "ids"), [(None, {"t": NEW_ID}), (NEW_ID, {"t": NEW_ID}), (TOPIC_ID, {})])
def test_two_logs_that_topic_ids_do_not_distinguish_are_refused(old_id: bytes | None, ids: dict[str, bytes]) -> None:
    fs = MemoryFileSystem()
    create_two_logs_of_one_name(fs, old_id)
    with pytest.raises(DuplicateLogError, match="partition t-0 is in /data/a/t-0 and in /data/b/t-0"):
        opened(fs, ids=ids)
    assert [folders(fs, path) for path in DIRECTORIES] == [["t-0"], ["t-0"]]


def test_a_log_without_a_topic_id_gets_that_of_its_topic() -> None:
    """A crash came between the creation of its directory and its topic id, or an old Apache Kafka created it."""
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    append(manager.create_log("t", 0, None, 0), b"x")
    manager.close(0)
    manager = opened(fs, ["/data/a"], ids={"t": TOPIC_ID})
    assert manager.create_log("t", 0, TOPIC_ID, 0).log_end_offset == 1
    assert manager.topic_id("t", 0) == TOPIC_ID


def test_a_failed_rename_as_stray_takes_the_directory_offline() -> None:
    fs = MemoryFileSystem()
    create_two_logs_of_one_name(fs)
    fs.fail("rename", path_contains="/data/a/t-0")
    manager = opened(fs, ids={"t": NEW_ID})
    assert manager.online_directories == ["/data/b"]
    assert "renaming /data/a/t-0 failed" in str(manager.directories["/data/a"].failure)
    assert manager.create_log("t", 0, NEW_ID, 0).log_end_offset == 1


# Directories that fail


def test_a_directory_that_cannot_be_opened_is_offline_and_the_other_serves() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    manager.create_log("t", 0, TOPIC_ID, 0)
    manager.create_log("t", 1, TOPIC_ID, 0)
    manager.close(0)
    fs.open("/data/a/recovery-point-offset-checkpoint").write_pieces(0, [b"9"], 1)
    failed: list[str] = []
    manager = opened(fs, on_directory_failure=lambda path, partitions: failed.append(path))
    assert failed == ["/data/a"]
    assert manager.online_directories == ["/data/b"]
    assert [(log.topic, log.partition) for log in manager.all_logs()] == [("t", 1)]
    with pytest.raises(KafkaError) as raised:
        manager.create_log("t", 0, TOPIC_ID, 0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.create_log("new", 0, TOPIC_ID, 0, is_new=True).log_directory == "/data/b"
    assert [d.error_code for d in described(manager)] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_log_that_cannot_be_created_in_one_directory_is_created_in_the_other_only(error: int) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    fs.fail("create", path_contains="/data/a/t-0/", error=error)
    append(manager.create_log("t", 0, TOPIC_ID, 0, is_new=True), b"x")
    assert manager.online_directories == (["/data/b"] if error == errno.EIO else [*DIRECTORIES])
    for again in (manager.close, lambda now_ms: fs.crash()):
        again(0)
        manager = opened(fs)
        log = served(manager)
        assert log.log_directory == "/data/b"


@pytest.mark.parametrize("cleanup", ["remove", "sync_directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_partly_created_log_is_not_created_elsewhere(cleanup: str, error: int) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    fs.fail("create", path_contains="/data/a/t-0/", error=error)
    fs.fail(cleanup, path_contains="/data/a")
    for _ in range(2):
        with pytest.raises(KafkaError) as raised:
            manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
        assert (raised.value.code, type(raised.value)) == (ErrorCode.KAFKA_STORAGE_ERROR, KafkaError)
    assert manager.online_directories == ["/data/b"]
    assert not fs.is_directory("/data/b/t-0")
    manager.close(0)
    manager = opened(fs)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"x")


def test_no_directory_left() -> None:
    fs = MemoryFileSystem()
    fs.fail("create", path_contains="/data/a")
    with pytest.raises(AllLogDirsFailed, match=r"no log directory can be used: .*/data/a"):
        opened(fs, ["/data/a"])


def test_an_append_that_fails_takes_its_directory_offline() -> None:
    fs = MemoryFileSystem()
    lost: list[tuple[str, list[tuple[str, int]]]] = []
    manager = opened(fs, on_directory_failure=lambda path, partitions: lost.append((path, partitions)))
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    other = manager.create_log("t", 1, TOPIC_ID, 0)
    fs.fail("write", path_contains="t-0/")
    with pytest.raises(KafkaError) as raised:
        append(log, b"x")
    manager.fail_directory(log.log_directory, raised.value)
    assert lost == [(log.log_directory, [("t", 0)])]
    with pytest.raises(KafkaError) as raised:
        manager.get("t", 0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    append(other, b"x")
    manager.close(0)
    assert checkpoints.read_clean_shutdown(fs, log.log_directory) is None
    assert checkpoints.read_clean_shutdown(fs, other.log_directory) is not None


# Create and delete


def test_logs_are_spread_over_directories() -> None:
    manager = opened(MemoryFileSystem())
    for partition in range(4):
        manager.create_log("t", partition, TOPIC_ID, 0)
    directories = described(manager)
    assert [[(s.topic, s.partition) for s in d.logs] for d in directories] == [
        [("t", 0), ("t", 2)],
        [("t", 1), ("t", 3)],
    ]
    assert [[s.partition for s in d.logs] for d in described(manager, [("t", 3)])] == [[], [3]]
    assert manager.create_log("t", 0, TOPIC_ID, 0) is manager.get("t", 0)
    with pytest.raises(KafkaError) as raised:
        manager.create_log("t", 0, NEW_ID, 0)
    assert raised.value.code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_deleted_log_is_removed_at_once_and_its_files_later() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"], {"file.delete.delay.ms": "1000"})
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"x")
    set_monotonic(manager, 50)
    manager.delete_log("t", 0)
    assert manager.get("t", 0) is None
    [left] = [name for name in fs.list_names("/data/a") if name.startswith("t-0")]
    assert parse_directory_name(left) == (left, "t", 0, "-delete")
    new = manager.create_log("t", 0, bytes(16), 60)
    assert new.log_end_offset == 0
    run_until(manager, 60, 1049)
    assert fs.is_directory(f"/data/a/{left}")
    run_until(manager, 1050, 1050)
    assert not fs.is_directory(f"/data/a/{left}")
    assert fs.is_directory("/data/a/t-0")


def with_a_refused_log(fs: MemoryFileSystem) -> LogManager:
    manager = opened(fs)
    append(manager.create_log("t", 0, TOPIC_ID, 0), b"old")
    manager.close(0)
    damage(fs, "/data/a/t-0/partition.metadata")
    return opened(fs, ids={"t": TOPIC_ID})


def test_a_log_that_was_refused_is_deleted_with_its_topic() -> None:
    fs = MemoryFileSystem()
    manager = with_a_refused_log(fs)
    with pytest.raises(KafkaError):
        manager.get("t", 0)
    set_monotonic(manager, 50)
    manager.delete_log("t", 0)
    assert manager.get("t", 0) is None
    assert folders(fs, "/data/a") == ["t-0-delete"]
    log = manager.create_log("t", 0, NEW_ID, 60, is_new=True)
    assert (log.directory, log.log_end_offset) == ("/data/a/t-0", 0)
    delay_ms = log.config.file_delete_delay_ms
    run_until(manager, 60, 50 + delay_ms - 1)
    assert folders(fs, "/data/a") == ["t-0", "t-0-delete"]
    run_until(manager, 50 + delay_ms, 50 + delay_ms)
    assert folders(fs, "/data/a") == ["t-0"]
    manager.close(0)
    assert opened(fs, ids={"t": NEW_ID}).topic_id("t", 0) == NEW_ID


def test_a_log_that_was_refused_keeps_its_checkpoints_until_it_is_repaired() -> None:
    """Otherwise its deleted records would reappear after the repair."""
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    log.delete_records_before(2)
    manager.close(0)
    metadata = f"{log.directory}/partition.metadata"
    content = fs.read_bytes(metadata)
    damage(fs, metadata)
    manager = opened(fs, ids={"t": TOPIC_ID})
    append(manager.create_log("u", 0, NEW_ID, 0, is_new=True), b"a")
    run_until(manager, 0, 61_000)
    manager.close(61_000)
    fs.open(metadata).write_pieces(0, [content], len(content))
    repaired = opened(fs, ids={"t": TOPIC_ID, "u": NEW_ID})
    found = served(repaired)
    assert (found.log_start_offset, found.high_watermark) == (2, 3)
    repaired.delete_log("t", 0)
    assert repaired.create_log("t", 0, NEW_ID, 0, is_new=True).log_start_offset == 0


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_log_in_an_offline_directory_can_be_deleted(is_refused: bool) -> None:
    fs = MemoryFileSystem()
    manager = with_a_refused_log(fs) if is_refused else opened(fs)
    if not is_refused:
        manager.create_log("t", 0, TOPIC_ID, 0)
    manager.fail_directory("/data/a", LogDirFailure("/data/a", "broken"))
    manager.delete_log("t", 0)
    assert folders(fs, "/data/a") == ["t-0"]
    assert manager.create_log("t", 0, NEW_ID, 0, is_new=True).directory == "/data/b/t-0"


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_log_whose_deletion_fails_can_be_created_in_another_directory(is_refused: bool) -> None:
    fs = MemoryFileSystem()
    manager = with_a_refused_log(fs) if is_refused else opened(fs)
    if not is_refused:
        manager.create_log("t", 0, TOPIC_ID, 0)
    fs.fail("rename", path_contains="/data/a/t-0")
    with pytest.raises(LogDirFailure):
        manager.delete_log("t", 0)
    assert manager.online_directories == ["/data/b"]
    assert manager.create_log("t", 0, NEW_ID, 0, is_new=True).directory == "/data/b/t-0"


def test_a_deletion_includes_the_refused_log_of_the_same_name() -> None:
    fs = MemoryFileSystem()
    create_two_logs_of_one_name(fs)
    damage(fs, "/data/a/t-0/partition.metadata")
    checkpoints.write_clean_shutdown(fs, "/data/a", 0)
    manager = opened(fs, ids={"t": NEW_ID})
    manager.delete_log("t", 0)
    assert [folders(fs, path) for path in DIRECTORIES] == [["t-0-delete"], ["t-0-delete"]]
    run_until(manager, 0, 60_000)
    assert [folders(fs, path) for path in DIRECTORIES] == [[], []]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("with_topic_id", [False, True])
def test_a_directory_that_appeared_is_not_a_new_log(
    is_new: bool, with_topic_id: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was moved there while the broker was running."""
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    append(manager.create_log("other", 0, TOPIC_ID if with_topic_id else None, 0), b"old")
    served(manager, "other").flush(0)
    fs.rename("/data/a/other-0", "/data/a/t-0")
    log = manager.create_log("t", 0, NEW_ID, 0, is_new=is_new)
    assert (log.directory, log.log_end_offset, manager.topic_id("t", 0)) == ("/data/a/t-0", 0, NEW_ID)
    assert folders(fs, "/data/a") == ["t-0", "t-0-stray"]
    assert "as stray" in caplog.text


def test_a_deletion_continues_after_a_restart() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    manager.create_log("t", 0, TOPIC_ID, 0)
    manager.create_log("s", 0, TOPIC_ID, 0)
    manager.delete_log("t", 0)
    manager.mark_stray("s", 0)
    manager.close(0)
    manager = opened(fs, ["/data/a"])
    assert manager.all_logs() == []
    run_until(manager, 0, 60_000)
    names = [name for name in fs.list_names("/data/a") if name.startswith(("t-", "s-"))]
    assert len(names) == 1
    assert names[0].endswith("-stray")


def test_a_new_log_does_not_inherit_checkpoints() -> None:
    fs = MemoryFileSystem()
    threads = Threads()
    manager = opened(fs, ["/data/a"], run_in_thread=threads)
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, *[b"x"] * 10)
    log.flush(0)
    log.delete_records_before(5)
    run_until(manager, 0, 61_000)
    threads.run()
    assert checkpoints.read_offsets(fs, "/data/a/log-start-offset-checkpoint") == {("t", 0): 5}
    manager.delete_log("t", 0)
    log = manager.create_log("t", 0, bytes(16), 61_000)
    append(log, b"new")
    log.active_segment.file.sync()
    fs.crash()
    manager = opened(fs, ["/data/a"])
    log = served(manager)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)


# Full disks


def test_a_full_disk_keeps_its_logs_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a")
    log.roll(0)
    now_ms = run_until(manager, 0, 95_000)
    fs.is_full = True
    caplog.clear()
    caplog.set_level("INFO")
    for _ in range(3):
        with pytest.raises(DiskFullError) as refused:
            append(log, b"b")
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        manager.fail_directory("/data/a", refused.value)
    with pytest.raises(DiskFullError):
        manager.create_log("new", 0, TOPIC_ID, now_ms, is_new=True)
    log.update_high_watermark(1)
    now_ms = run_until(manager, now_ms, now_ms + 4_000)
    assert manager.online_directories == ["/data/a"]
    assert not fs.is_directory("/data/a/new-0")
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert message.startswith("log directory is full: writes are refused until space is free; free disk space")
    fs.is_full = False
    append(log, b"b")
    manager.create_log("new", 0, TOPIC_ID, now_ms, is_new=True)
    run_until(manager, now_ms, now_ms + 70_000)
    assert "log directory has free space again" in caplog.text
    assert checkpoints.read_offsets(fs, "/data/a/replication-offset-checkpoint") == {("t", 0): 2, ("new", 0): 0}
    manager.close(0)
    assert checkpoints.read_clean_shutdown(fs, "/data/a") is not None


def test_a_stop_on_a_full_disk_is_unclean_and_loses_nothing() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    log = manager.create_log("t", 0, TOPIC_ID, 0)
    append(log, b"a", b"b")
    fs.is_full = True
    manager.close(0)
    assert checkpoints.read_clean_shutdown(fs, "/data/a") is None
    assert [name for name in fs.list_names("/data/a") if name.endswith(".tmp")] == []
    with pytest.raises(AllLogDirsFailed, match="free disk space and start again"):
        opened(fs, ["/data/a"])
    fs.is_full = False
    manager = opened(fs, ["/data/a"])
    found = served(manager)
    assert found.log_end_offset == 2


# Crashes


def run_workload(fs: MemoryFileSystem, flushed: dict[tuple[str, int], list[bytes]]) -> None:
    """Create, append, flush, checkpoint, delete and create again. `flushed` gets the durable values."""
    config = {"internal.segment.bytes": "250", "file.delete.delay.ms": "0"}
    manager = opened(fs, ["/data/a"], config)
    now_ms = 0
    for round_number in range(3):
        for topic in ("kept", "deleted"):
            log = manager.create_log(topic, 0, TOPIC_ID, now_ms)
            values = [b"%d-%d" % (round_number, index) for index in range(4)]
            append(log, *values)
            log.flush(now_ms)
            flushed[topic, 0] = [*flushed.get((topic, 0), []), *values]
        now_ms = run_until(manager, now_ms, now_ms + 61_000)
        del flushed["deleted", 0]
        manager.delete_log("deleted", 0)
        now_ms = run_until(manager, now_ms, now_ms + 1000)
    manager.close(now_ms)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("lose_names", [False, True])
def test_a_crash_at_any_point_loses_nothing_that_was_flushed(seed: int | None, lose_names: bool) -> None:
    at = 0
    while True:
        at += 1
        fs = MemoryFileSystem()
        flushed: dict[tuple[str, int], list[bytes]] = {}
        fs.crash_at(at)
        try:
            run_workload(fs, flushed)
            is_complete = True
        except SimulatedCrash:
            is_complete = False
        fs.crash(None if seed is None else Random(seed * 10_000 + at), lose_names=lose_names)
        manager = opened(fs, ["/data/a"])
        assert manager.online_directories == ["/data/a"]
        for (topic, partition), values in flushed.items():
            log = manager.get(topic, partition)
            assert log is not None, f"{topic} is gone after a crash at change {at}"
            found = [
                record.value
                for segment in log.segments
                for batch in iter_batches(segment.file.pread(0, segment.size_bytes))
                for record in iter_records(batch)
            ]
            assert found[: len(values)] == values
            assert log.high_watermark <= log.log_end_offset
        manager.close(0)
        if is_complete:
            break
    assert at > 100


# Real files


def test_real_files_and_threads(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]

    def make() -> LogManager:
        manager = LogManager(
            OsFileSystem(), paths, LogConfig({}), lambda topic: None, 1, random_bytes=Random(1).randbytes
        )
        manager.open(0)
        return manager

    manager = make()
    for partition in range(20):
        append(manager.create_log("t", partition, TOPIC_ID, 0), b"x" * partition)
    for description in described(manager):
        assert len(description.logs) == 10
        assert description.total_bytes >= description.usable_bytes > 0
    with pytest.raises(LockedError):
        make()
    manager.delete_log("t", 19)
    manager.close(0)
    manager = make()
    assert len(manager.all_logs()) == 19
    run_until(manager, 0, 60_000)
    assert sum(path.name.endswith("-delete") for path in tmp_path.glob("*/*")) == 0
    for directory in manager.directories.values():
        directory.unlock()
    # The manager is not closed, so this start recovers the logs, in threads.
    manager = make()
    assert [log.log_end_offset for log in manager.all_logs()] == [1] * 19
    assert {manager.topic_id("t", partition) for partition in range(19)} == {TOPIC_ID}
    manager.close(0)


@contextmanager
def no_privileges() -> Iterator[None]:
    """Run without the privileges of root, who may write to any directory."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    manager = LogManager(
        OsFileSystem(), [str(tmp_path)], LogConfig({}), lambda topic: None, 1, random_bytes=Random(1).randbytes
    )
    with no_privileges(), pytest.raises(AllLogDirsFailed, match="Permission denied"):
        manager.open(0)
