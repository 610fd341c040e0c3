"""The record of reserved producer ids in the log directories.

The metadata store reserves producer ids in blocks. A store that was restored from a backup lacks the blocks reserved
since then, and the logs need not contain their ids. Therefore each log directory also has the end of the last block.
"""

from collections.abc import Callable

from odradek.log.background.shared_write import SharedWrite
from odradek.log.background.tasks import Done, RunInThread
from odradek.log.management.log_directories import LogDirectories
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.log.storage.log_directory import LogDirectory
from odradek.protocol.errors import ErrorCode, KafkaError


class ProducerIdRecord:
    """Writes the end of the reserved producer ids into all log directories. It never becomes smaller."""

    def __init__(self, log_dirs: LogDirectories, run_in_thread: RunInThread) -> None:
        self._log_dirs = log_dirs
        self._next_id = 0
        self._recorded_id = 0
        self._failures: list[LogDirFailure | ShortageError] = []
        self._write = SharedWrite(self._prepare, run_in_thread, self._ended)

    def found(self) -> int:
        """Return the largest end that the start found in a directory that is online; 0 if there is none."""
        return max((directory.next_producer_id for directory in self._log_dirs.online()), default=0)

    def record(self, next_id: int, done: Done) -> None:
        """Record that ids below `next_id` are reserved; call `done`, with an error if no directory has the record."""
        self._next_id = max(self._next_id, next_id)
        self._write.request(done)

    def _prepare(self) -> Callable[[], None] | None:
        if self._recorded_id == self._next_id:
            return None
        directories, next_id = self._log_dirs.online(), self._next_id
        if not directories:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no log directory can be used")
        return lambda: self._write_to(directories, next_id)

    def _write_to(self, directories: list[LogDirectory], next_id: int) -> None:
        """Write the record, in a thread. Raises the last failure if no directory has the record."""
        self._failures = []
        for directory in directories:
            try:
                directory.write_next_producer_id(next_id)
            except (LogDirFailure, ShortageError) as failure:
                self._failures.append(failure)
        if len(self._failures) == len(directories):
            raise self._failures[-1]
        self._recorded_id = next_id

    def _ended(self, error: Exception | None) -> Exception | None:
        for failure in self._failures:
            self._log_dirs.fail(failure.directory, failure)
        return error
