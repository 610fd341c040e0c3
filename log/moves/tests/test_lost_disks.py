"""Crashes during a move of a replica, after which one of the two disks is lost, for a time or for good."""

import errno

import pytest

from odradek.log.background.tasks import Done, run_inline
from odradek.log.log_manager import LogManager
from odradek.log.management.loading import DuplicateLogError
from odradek.log.moves.tests.test_crashes import crash_at_each_change, stop_between_the_renames
from odradek.log.moves.tests.test_moves import (
    KEY,
    SMALL_SEGMENTS,
    A,
    B,
    begin,
    create,
    move_until_served,
    numbered,
    open_manager,
    other,
    values,
)
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import REPLACED_REPLICA_FILE
from odradek.log.storage.filesystem import File
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import (
    NEW_ID,
    TOPIC_ID,
    append,
    folders,
    opened,
    refuse_new_files,
    run_due,
    run_until,
    served,
)
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import KafkaError


def replace_disk(fs: MemoryFileSystem, path: str) -> None:
    """Replace the disk of a log directory by an empty one."""
    fs.remove_tree(path)
    fs.make_directory(path)


def is_served(manager: LogManager) -> bool:
    try:
        return manager.get(*KEY) is not None
    except KafkaError:
        return False


def crash_between_the_renames(fs: MemoryFileSystem, count: int = 5) -> PartitionLog:
    """Move a log, append `count` durable records to the new one, and crash. Return the new log."""
    moved = served(stop_between_the_renames(fs))
    append(moved, *(b"%d" % (200 + number) for number in range(count)))
    moved.flush(0)
    fs.crash()
    return moved


def test_a_replaced_log_is_not_served_while_the_new_one_is_offline():
    """It lacks the last records. If it got others, the return of the new log would remove them."""
    fs = MemoryFileSystem()
    moved = crash_between_the_renames(fs)
    fs.lost.add(moved.log_directory)
    manager = open_manager(fs)
    assert not is_served(manager)
    assert manager.refused_paths() == [f"{other(moved)}/t-0"]
    manager.close(0)
    fs.lost.clear()
    again = open_manager(fs)
    assert (served(again).log_directory, values(served(again))) == (moved.log_directory, numbered(205))
    run_until(again, 0, 2_000)
    assert folders(fs, other(moved)) == []


def test_a_replaced_log_is_served_when_the_disk_of_the_new_one_was_replaced(caplog):
    fs = MemoryFileSystem()
    moved = crash_between_the_renames(fs)
    replace_disk(fs, moved.log_directory)
    manager = open_manager(fs)
    assert values(served(manager)) == numbered(200)
    assert f"directory={other(moved)}/t-0" in caplog.text
    append(served(manager), b"200")
    manager.close(0)
    assert values(served(open_manager(fs))) == numbered(201)


def test_a_new_log_that_returns_after_the_old_one_was_served_is_refused():
    """Both have acknowledged records that the other lacks."""
    fs = MemoryFileSystem()
    moved = crash_between_the_renames(fs)
    manager = opened(fs, (other(moved),), SMALL_SEGMENTS, ids={"t": TOPIC_ID})
    append(served(manager), b"another")
    manager.close(0)
    with pytest.raises(DuplicateLogError):
        open_manager(fs)


def test_a_replaced_log_is_kept_if_the_new_one_cannot_be_opened():
    fs = MemoryFileSystem()
    moved = crash_between_the_renames(fs)
    fs.fail("write", path_contains=moved.directory)
    manager = open_manager(fs)
    run_until(manager, 0, 5_000)
    assert manager.online_directories == [other(moved)]
    assert not is_served(manager)
    assert folders(fs, other(moved)) == ["t-0"]
    manager.close(0)
    replace_disk(fs, moved.log_directory)
    assert values(served(open_manager(fs))) == numbered(200)


def test_a_replaced_log_is_removed_only_when_the_name_of_the_new_one_is_durable():
    """The broker is killed, starts again, and then the power fails."""
    fs = MemoryFileSystem()
    # Without further segments the start writes no checkpoint, which would sync the names in the log directory.
    stop_between_the_renames(fs, 5)
    fs._held.clear()
    run_until(open_manager(fs), 0, 0)
    fs.crash(lose_names=True)
    assert values(served(open_manager(fs))) == numbered(5)


def run_until_marked(fs: MemoryFileSystem, threads: Threads, log: PartitionLog) -> Done:
    """Run a move until the log's directory is marked. Return the function that reports the end of this work."""
    while True:
        work, done = threads.waiting.pop(0)
        work()
        if is_marked(fs, log):
            return done
        done(None)


def is_marked(fs: MemoryFileSystem, log: PartitionLog) -> bool:
    return fs.exists(f"{log.directory}/{REPLACED_REPLICA_FILE}")


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_move_that_ends_removes_its_mark(is_cancelled):
    """Otherwise the log would not be served when a log directory is offline later."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    log.flush(0)
    begin(manager, log)
    done = run_until_marked(fs, threads, log)
    if is_cancelled:
        manager.move_log(*KEY, log.log_directory, 0)
    else:
        manager.fail_directory(other(log), OSError("dead"))
    done(None)
    threads.run()
    fs.crash()
    assert not is_marked(fs, log)
    fs.lost.add(other(log))
    assert values(served(open_manager(fs))) == numbered(200)


def test_a_clean_stop_removes_the_mark_of_a_move():
    """Otherwise the log would not be served if another log directory is offline at the next start."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    run_until_marked(fs, threads, log)
    manager.close(0)
    assert not is_marked(fs, log)
    fs.lost.add(other(log))
    assert values(served(open_manager(fs))) == numbered(200)


def test_a_start_that_is_refused_keeps_the_mark_of_a_replaced_log():
    """The mark shows which of two logs is the older one. A third one, from a backup, prevents the start."""
    fs = MemoryFileSystem()
    moved = crash_between_the_renames(fs)
    fs.make_directory("/data/c")
    manager = opened(fs, ("/data/c",), SMALL_SEGMENTS, ids={"t": TOPIC_ID})
    append(manager.create_log(*KEY, TOPIC_ID, 0), b"old")
    manager.close(0)
    with pytest.raises(DuplicateLogError):
        opened(fs, (A, B, "/data/c"), SMALL_SEGMENTS, ids={"t": TOPIC_ID})
    fs.remove_tree("/data/c/t-0")
    again = opened(fs, (A, B, "/data/c"), SMALL_SEGMENTS, ids={"t": TOPIC_ID})
    assert (served(again).log_directory, values(served(again))) == (moved.log_directory, numbered(205))


def test_a_shortage_does_not_keep_the_mark_of_a_move_that_ends():
    """Until the next move, a start without the other log directory would not have served the log."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    done = run_until_marked(fs, threads, log)
    manager.move_log(*KEY, log.log_directory, 0)
    fs.fail("remove", error=errno.ENOMEM, path_contains=REPLACED_REPLICA_FILE)
    done(None)
    threads.run()
    assert is_marked(fs, log)
    run_until(manager, 0, 6_000)
    threads.run()
    assert not is_marked(fs, log)
    begin(manager, log)
    threads.run()
    assert served(manager).log_directory == other(log)


def test_a_topic_that_is_created_again_while_its_log_is_marked_has_no_mark(monkeypatch):
    """The thread that writes the mark has the path of the deleted log, which is that of the new one."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    open_file = fs.open

    def delete_first(path: str, *, create: bool = False) -> File:
        if path.endswith(REPLACED_REPLICA_FILE) and served(manager) is log:
            manager.delete_log(*KEY)
            manager.prefer_directory(*KEY, home)
            manager.create_log(*KEY, NEW_ID, 0)
        return open_file(path, create=create)

    monkeypatch.setattr(fs, "open", delete_first)
    begin(manager, log)
    threads.run()
    new = served(manager)
    assert new is not log
    assert new.log_directory == home
    assert not is_marked(fs, new)


def test_the_next_move_waits_until_the_mark_of_the_cancelled_one_is_removed():
    """Otherwise its own mark would be removed."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    done = run_until_marked(fs, threads, log)
    manager.move_log(*KEY, log.log_directory, 0)
    done(None)
    [unmark] = threads.waiting
    threads.waiting.clear()
    manager.move_log(*KEY, other(log), 0)
    threads.run()
    assert (served(manager), is_marked(fs, log)) == (log, True)
    run_inline(*unmark)
    threads.run()
    assert served(manager).log_directory == other(log)


def test_the_topic_id_of_a_replaced_log_is_durable_with_its_mark():
    """The log is so new that its topic id is not synced yet. Without topic ids the next start would be refused."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    assert len(threads.waiting) == 1, "the sync of its name"
    threads.waiting.clear()
    log.active_segment.file.sync()
    move_until_served(manager, log, threads)
    fs.crash()
    again = open_manager(fs)
    assert (served(again).log_directory, values(served(again))) == (other(log), numbered(200))
    run_until(again, 0, 2_000)
    assert folders(fs, log.log_directory) == []


def test_a_move_that_waits_for_space_has_no_mark():
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    done = run_until_marked(fs, threads, log)
    append(log, b"200")
    fs.fail("write", error=errno.ENOSPC, path_contains=other(log))
    done(None)
    threads.run()
    run_due(manager, 6_000)
    assert (served(manager), is_marked(fs, log)) == (log, True)
    while threads.waiting and is_marked(fs, log):
        threads.run(1)
    assert (served(manager), is_marked(fs, log)) == (log, False)
    threads.run()
    assert values(served(manager)) == numbered(201)
    assert served(manager).log_directory == other(log)


def test_a_log_moves_from_a_full_disk():
    """There, the old directory cannot be marked."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    refuse_new_files(fs, errno.ENOSPC, lambda path: path.startswith(log.directory))
    begin(manager, log)
    threads.run()
    assert served(manager).log_directory == other(log)
    assert values(served(manager)) == numbered(200)


@pytest.mark.slow
@pytest.mark.parametrize("is_target", [True, False])
@pytest.mark.parametrize("is_for_good", [True, False])
@pytest.mark.parametrize(("seed", "lose_names"), [(None, True), (1, False)])
def test_a_crash_at_any_change_and_the_loss_of_a_disk(seed, lose_names, is_for_good, is_target):
    """Only the records that are on no other disk are lost, and no record is lost with a disk that returns."""
    at, not_served = 0, 0
    for workload in crash_at_each_change(seed, lose_names=lose_names):
        at += 1
        fs = workload.fs
        if not workload.durable:
            continue
        durable, source = workload.durable, workload.source
        lost = ({A, B} - {source}).pop() if is_target else source
        if is_for_good:
            replace_disk(fs, lost)
        else:
            fs.lost.add(lost)
        manager = open_manager(fs)
        if is_served(manager):
            found = served(manager)
            # The old log may be served without the records that only the lost disk had.
            replaced_at = workload.durable_at_replacement
            kept = durable if replaced_at is None or found.log_directory != source else replaced_at
            assert values(found)[:kept] == numbered(kept)
            append(found, *(b"%d" % number for number in range(found.log_end_offset, 300)))
            found.flush(0)
            durable = 300
        else:
            not_served += 1
        fs.crash()
        if not is_for_good:
            fs.lost.clear()
            assert values(served(open_manager(fs)))[:durable] == numbered(durable)
    assert at > 200
    # The old disk has the log until almost half of the changes are made.
    assert 0 < not_served < (25 if is_target else 110)
