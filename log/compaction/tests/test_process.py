"""Compaction in a process: the same outcome as in a thread, and none if the process ends unexpectedly or is stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from odradek.log.background.tasks import Done
from odradek.log.compaction import cleaner as cleaner_module
from odradek.log.compaction import process as compaction_process
from odradek.log.compaction.process import ProcessWorker
from odradek.log.compaction.run import Cancelled, WorkerLost, WorkerStalled
from odradek.log.compaction.worker_pipe import ResponsePipe, WorkerPipe, wait_for
from odradek.log.log_manager import LogManager
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import OsFileSystem
from odradek.log.tests.cleaning import T0, clean, make_log, mark, open_manager, put, records, roll
from odradek.log.tests.managers import ONE_THREAD, run_due
from odradek.log.validation.batch import Origin
from odradek.protocol.records import Codec, ControlType, build_batch, empty_batch, read_header

DEADLINE_SECONDS = 60
SEGMENTS = {"internal.segment.bytes": "2000", "segment.index.bytes": "4096"}


class Workers:
    """Starts processes, records them, and ends all of them.

    No process runs at idle priority, whatever the argument: it would exit if the processors are busy.
    """

    def __init__(self) -> None:
        self.started: list[ProcessWorker] = []
        self.idle_priorities: list[bool] = []

    def __call__(self, is_idle_priority: bool = True) -> ProcessWorker:
        worker = ProcessWorker(is_idle_priority=False)
        self.idle_priorities.append(is_idle_priority)
        self.started.append(worker)
        return worker


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(cleaner_module, "_MIN_BYTES_FOR_PROCESS", 0)


@pytest.fixture
def workers() -> Iterator[Workers]:
    result = Workers()
    yield result
    for worker in result.started:
        worker.close()


class Threads:
    """A RunInThread with real threads. `run_until` calls back in the test's thread."""

    def __init__(self) -> None:
        self._done: SimpleQueue[tuple[Done, Exception | None]] = SimpleQueue()
        self.count = 0

    def __call__(self, work: Callable[[], None], done: Done) -> None:
        self.count += 1

        def run():
            error = None
            try:
                work()
            except Exception as raised:
                error = raised
            self._done.put((done, error))

        threading.Thread(target=run).start()

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.run_once()

    def run_once(self) -> None:
        done, error = self._done.get(timeout=DEADLINE_SECONDS)
        self.count -= 1
        done(error)

    def finish(self) -> None:
        self.run_until(lambda: self.count == 0)


def fill(log: PartitionLog, rounds: int = 20, producer_id: int = 5) -> None:
    for index in range(rounds):
        put(log, *[(b"key%d" % key, b"%d" % index) for key in range(index, index + 30)], codec=Codec(index % 5))
        put(log, (b"key%d" % index, None), (b"a key that is longer than sixteen bytes", b"x" * index))
        put(
            log,
            (b"no%d" % index, b"1"),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=index,
            transactional=True,
        )
        mark(log, ControlType.COMMIT if index % 2 else ControlType.ABORT, producer_id)
    roll(log)


def contents(directory: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(directory.iterdir()):
        if path.suffix not in (".snapshot", ".metadata"):
            found[path.name] = path.read_bytes()
    return found


def test_a_process_writes_the_same_bytes_as_a_thread(tmp_path: Path, workers: Workers):
    for name, options in (("thread", {}), ("process", {"start_compaction_worker": workers})):
        path = tmp_path / name
        path.mkdir()
        manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(path), **options)
        fill(log)
        clean(manager)
        fill(log, 3, producer_id=6)
        clean(manager, T0 + 2000)
        run_due(manager, T0 + 2000)
        assert manager.cleaner.uncleanable == set()
        manager.close(T0)
    assert workers.started
    assert contents(tmp_path / "process/t-0") == contents(tmp_path / "thread/t-0")


def test_there_is_a_process_only_while_there_is_work(tmp_path: Path, workers: Workers):
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=workers)
    assert workers.started == []
    fill(log)
    clean(manager)
    [worker] = workers.started
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    manager.close(T0)


def test_a_process_at_idle_priority_or_its_successor_completes_a_compaction(tmp_path: Path):
    """On a busy machine the first process exits, and its successor runs at normal priority."""

    def start(is_idle_priority):
        return ProcessWorker(is_idle_priority=is_idle_priority)

    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=start)
    fill(log)
    clean(manager)
    assert manager.cleaner.offsets == {("t", 0): log.log_end_offset}
    manager.close(T0)


def test_a_small_log_is_compacted_without_a_process(tmp_path: Path, workers: Workers, monkeypatch):
    monkeypatch.undo()
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=workers)
    fill(log)
    clean(manager)
    assert workers.started == []
    assert manager.cleaner.offsets == {("t", 0): log.log_end_offset}
    manager.close(T0)


def test_a_small_log_of_many_records_is_compacted_by_a_process(tmp_path: Path, workers: Workers, monkeypatch):
    monkeypatch.undo()
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=workers)
    fill(log)
    many = empty_batch(read_header(build_batch([(T0, b"k", b"v", ())]))._replace(last_offset_delta=70_000))
    log.append_as_leader(memoryview(many), leader_epoch=0, now_ms=T0, origin=Origin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    roll(log)
    log.flush(T0)
    assert log.size_bytes < 256 * 1024
    clean(manager)
    assert len(workers.started) == 1
    manager.close(T0)


def test_a_thread_compacts_if_no_process_can_be_started(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def start(is_idle_priority):
        raise BlockingIOError("no more processes")

    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=start)
    fill(log)
    clean(manager)
    assert manager.cleaner.offsets == {("t", 0): log.log_end_offset}
    assert "no more processes" in caplog.text
    manager.close(T0)


def slow_log(
    tmp_path: Path, workers: Workers, threads: Threads
) -> tuple[LogManager, PartitionLog, list[tuple[int, bytes | None, bytes | None]]]:
    """A log whose compaction is in progress, and would take hours at its rate."""
    settings = ONE_THREAD._replace(log_cleaner_io_max_bytes_per_second=1000.0)
    options = {"settings": settings, "run_in_thread": threads, "start_compaction_worker": workers}
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), **options)
    fill(log)
    threads.finish()
    before = records(log)
    while manager.cleaner.step(T0):
        pass
    assert manager.cleaner.running
    return manager, log, before


def test_the_death_of_the_process_leaves_the_log_as_it_was(
    tmp_path: Path, workers: Workers, caplog: pytest.LogCaptureFixture
):
    threads = Threads()
    manager, log, before = slow_log(tmp_path, workers, threads)
    os.kill(workers.started[0].pid, signal.SIGKILL)
    threads.finish()
    assert not manager.cleaner.running
    assert records(log) == before
    assert manager.cleaner.uncleanable == set()
    assert "ended unexpectedly" in caplog.text
    manager.update_settings(ONE_THREAD)
    while manager.cleaner.step(T0):
        pass
    assert workers.idle_priorities == [True, False], "the first may have exited for lack of processor time"
    threads.run_until(lambda: not manager.cleaner.running)
    assert manager.cleaner.offsets == {("t", 0): log.log_end_offset}
    assert len(records(log)) < len(before)
    manager.close(T0)


def test_a_log_whose_processes_die_repeatedly_is_uncleanable(tmp_path: Path, workers: Workers):
    threads = Threads()
    manager, _, _ = slow_log(tmp_path, workers, threads)
    for _ in range(3):
        assert manager.cleaner.running
        os.kill(workers.started[-1].pid, signal.SIGKILL)
        threads.finish()
        manager.cleaner.step(T0)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert len(workers.started) == 3
    manager.close(T0)


@pytest.mark.parametrize("how", ["cancel", "delete", "close"])
def test_a_cancelled_compaction_ends_at_once(tmp_path: Path, workers: Workers, how):
    threads = Threads()
    manager, log, before = slow_log(tmp_path, workers, threads)
    if how == "cancel":
        manager.cleaner.cancel()
    elif how == "delete":
        manager.delete_log("t", 0)
    else:
        manager.close(T0)
    threads.finish()
    assert not manager.cleaner.running
    assert manager.cleaner.uncleanable == set()
    assert manager.online_directories == [str(tmp_path)]
    assert not list(tmp_path.glob("t-0/*.cleaned"))
    with pytest.raises(ProcessLookupError):
        os.kill(workers.started[0].pid, 0)
    if how == "close":
        log = open_manager(OsFileSystem(), path=str(tmp_path)).all_logs()[0]
    if how != "delete":
        assert records(log) == before
        manager.close(T0)


def test_a_worker_distinguishes_death_from_cancellation(workers: Workers):
    lost, cancelled = workers(), workers()
    os.kill(lost.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match=str(lost.pid)):
        lost.write((0,), b"")
    cancelled.cancel()
    with pytest.raises(Cancelled):
        cancelled.write((0,), b"")


class StalledWorkers(Workers):
    """Starts processes that are stopped at once. Each wait without a response advances the clock by a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def wait(self, fd: int, event: int, seconds: float) -> bool:
        if wait_for(fd, event, 0.1):
            return True
        self.seconds += 60
        return False

    def __call__(self, is_idle_priority: bool = True) -> ProcessWorker:
        worker = ProcessWorker(is_idle_priority=False, monotonic=lambda: self.seconds, wait=self.wait)
        os.kill(worker.pid, signal.SIGSTOP)
        self.idle_priorities.append(is_idle_priority)
        self.started.append(worker)
        return worker


@pytest.fixture
def stalled() -> Iterator[StalledWorkers]:
    result = StalledWorkers()
    yield result
    for worker in result.started:
        worker.close()


def test_a_process_without_progress_is_killed_and_its_log_is_retried_later(
    tmp_path: Path, stalled: StalledWorkers, caplog: pytest.LogCaptureFixture
):
    clock = 0.0
    options = {"start_compaction_worker": stalled, "monotonic": lambda: clock}
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), **options)
    other = manager.create_log("other", 0, bytes(16), T0)
    fill(log)
    before = records(log)
    clean(manager)
    [worker] = stalled.started
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
    assert records(log) == before
    assert "made no progress for 300 s and was killed" in caplog.text
    assert "retried in 600 s" in caplog.text
    assert manager.online_directories == [str(tmp_path)]
    # Not at once, because other logs may be waiting; then as often as necessary, at normal priority.
    for attempt in range(2, 6):
        clean(manager)
        assert len(stalled.started) == attempt - 1
        clock += 601
        clean(manager)
        assert len(stalled.started) == attempt
    assert stalled.idle_priorities == [True, False, False, False, False]
    assert manager.cleaner.uncleanable == set()
    fill(other)
    manager.cleaner._start_worker = None
    clean(manager)
    assert set(manager.cleaner.offsets) == {("other", 0)}
    clock += 601
    clean(manager)
    assert manager.cleaner.offsets["t", 0] == log.log_end_offset
    manager.close(T0)


def test_a_process_that_takes_no_commands_is_without_progress(stalled: StalledWorkers):
    """The command is larger than the pipe's buffer."""
    with pytest.raises(WorkerStalled):
        stalled().write((0,), bytes(1 << 20))


def test_heartbeats_are_progress():
    """A process that sleeps to keep to its rate counts as making progress, however long it sleeps."""
    seconds = 0.0
    command_end, commands = os.pipe()
    response_reader, response_end = os.pipe()
    responses = ResponsePipe(response_end, lambda: seconds)

    def wait(fd, event, timeout):
        nonlocal seconds
        seconds += timeout
        if seconds < 3600:
            responses.heartbeat()
        else:
            responses.respond(0, "done")
        return wait_for(fd, event, 0)

    pipe = WorkerPipe(commands, response_reader, monotonic=lambda: seconds, wait=wait)
    assert pipe.call((0, "command")) == (0, "done")
    assert seconds >= 3600
    pipe.close()
    os.close(command_end)
    os.close(response_end)


def test_an_error_in_the_process_is_reported(tmp_path: Path, workers: Workers):
    manager, log = make_log(OsFileSystem(), SEGMENTS, path=str(tmp_path), start_compaction_worker=workers)
    fill(log)
    log.segments[0].file.write_pieces(65, [b"x"], 1)
    clean(manager)
    assert manager.cleaner.uncleanable == {("t", 0)}
    assert manager.online_directories == [str(tmp_path)]
    manager.close(T0)


PARENT = """
import os, signal
from odradek.log.compaction.process import ProcessWorker
print(ProcessWorker().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_dies_with_the_broker():
    parent = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, timeout=DEADLINE_SECONDS)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while is_running(int(parent.stdout)):
        assert time.monotonic() < deadline


def is_running(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # It may end between the opening and the reading of the file.
        return False


@pytest.mark.parametrize(("used", "slept", "gives_up"), [(3.0, 0.0, False), (1.0, 0.0, True), (1.0, 8.0, False)])
def test_a_process_at_idle_priority_exits_if_it_gets_too_little_processor_time(monkeypatch, used, slept, gives_up):
    """Time that it sleeps to keep to its rate does not count."""
    now, ended = [0.0, 0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[1])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    starvation = compaction_process._StarvationCheck()
    starvation.check()
    starvation.sleep(slept)
    now[:] = 11.0, used
    starvation.check()
    assert bool(ended) == gives_up


def test_the_process_can_import_the_package_of_the_broker(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    [root] = compaction_process._environment()["PYTHONPATH"].split(os.pathsep)
    assert Path(root, "odradek", "__init__.py").is_file()
