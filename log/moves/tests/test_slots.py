"""Slots of moves: a move that waits for the throttle, or for disk space, does not keep others from running."""

import errno

from odradek.log.log_manager import LogManager
from odradek.log.management.log_table import Key
from odradek.log.moves.move import ReplicaMove
from odradek.log.moves.tests.test_moves import SMALL_SEGMENTS, A, B, Throttle, open_manager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import TOPIC_ID, append, opened, run_due, run_until
from odradek.log.tests.threads import Threads

C = "/data/c"


class RateLimit:
    """A MoveThrottle that allows `bytes_per_s` on average. The test sets the clock `now_ms`."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self.now_ms = 0
        self.copied_bytes = 0

    def is_exceeded(self) -> bool:
        return self.copied_bytes * 1000 > self._bytes_per_s * self.now_ms

    def record(self, size_bytes: int) -> None:
        self.copied_bytes += size_bytes


def create_logs(manager: LogManager, count: int, *values: bytes) -> list[PartitionLog]:
    """Create logs of partitions that do not exist, with these records, all of them in the first directory."""
    first = len(manager.all_logs())
    logs = []
    for partition in range(first, first + count):
        manager.prefer_directory("t", partition, A)
        log = manager.create_log("t", partition, TOPIC_ID, 0)
        append(log, *values)
        log.flush(0)
        logs.append(log)
    return logs


def begin_all(manager: LogManager, logs: list[PartitionLog], target: str = B) -> None:
    for log in logs:
        manager.move_log(log.topic, log.partition, target, 0)


def moved(manager: LogManager) -> list[int]:
    """The partitions that are not in the first directory."""
    return sorted(log.partition for log in manager.all_logs() if log.log_directory != A)


def test_a_log_without_records_does_not_wait_for_throttled_moves():
    throttle = Throttle()
    throttle.is_over = True
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle)
    begin_all(manager, create_logs(manager, 10, b"0"))
    begin_all(manager, create_logs(manager, 1))
    run_until(manager, 0, 1_000)
    assert moved(manager) == [10]
    throttle.is_over = False
    run_until(manager, 1_000, 2_000)
    assert moved(manager) == list(range(11))


def test_a_small_log_moves_before_large_throttled_ones():
    throttle = RateLimit(100_000)
    manager = open_manager(MemoryFileSystem(), {"internal.segment.bytes": "1048576"}, move_throttle=throttle)
    value = bytes(400_000)
    begin_all(manager, create_logs(manager, 6, *[value] * 5))
    begin_all(manager, create_logs(manager, 1, b"small"))
    ended_ms: dict[int, int] = {}
    for now_ms in range(0, 200_000, 50):
        throttle.now_ms = now_ms
        run_due(manager, now_ms)
        for partition in moved(manager):
            ended_ms.setdefault(partition, now_ms)
    # A turn of a large log takes 8 s: a read has two of its batches. The first one had a turn before the others began.
    assert ended_ms[6] <= 60_000
    assert min(ended_ms[partition] for partition in range(1, 6)) > 60_000


def test_the_throttle_limits_the_rate_of_many_moves():
    throttle = RateLimit(1000)
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle)
    begin_all(manager, create_logs(manager, 50, bytes(900)))
    for now_ms in range(0, 20_000, 50):
        throttle.now_ms = now_ms
        run_due(manager, now_ms)
        # At most the reads of one turn exceed it.
        assert throttle.copied_bytes <= now_ms + 6 * 1000
    assert 15 <= len(moved(manager)) <= 25


def test_many_throttled_moves_begin_in_several_turns():
    """A turn of the reactor begins a few. None is forgotten."""
    throttle, threads = Throttle(), Threads()
    throttle.is_over = True
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle, run_in_thread=threads)
    begin_all(manager, create_logs(manager, 500, b"0"))
    run_until(manager, 0, 500)
    threads.run()
    assert moved(manager) == []
    throttle.is_over = False
    for now_ms in range(500, 6_000, 10):
        run_due(manager, now_ms)
        threads.run(10_000)
    assert len(moved(manager)) == 500


def test_a_full_disk_does_not_delay_moves_to_another_one():
    fs, threads = MemoryFileSystem(), Threads()
    manager = opened(fs, (A, B, C), SMALL_SEGMENTS, ids={"t": TOPIC_ID}, run_in_thread=threads)
    logs = create_logs(manager, 5, b"0")
    full, [last] = logs[:4], logs[4:]
    begin_all(manager, full)
    for log in full:
        fs.fail("write", error=errno.ENOSPC, path_contains=f"{B}/t-{log.partition}.")
    begin_all(manager, [last], C)
    threads.run()
    assert moved(manager) == [4]
    run_until(manager, 0, 6_000)
    threads.run()
    assert moved(manager) == list(range(5))


def test_a_cancelled_throttled_move_frees_no_slot_twice():
    throttle, threads = Throttle(), Threads()
    throttle.is_over = True
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle, run_in_thread=threads)
    logs = create_logs(manager, 12, *[b"%d" % number for number in range(100)])
    begin_all(manager, logs)
    begin_all(manager, logs[:6], A)
    assert set(manager.table.future_logs) == {("t", partition) for partition in range(6, 12)}
    throttle.is_over = False
    run_due(manager, 100)
    for now_ms in range(200, 1_000, 10):
        run_due(manager, now_ms)
        threads.run()
    assert moved(manager) == list(range(6, 12))


def test_a_disk_failure_ends_many_moves_in_linear_time(monkeypatch):
    """All of them end in one turn of the reactor."""
    throttle, reads = Throttle(), 0
    throttle.is_over = True

    def read_key(move: ReplicaMove) -> Key:
        nonlocal reads
        reads += 1
        key: Key = move.__dict__["key"]
        return key

    def set_key(move: ReplicaMove, key: Key) -> None:
        move.__dict__["key"] = key

    monkeypatch.setattr(ReplicaMove, "key", property(read_key, set_key), raising=False)
    threads = Threads()
    manager = open_manager(MemoryFileSystem(), move_throttle=throttle, run_in_thread=threads)
    begin_all(manager, create_logs(manager, 200, b"0"))
    run_until(manager, 0, 500)
    threads.run()
    run_until(manager, 500, 1_000)
    begin_all(manager, create_logs(manager, 200, b"0"))
    reads = 0
    manager.fail_directory(B, OSError("dead"))
    assert manager.table.future_logs == {}
    assert reads < 400 * 10
    throttle.is_over = False
    run_until(manager, 1_000, 2_000)
    threads.run()
    assert moved(manager) == []
