"""Moves of replicas that meet deletions, truncations, shortages, and busy producers."""

from typing import NoReturn

from odradek.log.storage.filesystem import ExhaustedError
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import NEW_ID, append, folders, opened, run_until, served, truncate
from odradek.log.tests.test_moves import KEY, A, B, begin, create, numbered, open_manager, other, values
from odradek.log.tests.threads import Threads
from odradek.log.truncation import LogTruncation
from odradek.protocol.records import build_batch


def test_a_topic_that_is_created_anew_keeps_its_directory():
    """The directory that the replica of the deleted topic left was not renamed yet."""
    fs, threads = MemoryFileSystem(), Threads()
    manager = open_manager(fs, run_in_thread=threads)
    log = create(manager)
    home = log.log_directory
    begin(manager, log)
    while served(manager) is log:
        threads.run(1)
    manager.delete_log(*KEY)
    manager.prefer_directory(*KEY, home)
    new = manager.create_log(*KEY, NEW_ID, 0)
    append(new, b"new")
    threads.run()
    run_until(manager, 0, 5_000)
    threads.run()
    assert new.directory == f"{home}/t-0"
    assert (folders(fs, home), folders(fs, other(new))) == (["t-0"], [])
    manager.close(0)
    assert values(served(opened(fs, (A, B), ids={"t": NEW_ID}))) == [b"new"]


def test_a_busy_log_whose_appends_are_flushed_moves():
    """Whenever a flush ends, further appends wait for the next one."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    begin(manager, log)
    number = 200

    def produce(error: Exception | None = None) -> None:
        nonlocal number
        assert error is None
        if number < 1000:
            append(served(manager), b"%d" % number)
            number += 1
            manager.flush(served(manager), produce)

    for _ in range(3):
        produce()
        threads.run(1)
    while served(manager) is log and threads.waiting:
        threads.run(1)
    assert number < 1000
    threads.run(10_000)
    assert values(served(manager)) == numbered(1000)


def test_a_shortage_keeps_no_records_that_were_truncated(monkeypatch):
    """The truncation of the future log is refused at first."""
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), run_in_thread=threads)
    log = create(manager)
    future = begin(manager, log)
    while future.log_end_offset < 200:
        threads.run(1)
    truncate(manager, 120, 0)
    log.elect(3)
    for number in range(100):
        batch = build_batch([(0, b"k", b"new %d" % number, ())])
        log.append_as_leader(memoryview(batch), leader_epoch=3, now_ms=0)
    refused: list[int] = []

    def refuse(truncation: LogTruncation, start_offset: int, end_offset: int, now_ms: int) -> NoReturn:
        refused.append(end_offset)
        raise ExhaustedError(future.log_directory, "no file descriptor")

    with monkeypatch.context() as shortage:
        shortage.setattr(LogTruncation, "_find_producers", refuse)
        threads.run()
    assert (refused, served(manager)) == ([120], log)
    run_until(manager, 0, 6_000)
    threads.run()
    assert served(manager) is future
    assert values(future) == [*numbered(120), *(b"new %d" % number for number in range(100))]
