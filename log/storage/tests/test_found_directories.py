"""Directories that a start finds: served, renamed as stray, or left unchanged."""

import logging
from contextlib import suppress

import pytest

from odradek.log.log_manager import LogManager
from odradek.log.storage import checkpoints
from odradek.log.storage.filesystem import LogDirFailure
from odradek.log.storage.found_directories import KnownPartitions, find_partitions, format_names
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, TOPIC_ID, append, folders, known, make_manager, opened, served
from odradek.protocol.types import ZERO_UUID

SEGMENT = "00000000000000000000.log"
NOT_PARTITIONS = {
    "backup-20240101": SEGMENT,
    "photos-1": "image.jpg",
    "empty-0": "",
    "damaged-0": "partition.metadata",
    "segment-0": "0.log",
    "t-00": SEGMENT,
    "not a topic-0": SEGMENT,
    "many-10000": SEGMENT,
}


def put(fs: MemoryFileSystem, directory: str, file: str = "") -> None:
    fs.make_directory(f"/data/a/{directory}")
    if file:
        fs.open(f"/data/a/{directory}/{file}", create=True).write_pieces(0, [b"x"], 1)


def start(fs: MemoryFileSystem, partitions: KnownPartitions) -> LogManager:
    manager = make_manager(fs, ["/data/a"])
    manager.open(0, partitions)
    return manager


def served_partitions(manager: LogManager) -> list[tuple[str, int]]:
    return sorted((log.topic, log.partition) for log in manager.all_logs())


def is_topic_name(name: str) -> bool:
    return " " not in name


@pytest.mark.parametrize("are_complete", [False, True])
def test_a_directory_that_is_no_partition_is_left_alone(
    are_complete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    for directory, file in NOT_PARTITIONS.items():
        put(fs, directory, file)
    manager = start(fs, KnownPartitions(are_complete=are_complete, is_topic_name=is_topic_name))
    assert served_partitions(manager) == []
    assert NOT_PARTITIONS.keys() <= set(fs.list_names("/data/a"))
    [line] = [record.message for record in caplog.records if "left unchanged" in record.message]
    assert "count=7" in line and "/data/a/backup-20240101" in line
    assert find_partitions(fs, "/data/a", is_topic_name) == []


def test_an_unknown_partition_is_served_for_adoption() -> None:
    fs = MemoryFileSystem()
    put(fs, "old-3", SEGMENT)
    put(fs, "with-id-9999")
    checkpoints.write_partition_metadata(fs, "/data/a/with-id-9999", TOPIC_ID)
    manager = start(fs, KnownPartitions())
    assert served_partitions(manager) == [("old", 3), ("with-id", 9999)]
    assert sorted(manager.found_logs()) == [("old", 3, None, -1, -1), ("with-id", 9999, TOPIC_ID, -1, -1)]
    assert find_partitions(fs, "/data/a", is_topic_name) == ["old-3", "with-id-9999"]
    assert find_partitions(fs, "/absent", is_topic_name) == []


@pytest.mark.parametrize(
    ("ids", "name"),
    [({}, "gone"), ({"gone": NEW_ID}, "gone"), ({"gone": TOPIC_ID}, "gone")],
    ids=["no topic", "another topic", "no such partition"],
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_partition_that_the_cluster_does_not_have_becomes_stray(
    ids: dict[str, bytes], name: str, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs, ["/data/a"])
    append(manager.create_log(name, 5, TOPIC_ID, 0), b"record")
    append(manager.create_log("kept", 0, NEW_ID, 0), b"record")
    manager.close(0)
    if not is_clean:
        checkpoints.remove_clean_shutdown(fs, "/data/a")
    caplog.clear()
    for _ in range(2):
        manager = start(fs, known({**ids, "kept": NEW_ID}, partition_count=5, are_complete=True))
        assert served_partitions(manager) == [("kept", 0)]
        assert folders(fs, "/data/a") == ["gone-5-stray", "kept-0"]
        manager.close(0)
    [line] = [record.message for record in caplog.records if "as stray" in record.message]
    assert "directory=/data/a/gone-5 " in line
    [stray] = [name for name in fs.list_names("/data/a") if name.endswith("-stray")]
    assert fs.size_bytes(f"/data/a/{stray}/{SEGMENT}") > 0


def test_a_directory_of_a_known_topic_is_served_though_it_lost_its_files() -> None:
    fs = MemoryFileSystem()
    put(fs, "t-0")
    put(fs, "t-1", "partition.metadata")
    manager = start(fs, known({"t": TOPIC_ID}, are_complete=True))
    assert served_partitions(manager) == [("t", 0), ("t", 1)]


def test_the_log_of_a_topic_without_an_id_is_served() -> None:
    """A topic from before Kafka 2.8 has none, and another tool may remove it. The log was renamed as stray."""
    fs = MemoryFileSystem()
    for topic_id in (ZERO_UUID, TOPIC_ID, ZERO_UUID):
        manager = start(fs, known({"t": ZERO_UUID}, are_complete=True))
        log = manager.create_log("t", 0, topic_id, 0)
        append(log, b"record")
        manager.close(0)
    manager = start(fs, known({"t": TOPIC_ID}, are_complete=True))
    assert served(manager).log_end_offset == 3
    assert manager.topic_id("t", 0) == TOPIC_ID


def test_a_partition_whose_files_are_damaged_is_found() -> None:
    fs = MemoryFileSystem()
    put(fs, "t-0", SEGMENT)
    checkpoints.write_partition_metadata(fs, "/data/a/t-0", TOPIC_ID)
    checkpoints.write_clean_shutdown(fs, "/data/a")
    checkpoints.write_offsets(fs, "/data/a/log-start-offset-checkpoint", {("t", 0): 9})
    manager = start(fs, KnownPartitions())
    assert served_partitions(manager) == []
    assert manager.found_logs() == [("t", 0, TOPIC_ID, -1, -1)]
    assert manager.refused_paths() == ["/data/a/t-0"]


def test_a_directory_that_cannot_be_listed_takes_the_log_directory_offline() -> None:
    class BrokenFileSystem(MemoryFileSystem):
        def list_names(self, directory: str) -> list[str]:
            if directory.endswith("old-0"):
                raise OSError(5, "Input/output error")
            return super().list_names(directory)

    fs = BrokenFileSystem()
    put(fs, "old-0", SEGMENT)
    fs.make_directory("/data/b")
    manager = make_manager(fs)
    manager.open(0)
    assert isinstance(manager.directories["/data/a"].failure, LogDirFailure)
    assert manager.online_directories == ["/data/b"]


def test_a_long_list_is_shortened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    fs = MemoryFileSystem()
    for number in range(25):
        put(fs, f"photos-{number}", "image.jpg")
    start(fs, KnownPartitions())
    [line] = [record.message for record in caplog.records if "left unchanged" in record.message]
    assert line.endswith(" and 15 more")
    assert format_names(["a", "b"]) == "a, b"


@pytest.mark.parametrize(("ids", "end_offset"), [({}, 9), ({"t": NEW_ID}, 3)], ids=["to adopt", "not compacted"])
def test_a_gap_in_a_log_to_adopt_counts_as_compacted(ids: dict[str, bytes], end_offset: int) -> None:
    """A broker was killed before the checkpoint of a finished compaction, and its metadata store was lost."""
    fs = MemoryFileSystem()
    manager = make_manager(fs, ["/data/a"], {"cleanup.policy": "compact", "internal.segment.bytes": "300"})
    manager.open(0)
    log = manager.create_log("t", 0, NEW_ID, 0)
    append(log, *[b"x" * 30] * 9)
    [first, second, *_] = [segment.base_offset for segment in log.segments]
    assert first == 0 < second
    for name in [name for name in fs.list_names(log.directory) if name.startswith(f"{second:020d}")]:
        fs.remove(f"{log.directory}/{name}")
    log.flush(0)
    fs.sync_directory(log.directory)
    fs.crash()
    reopened = make_manager(fs, ["/data/a"])
    reopened.open(0, known(ids))
    found = served(reopened)
    assert found.log_end_offset == end_offset
    # From now on its configuration is the store's, which may differ from the one that it was compacted with.
    fs.crash()
    reopened = make_manager(fs, ["/data/a"])
    reopened.open(0, known({"t": NEW_ID}))
    found = served(reopened)
    assert found.log_end_offset == end_offset
    # Rebuilt indexes lower the recovery point to a segment below the gap.
    fs.crash()
    with suppress(FileNotFoundError):
        fs.remove("/data/a/recovery-point-offset-checkpoint")
    reopened = make_manager(fs, ["/data/a"])
    reopened.open(0, known({"t": NEW_ID}))
    found = served(reopened)
    assert found.log_end_offset == end_offset
