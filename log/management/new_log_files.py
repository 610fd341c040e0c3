"""Directories and files of logs that are about to be created, made in a thread.

A new file may take the processor for a millisecond, or wait for the file system's journal. Of a topic with many
partitions the files are therefore made before the logs are created; a log whose files could not be made is created
without them, and that reports the error.

The thread pauses after each log. Otherwise it would compete for the processors with the reactor threads of this broker
and of others on the machine: with three brokers on two processors, the longest waits of clients were twice as long.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, NamedTuple

from odradek.log.background.tasks import RunInThread
from odradek.log.management.log_table import Key
from odradek.log.segments.segment_files import LOG_SUFFIX
from odradek.log.storage.checkpoints import write_partition_metadata
from odradek.log.storage.filesystem import FileSystem

OnFailure = Callable[[Key, str, OSError], None]
"""Called with the partition and the path of a directory that is incomplete, and the error."""


_PAUSE_S: Final = 0.0003
"""Pause after the files of a log, which take about as long to make."""


class MadeFiles(NamedTuple):
    """The directory of a log that starts at offset 0: an empty segment, and partition.metadata."""

    path: str
    topic_id: bytes


class NewLogFiles:
    """The files that were made, by partition, until their log is created.

    A crash of the broker leaves them as logs without records: the directories are complete. After `close` none are
    made or removed, because another broker may use the log directories.
    """

    def __init__(
        self, fs: FileSystem, run_in_thread: RunInThread, sleep: Callable[[float], None], on_failure: OnFailure
    ) -> None:
        self.made: dict[Key, MadeFiles] = {}
        self._fs = fs
        self._run_in_thread = run_in_thread
        self._sleep = sleep
        self._on_failure = on_failure
        self._lock = Lock()
        self._is_closed = False

    def make(self, paths: Mapping[Key, str], topic_id: bytes, done: Callable[[], None]) -> None:
        """Make the files of new logs of a topic in a thread, up to the first error, then call `done`.

        A directory that exists belongs to no log, and is left to the creation of the log.
        """
        finished: list[Key] = []
        failed: list[tuple[Key, OSError]] = []

        def work() -> None:
            for key, path in paths.items():
                with self._lock:
                    if self._is_closed:
                        return
                    if self._fs.exists(path):
                        continue
                    self._fs.make_directory(path)
                    try:
                        self._fs.open(f"{path}/{0:020d}{LOG_SUFFIX}", create=True).close()
                        write_partition_metadata(self._fs, path, topic_id, sync=False)
                    except OSError as error:
                        failed.append((key, error))
                        return
                finished.append(key)
                self._sleep(_PAUSE_S)

        def ended(_: Exception | None) -> None:
            if self._is_closed:
                return
            for key in finished:
                self.made[key] = MadeFiles(paths[key], topic_id)
            for key, error in failed:
                self._on_failure(key, paths[key], error)
            done()

        self._run_in_thread(work, ended)

    def take(self, key: Key, path: str) -> MadeFiles | None:
        """Remove and return the files at `path`, whose log is created now; None if there are none."""
        made = self.made.get(key)
        return self.made.pop(key) if made is not None and made.path == path else None

    def close(self) -> None:
        """Make and remove no more files. Waits for the directory in progress."""
        with self._lock:
            self._is_closed = True
