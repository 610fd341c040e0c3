"""Creation of logs: without reading the new directory, and with the same result as opening an empty one."""

import pytest

from odradek.log.empty_log import create_partition_log
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import open_partition_log
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import DIRECTORIES, TOPIC_ID, opened, served
from odradek.log.tests.support import NOW_MS, append, config, idempotent

DIRECTORY = "/data/t-0"


class Reads:
    """The paths that a file system lists or reads from now on."""

    def __init__(self, fs: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        for name in ("list_names", "read_bytes"):
            self._record(fs, name, monkeypatch)

    def _record(self, fs: MemoryFileSystem, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(fs, name)

        def record(path: str) -> object:
            self.paths.append(path)
            return original(path)

        monkeypatch.setattr(fs, name, record)


def test_the_directory_of_a_new_log_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    reads = Reads(fs, monkeypatch)
    for partition in range(3):
        manager.create_log("t", partition, TOPIC_ID, 0, is_new=True)
    assert reads.paths == []


def test_the_directory_of_a_future_log_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    log = manager.create_log("t", 0, TOPIC_ID, 0, is_new=True)
    target = next(path for path in DIRECTORIES if path != log.log_directory)
    reads = Reads(fs, monkeypatch)
    manager.move_log("t", 0, target, 0)
    assert [path for path in reads.paths if path.startswith(target)] == []


@pytest.mark.parametrize("start", [0, 7])
def test_a_created_log_equals_an_empty_one_that_is_opened(start: int) -> None:
    created_fs, opened_fs = MemoryFileSystem(), MemoryFileSystem()
    created_fs.make_directory(DIRECTORY)
    created = create_partition_log(
        created_fs,
        DIRECTORY,
        "t",
        0,
        config(),
        now_ms=NOW_MS,
        monotonic_ms=5,
        log_start_offset=start,
        producer_expiration_ms=1000,
        choose_jitter_ms=lambda most_ms: 0,
    )
    empty = open_partition_log(
        opened_fs,
        DIRECTORY,
        "t",
        0,
        config(),
        now_ms=NOW_MS,
        monotonic_ms=5,
        is_clean=True,
        log_start_offset=start,
        producer_expiration_ms=1000,
    )
    for change in (lambda log: None, lambda log: append(log, idempotent(0, 3)), lambda log: log.close(9)):
        change(created)
        change(empty)
        assert _describe(created) == _describe(empty)
        assert _durable_files(created_fs) == _durable_files(opened_fs)


def _describe(log: PartitionLog) -> object:
    state, producers = log.state, log.producer_state
    return (
        (state.log_start_offset, state.log_end_offset, state.high_watermark, state.flushed_offset, state.bases),
        (state.recovery_point, state.has_unsynced_name, state.untouched_end, sorted(state.unsynced_paths)),
        (producers.end_offset, producers.last_snapshot_offset, producers.latest_snapshot_offset, producers.is_saved),
        (producers.expiration_ms, log.flusher.last_flush_ms, state.active.roll_jitter_ms, state.active.created_ms),
        state.leader_epochs.entries,
    )


def _durable_files(fs: MemoryFileSystem) -> dict[str, tuple[bytes, bool]]:
    """Return the content of each file, and whether it is durable."""
    nodes = fs._nodes.by_path
    return {path: (bytes(node.content.data), not node.changes) for path, node in nodes.items()}


def test_a_created_log_is_found_again_after_a_stop() -> None:
    fs = MemoryFileSystem()
    manager = opened(fs)
    append(manager.create_log("t", 0, TOPIC_ID, 0, is_new=True), idempotent(0, 3))
    manager.close(0)
    log = served(opened(fs, ids={"t": TOPIC_ID}))
    assert (log.log_end_offset, list(log.producer_state.producers)) == (3, [7])
