"""Crashes of the machine during a move of a replica: no durable record is lost, and one directory is served."""

import itertools
from collections.abc import Iterator
from random import Random

import pytest

from odradek.log.background.tasks import run_inline
from odradek.log.log_manager import LogManager
from odradek.log.management.loading import DuplicateLogError
from odradek.log.moves.tests.test_moves import (
    KEY,
    SMALL_SEGMENTS,
    A,
    B,
    begin,
    create,
    lags,
    move_until_served,
    numbered,
    open_manager,
    other,
    values,
)
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.checkpoints import REPLACED_REPLICA_FILE
from odradek.log.storage.memory_filesystem import MemoryFileSystem, SimulatedCrash
from odradek.log.tests.managers import TOPIC_ID, append, folders, known, make_manager, run_due, run_until, served
from odradek.log.tests.threads import Threads
from odradek.protocol.types import ZERO_UUID


class Workload:
    """Moves a log, which gets further records and flushes meanwhile.

    durable: the number of durable records
    source: the log directory that the log leaves
    durable_at_replacement: the number of durable records when the new log was served; None before
    """

    def __init__(self, fs: MemoryFileSystem) -> None:
        self.fs = fs
        self.durable = 0
        self.appended = 0
        self.source = ""
        self.durable_at_replacement: int | None = None

    def _replaced(self, log: PartitionLog) -> None:
        self.durable_at_replacement = self.durable

    def run(self) -> None:
        threads = Threads()
        manager = open_manager(self.fs, run_in_thread=threads, on_log_replaced=self._replaced)
        self.source = create(manager, 60).log_directory
        self.appended = 60
        self._flush(manager)
        begin(manager, served(manager))
        while threads.waiting:
            run_inline(*threads.waiting.pop(0))
            append(served(manager), b"%d" % self.appended)
            self.appended += 1
            if self.appended % 3 == 0:
                self._flush(manager)
        run_until(manager, 0, 3_000)
        threads.run()

    def _flush(self, manager: LogManager) -> None:
        log = served(manager)
        if log not in manager.flush_task._held and not manager.flush_task.is_flushing(log):
            log.flush(0)
            self.durable = log.log_end_offset


def crash_at_each_change(seed: int | None, *, lose_names: bool) -> Iterator[Workload]:
    """Run the workload until its first change, until its second, and so on, then completely, each followed by a crash.

    Yield the workload. With a seed a random part of what was not synced survives.
    """
    is_complete = False
    for at in itertools.count(1):
        workload = Workload(MemoryFileSystem())
        workload.fs.crash_at(at)
        try:
            workload.run()
            is_complete = True
        except SimulatedCrash:
            pass
        workload.fs.crash(None if seed is None else Random(seed * 10_000 + at), lose_names=lose_names)
        yield workload
        if is_complete:
            return


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "lose_names"), [(None, True), (1, False)])
def test_a_crash_at_any_change_loses_no_durable_record(seed, lose_names):
    at, homes = 0, set()
    for workload in crash_at_each_change(seed, lose_names=lose_names):
        at += 1
        fs = workload.fs
        manager = open_manager(fs)
        assert manager.online_directories == [A, B]
        if workload.durable:
            log = served(manager)
            assert values(log)[: workload.durable] == numbered(workload.durable)
            run_until(manager, 0, 3_000)
            found = served(manager)
            assert values(found) == numbered(found.log_end_offset)
            assert found.log_end_offset >= workload.durable
            assert manager.table.future_logs == {}
            assert lags(manager) == [(found.log_directory, 0, False)]
            homes.add(found.log_directory)
            append(found, b"%d" % found.log_end_offset)
            manager.close(0)
            assert values(served(open_manager(fs)))[: workload.durable] == numbered(workload.durable)
    assert homes == {A, B}
    assert at > 60


def stop_between_the_renames(fs: MemoryFileSystem, count: int = 200, topic_id: bytes = TOPIC_ID) -> LogManager:
    """Move a durable log of `count` records, and stop after its new directory got the partition's name."""
    threads = Threads()
    manager = open_manager(fs, topic_id=topic_id, run_in_thread=threads)
    log = create(manager, count, topic_id)
    log.flush(0)
    move_until_served(manager, log, threads)
    return manager


def test_the_offsets_of_a_log_are_durable_when_it_is_served_elsewhere():
    """Without its log start deleted records would return; without the compacted offset a gap would end the log."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    log.delete_records_before(70)
    removed = next(segment for segment in log.segments if segment.base_offset > 100)
    end_offset = log.state.bases[log.segments.index(removed) + 1]
    removed.truncate_to(removed.base_offset, 0)
    manager.cleaner.offsets[KEY] = end_offset
    expected = values(log)
    move_until_served(manager, log, threads)
    fs.crash()
    again = served(open_manager(fs))
    assert again.log_directory == other(log)
    assert (again.log_start_offset, again.log_end_offset) == (70, 200)
    assert values(again) == expected[-len(values(again)) :]
    assert values(again)[-1] == b"199"


@pytest.mark.parametrize("topic_id", [TOPIC_ID, ZERO_UUID], ids=["id", "no id"])
def test_of_two_directories_the_new_one_is_served(topic_id):
    fs = MemoryFileSystem()
    manager = stop_between_the_renames(fs, topic_id=topic_id)
    moved = served(manager)
    append(moved, b"200")
    manager.close(0)
    assert (folders(fs, A), folders(fs, B)) == (["t-0"], ["t-0"])
    again = open_manager(fs, topic_id=topic_id)
    assert served(again).log_directory == moved.log_directory
    assert values(served(again)) == numbered(201)
    assert folders(fs, other(moved)) == ["t-0-delete"]
    run_until(again, 0, 2_000)
    assert folders(fs, other(moved)) == []


def test_without_the_mark_of_a_move_two_directories_are_refused():
    fs = MemoryFileSystem()
    manager = stop_between_the_renames(fs)
    manager.close(0)
    fs.remove(f"{other(served(manager))}/t-0/{REPLACED_REPLICA_FILE}")
    with pytest.raises(DuplicateLogError):
        open_manager(fs)


def test_a_log_that_moved_can_move_back_through_a_crash():
    """The first move was completed by a start."""
    fs = MemoryFileSystem()
    manager = stop_between_the_renames(fs)
    home = other(served(manager))
    manager.close(0)
    threads = Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = served(manager)
    run_due(manager, 2_000)
    threads.run()
    move_until_served(manager, log, threads)
    manager.close(0)
    again = served(open_manager(fs))
    assert (again.log_directory, values(again)) == (home, numbered(200))


@pytest.mark.parametrize("is_assigned", [False, True])
def test_the_copy_of_a_log_that_was_deleted_before_a_crash_becomes_stray(is_assigned: bool) -> None:
    """It remained for ever. Without its log, it is kept unchanged if the broker has to have the partition."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    threads.run(2)
    # A thread uses the copy, which is removed afterwards.
    manager.delete_log(*KEY)
    fs.crash(lose_names=False)
    assert (folders(fs, log.log_directory), folders(fs, other(log))) == (["t-0-delete"], ["t-0-future"])
    for _ in range(2):
        again = make_manager(fs, (A, B), SMALL_SEGMENTS)
        again.open(0, known({"t": TOPIC_ID} if is_assigned else {}, are_complete=True))
        assert (again.table.logs, again.table.future_logs) == ({}, {})
        assert folders(fs, other(log)) == ["t-0-future" if is_assigned else "t-0-stray"]
        again.close(0)
