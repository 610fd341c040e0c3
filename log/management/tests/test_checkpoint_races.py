"""Checkpoint writes that wait for a thread while logs are deleted, created again and truncated, and then a crash."""

import errno
import weakref
from collections.abc import Callable
from random import Random

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.log_manager import LogManager
from odradek.log.management import checkpoint_task
from odradek.log.management.tests.test_closing import Syncs
from odradek.log.partition_log import PartitionLog
from odradek.log.state import LogState
from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoint_file import OffsetCheckpointFile
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.storage.log_directory import ALL_CHECKPOINTS
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, TOPIC_ID, append, crash_at_each_change, opened, run_until, truncate
from odradek.log.tests.threads import Threads

pytestmark = pytest.mark.slow

START, RECOVERY = "log-start-offset-checkpoint", "recovery-point-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
PATH = "/data/a"
KEY = ("t", 0)


def on_disk(fs: MemoryFileSystem, file_name: str, path: str = PATH) -> dict[tuple[str, int], int]:
    return checkpoints.read_offsets(fs, f"{path}/{file_name}")


def manager_with_waiting_checkpoints(fs: MemoryFileSystem, threads: Threads) -> LogManager:
    """A manager with one log of ten records, whose four checkpoints wait for a thread and were never written."""
    manager = opened(fs, [PATH], run_in_thread=threads)
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    append(log, *[b"old"] * 10)
    log.delete_records_before(5)
    log.roll(0)
    log.flush(0)
    manager.cleaner.offsets[KEY] = 8
    threads.run()
    run_until(manager, 0, 61_000)
    manager.checkpoint_cleaned(PATH, lambda: None)
    assert not any(fs.exists(f"{PATH}/{name}") for name in ALL_CHECKPOINTS)
    return manager


def create_again(manager: LogManager) -> PartitionLog:
    manager.delete_log(*KEY)
    log = manager.create_log(*KEY, NEW_ID, 61_000)
    append(log, b"new")
    log.flush(61_000)
    return log


def assert_new_log_is_complete(fs: MemoryFileSystem) -> None:
    fs.crash()
    log = opened(fs, [PATH], ids={"t": NEW_ID}).get(*KEY)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    assert log.high_watermark <= 1


def test_a_write_that_waits_while_the_topic_is_created_again_writes_no_old_entry() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    create_again(manager_with_waiting_checkpoints(fs, threads))
    threads.run()
    assert on_disk(fs, START) == on_disk(fs, CLEANER) == {}
    assert_new_log_is_complete(fs)


def test_after_a_crash_between_the_writes_the_new_log_is_complete() -> None:
    for count in range(1, 20):
        fs, threads = MemoryFileSystem(), Threads()
        create_again(manager_with_waiting_checkpoints(fs, threads))
        threads.run(count)
        assert_new_log_is_complete(fs)


def test_after_a_crash_at_any_change_no_log_is_emptied() -> None:
    def run(fs: MemoryFileSystem) -> None:
        threads = Threads()
        manager = manager_with_waiting_checkpoints(fs, threads)
        threads.run(2)
        create_again(manager)
        threads.run()

    for change, fs in crash_at_each_change(run):
        log = opened(fs, [PATH], ids={"t": NEW_ID}).get(*KEY)
        if log is not None and log.log_end_offset < 5:
            assert log.log_start_offset == 0, f"emptied by a crash at change {change}"


def test_a_prepared_creation_syncs_nothing() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = manager_with_waiting_checkpoints(fs, threads)
    assert not manager.prepare_creation(*KEY, lambda: None), "the log exists"
    manager.delete_log(*KEY)
    done: list[bool] = []
    assert manager.prepare_creation(*KEY, lambda: done.append(True))
    threads.run()
    assert done == [True]
    assert not manager.prepare_creation(*KEY, lambda: None)
    syncs = Syncs(fs)
    log = manager.create_log(*KEY, NEW_ID, 61_000)
    assert syncs.count == 0
    append(log, b"new")
    log.flush(61_000)
    assert_new_log_is_complete(fs)


def test_a_write_requested_before_the_deletion_leaves_no_entry_for_the_new_log() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = manager_with_waiting_checkpoints(fs, threads)
    manager.delete_log(*KEY)
    threads.run()
    log = manager.create_log(*KEY, NEW_ID, 61_000)
    append(log, b"new")
    log.flush(61_000)
    assert on_disk(fs, START) == on_disk(fs, CLEANER) == {}
    threads.run()
    assert_new_log_is_complete(fs)


def test_a_write_that_failed_for_lack_of_space_is_not_retried_with_old_entries() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = manager_with_waiting_checkpoints(fs, threads)
    fs.is_full = True
    threads.run(3)
    manager.delete_log(*KEY)
    with pytest.raises(DiskFullError):
        manager.create_log(*KEY, NEW_ID, 61_000)
    fs.is_full = False
    log = manager.create_log(*KEY, NEW_ID, 61_000)
    append(log, b"new")
    log.flush(61_000)
    threads.run()
    assert on_disk(fs, START) == {}
    assert_new_log_is_complete(fs)


def test_a_write_whose_last_step_failed_may_be_on_the_disk() -> None:
    """The rename succeeds, and only the sync of the directory fails for lack of space."""
    fs = MemoryFileSystem()
    fs.make_directory(PATH)
    file = OffsetCheckpointFile(fs, f"{PATH}/{START}")
    assert file.record({KEY: 5})
    file.write()
    fs.fail("sync_directory", error=errno.ENOSPC)
    file.record({("u", 0): 1})
    with pytest.raises(OSError, match="No space"):
        file.write()
    assert file.may_hold(KEY)
    assert file.may_hold(("u", 0))
    # The entries of the last complete write are written again, because the file may have others.
    assert file.record({KEY: 5})
    file.write()
    assert on_disk(fs, START) == {KEY: 5}
    assert not file.may_hold(("u", 0))
    assert not file.record({KEY: 5})


def test_entries_of_a_write_in_progress_count_as_written() -> None:
    class Watched(MemoryFileSystem):
        watch: Callable[[], None] | None = None

        def rename(self, old: str, new: str) -> None:
            if self.watch is not None:
                self.watch()
            super().rename(old, new)

    fs = Watched()
    fs.make_directory(PATH)
    file = OffsetCheckpointFile(fs, f"{PATH}/{START}")
    found: list[bool] = []

    def meanwhile() -> None:
        assert file.record({})
        found.append(file.may_hold(KEY))

    fs.watch = meanwhile
    file.record({KEY: 5})
    file.write()
    fs.watch = None
    assert found == [True]
    assert (on_disk(fs, START), file.may_hold(KEY)) == ({KEY: 5}, True)
    file.write()
    assert (on_disk(fs, START), file.may_hold(KEY)) == ({}, False)


def test_a_write_that_runs_after_the_stop_does_nothing() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [PATH], run_in_thread=threads)
    append(manager.create_log(*KEY, TOPIC_ID, 0), b"a")
    threads.run()
    run_until(manager, 0, 5000)
    fs.is_full = True
    manager.close(5000)
    fs.is_full = False
    operations = fs.operations
    threads.run()
    assert fs.operations == operations, "another broker may use the directory by now"


def test_a_truncation_is_not_undone_by_a_checkpoint_that_waited() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [PATH], run_in_thread=threads)
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    run_until(manager, 0, 31_000)
    threads.run()
    assert on_disk(fs, RECOVERY) == {KEY: 0}
    append(log, b"a", b"b", b"c")
    log.roll(31_000)
    log.flush(31_000)
    run_until(manager, 31_000, 91_000)
    truncate(manager, 0, 91_000)
    threads.run()
    assert on_disk(fs, RECOVERY) == {KEY: 0}


@pytest.fixture
def one_log_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_task, "_LOGS_PER_STEP", 1)


def begin_write(manager: LogManager, file_name: str) -> None:
    """Begin to collect a checkpoint: the entry of the first log is collected, and those of other logs are not."""
    manager.create_log("u", 0, NEW_ID, 0)
    manager.checkpoints.write(manager.directories[PATH], file_name)


@pytest.mark.usefixtures("one_log_per_step")
def test_a_log_that_is_created_again_while_a_checkpoint_is_collected_gets_no_old_entry() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [PATH], run_in_thread=threads)
    # The first deletion of a log writes the checkpoints at once, and the next ones a second later.
    manager.create_log("v", 0, TOPIC_ID, 0)
    manager.delete_log("v", 0)
    run_until(manager, 0, 100)
    log = manager.create_log(*KEY, TOPIC_ID, 100)
    append(log, *[b"old"] * 10)
    log.delete_records_before(5)
    begin_write(manager, START)
    create_again(manager)
    run_until(manager, 100, 200)
    threads.run()
    assert KEY not in on_disk(fs, START)
    assert_new_log_is_complete(fs)


@pytest.mark.usefixtures("one_log_per_step")
def test_a_truncation_is_not_undone_by_a_checkpoint_that_is_collected() -> None:
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [PATH], run_in_thread=threads)
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    append(log, b"a", b"b", b"c")
    log.roll(0)
    log.flush(0)
    assert log.recovery_point == 3
    begin_write(manager, RECOVERY)
    truncate(manager, 0, 0)
    append(log, b"d")
    run_until(manager, 0, 100)
    threads.run()
    assert on_disk(fs, RECOVERY) == {KEY: 0, ("u", 0): 0}


@pytest.mark.usefixtures("one_log_per_step")
def test_a_log_that_moves_while_a_checkpoint_is_collected_keeps_its_entry() -> None:
    """The move ends without an effect, and the log is served as before."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, [PATH, "/data/b"], run_in_thread=threads)
    manager.prefer_directory(*KEY, PATH)
    log = manager.create_log(*KEY, TOPIC_ID, 0)
    append(log, *[b"old"] * 10)
    log.delete_records_before(5)
    manager.move_log(*KEY, "/data/b", 0)
    begin_write(manager, START)
    manager.move_log(*KEY, PATH, 0)
    run_until(manager, 0, 100)
    threads.run()
    assert on_disk(fs, START) == {KEY: 5}


@pytest.mark.usefixtures("one_log_per_step")
def test_a_log_that_is_deleted_while_a_checkpoint_is_collected_is_closed_at_once() -> None:
    """Otherwise one step would close all logs of a deleted topic."""
    manager = opened(MemoryFileSystem(), [PATH])
    log = weakref.ref(manager.create_log(*KEY, TOPIC_ID, 0))
    begin_write(manager, RECOVERY)
    manager.delete_log(*KEY)
    assert log() is None


def test_the_logs_of_a_checkpoint_are_visited_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visit takes 10 us here."""
    fs = MemoryFileSystem()
    manager = opened(fs, [PATH])
    for index in range(3000):
        manager.create_log("t", index, TOPIC_ID, 0)
    clock_s = 0.0

    def recovery_point(state: LogState) -> int:
        nonlocal clock_s
        clock_s += 0.000_01
        return 7

    monkeypatch.setattr(LogState, "recovery_point", property(recovery_point))
    manager.schedule._monotonic = lambda: clock_s
    manager.schedule.jobs.clear()
    manager.schedule.once(0, lambda: manager.checkpoints.write(manager.directories[PATH], RECOVERY))
    longest_s = 0.0
    for _ in range(20):
        before_s = clock_s
        manager.run_due(0)
        longest_s = max(longest_s, clock_s - before_s)
    assert len(on_disk(fs, RECOVERY)) == 3000
    assert longest_s < 0.01


@pytest.mark.parametrize("logs_per_step", [1, 500])
@pytest.mark.parametrize("seed", range(30))
def test_no_entry_is_beyond_the_end_of_its_log(seed: int, logs_per_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random operations on two topics in two directories, with threads in any order and writes that fail.

    Every log begins at offset 0, so an entry beyond the log's end is one of an earlier log of the same name.
    """
    monkeypatch.setattr(checkpoint_task, "_LOGS_PER_STEP", logs_per_step)
    random, fs, threads = Random(seed), MemoryFileSystem(), Threads()
    paths = [PATH, "/data/b"]
    manager = opened(fs, paths, run_in_thread=threads)
    ids: dict[str, bytes] = {}
    now_ms = 0
    for _ in range(250):
        topic = random.choice("tu")
        log = manager.get(topic, 0)
        action = random.randrange(9)
        if action == 0 and log is not None:
            manager.delete_log(topic, 0)
            del ids[topic]
        elif action <= 2 and log is None:
            new_id = random.randbytes(16)
            try:
                manager.create_log(topic, 0, new_id, now_ms, is_new=True)
                ids[topic] = new_id
            except DiskFullError:
                pass
        elif action == 3 and log is not None:
            append(log, *[b"x"] * random.randrange(1, 9))
            log.delete_records_before(random.randrange(log.log_start_offset, log.log_end_offset + 1))
            manager.cleaner.offsets[topic, 0] = log.log_end_offset
            if random.random() < 0.5:
                log.roll(now_ms)
                log.flush(now_ms)
        elif action <= 5:
            now_ms = run_until(manager, now_ms, now_ms + 61_000)
            for file_name in ALL_CHECKPOINTS:
                manager.checkpoints.write(manager.directories[random.choice(paths)], file_name)
            manager.checkpoint_cleaned(random.choice(paths), lambda: None)
        elif action <= 7 and threads.waiting:
            run_inline(*threads.waiting.pop(random.randrange(len(threads.waiting))))
        elif action == 8:
            fs.heal()
            if random.random() < 0.5:
                fs.fail("write", after=random.randrange(1, 4), error=errno.ENOSPC, path_contains="offset-checkpoint")
        for path in paths:
            for file_name in ALL_CHECKPOINTS:
                for key, offset in on_disk(fs, file_name, path).items():
                    found = manager.get(*key)
                    if found is not None and found.log_directory == path:
                        assert offset <= found.log_end_offset, (file_name, key)
    fs.crash(random)
    again = opened(fs, paths, ids=ids)
    assert again.online_directories == paths
