"""Close of all logs of a broker: everything is written first, then made durable together.

Supervisors kill a broker that takes longer than some ten seconds to stop. The six syncs of a log take milliseconds, and
there may be thousands of logs. Therefore one call syncs the whole file system, if the operating system supports that.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from odradek.log.background.tasks import RunAll
from odradek.log.flush import LogSync
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.log.storage.log_directory import LogDirectory

logger = logging.getLogger(__name__)

Failures = list[tuple[str, LogDirFailure | ShortageError]]
"""Log directories, each with the failure in it."""


def close_logs(
    directories: Iterable[LogDirectory], logs: Sequence[PartitionLog], monotonic_ms: int, run_all: RunAll, threads: int
) -> Failures:
    """Make all logs durable, so that the next start need not recover; return the failures. Blocks."""
    failures: Failures = []
    unclosed: set[PartitionLog] = set()
    tasks: list[tuple[PartitionLog, LogSync]] = []

    def guard(log: PartitionLog, action: Callable[[], None]) -> Callable[[], None]:
        def act() -> None:
            try:
                action()
            except (LogDirFailure, ShortageError) as failure:
                failures.append((log.log_directory, failure))
                unclosed.add(log)

        return act

    def preparation(log: PartitionLog) -> Callable[[], None]:
        def prepare() -> None:
            task = log.prepare_close()
            if task is not None:
                tasks.append((log, task))

        return guard(log, prepare)

    run_all([preparation(log) for log in logs], threads)
    changed = {log.log_directory for log, _ in tasks}
    prepared = len(failures)
    synced = {directory.path for directory in directories if directory.path in changed and _sync(directory, failures)}
    lost = {path for path, failure in failures if isinstance(failure, LogDirFailure)}
    lost |= {path for path, _ in failures[prepared:]}
    single = [
        (log, task)
        for log, task in tasks
        if log.log_directory not in lost and (log.log_directory not in synced or _is_elsewhere(log))
    ]
    run_all([guard(log, task.run) for log, task in single], threads)
    for log, task in tasks:
        if log.log_directory not in lost and log not in unclosed:
            guard(log, lambda log=log, task=task: log.finish_close(task, monotonic_ms))()  # type: ignore[misc]
    return failures


def _is_elsewhere(log: PartitionLog) -> bool:
    """Return whether a log is in another file system than its log directory, by a mount or a symbolic link."""
    try:
        return log.fs.device(log.directory) != log.fs.device(log.log_directory)
    except OSError:
        return True


def _sync(directory: LogDirectory, failures: Failures) -> bool:
    """Return whether the whole directory is durable. Otherwise its own names are, and its logs must be synced."""
    if directory.sync_file_system():
        return True
    try:
        directory.fs.sync_directory(directory.path)
    except OSError as error:
        failures.append((directory.path, directory.failed("closing", error)))
    return False
