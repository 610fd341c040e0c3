"""What a broker has around it: time, chance, files, threads, the metadata store, the host's name.

A broker reaches the world outside through these alone, so that a test or the simulation can put its own in their place.

There are two clocks, and throughout the broker a name tells which is meant. `now_ms` is the wall clock: it may be set
back or forward at any time. It is for the timestamps of records and for what is compared with them: retention,
compaction lag, expiry of offsets, producer ids and transactional ids. `monotonic_ms` (also `monotonic`, in seconds) is
for timers, sessions and timeouts: whatever is due after a while. `coordinator.timers` and
`log.background.tasks.Schedule` read it themselves and are given delays; nothing computes a deadline from `now_ms`.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Sequence

from odradek.log.background import parallel
from odradek.log.background.tasks import Done
from odradek.log.compaction.run import Worker
from odradek.log.storage.filesystem import File, FileSystem, OsFileSystem
from odradek.replication.metadata.store import MetadataStore
from odradek.server.network.watchdog import Watchdog
from odradek.server.work.clock import Reactor, call_in_pool
from odradek.server.work.slices import SLICE_S
from odradek.server.work.threads import GrowingThreads


class Environment:
    """The operating system and Twisted's reactor. The simulation overrides what it provides itself.

    fs: where the logs lie
    random_source: for ids, jitter and whatever else must not repeat itself
    watchdog: the reactor's, if it has one
    slice_s: seconds of each reactor iteration for long work (`slices`)
    """

    slice_s = SLICE_S
    watchdog: Watchdog | None = None

    def __init__(
        self, reactor: Reactor, random_source: random.Random | None = None, watchdog: Watchdog | None = None
    ) -> None:
        self.reactor = reactor
        self.watchdog = watchdog
        self.random_source: random.Random = random_source or random.SystemRandom()
        self.fs: FileSystem = OsFileSystem()
        self._compaction_threads = GrowingThreads(reactor, "compaction")

    def now_ms(self) -> int:
        """The wall clock, ms since 1970."""
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back, and no step of the wall clock changes it."""
        return time.monotonic()

    def monotonic_ms(self) -> int:
        """`monotonic` in ms."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Block a thread; never called in the reactor's."""
        time.sleep(seconds)

    def run_in_thread(self, work: Callable[[], None], done: Done) -> None:
        """Do `work` in a thread, then call `done` in the reactor's with the exception it raised, or None."""
        deferred = call_in_pool(self.reactor, self.reactor.getThreadPool(), work)
        deferred.addCallbacks(lambda _: done(None), lambda failure: done(failure.value))

    def run_compaction(self, work: Callable[[], None], done: Done) -> None:
        """As `run_in_thread`, in threads of compaction's own: its work lasts, and sleeps to keep to its rate."""
        self._compaction_threads.run(work, done)

    @property
    def start_compaction_worker(self) -> Callable[[bool], Worker] | None:
        """Starts a process that compacts logs, or raises OSError. None if another process cannot access the files."""
        if not isinstance(self.fs, OsFileSystem):
            return None

        def start(is_idle_priority: bool) -> Worker:
            from odradek.log.compaction.process import ProcessWorker

            return ProcessWorker(is_idle_priority=is_idle_priority, monotonic=self.monotonic)

        return start

    def run_all(self, actions: Sequence[Callable[[], None]], thread_count: int) -> None:
        """Do all of them in up to `thread_count` threads, and wait; for start and stop (`log.background.parallel`)."""
        parallel.run_all(actions, thread_count)

    def has_metadata_store(self, directory: str) -> bool:
        """Return whether the file of a store is in a log directory, which may be absent. Raises OSError."""
        from odradek.server.stores.sqlite import has_store

        return has_store(directory)

    def open_metadata_store(self, directory: str) -> MetadataStore:
        """The store in a log directory, created if there is none. Raises MetadataStoreError."""
        from odradek.server.stores.sqlite import SqliteMetadataStore

        return SqliteMetadataStore(directory, self.now_ms, call_later=self.reactor.callLater)

    def absolute_path(self, path: str) -> str:
        """`path` seen from the working directory."""
        return os.path.abspath(path)

    def is_writable(self, directory: str) -> bool:
        """Return whether files can be created in the directory."""
        return os.access(directory, os.W_OK | os.X_OK)

    def host_name(self) -> str:
        """The host that is advertised for listeners without one."""
        return socket.gethostname()

    def send_file(self, connection: socket.socket, file: File, position: int, size_bytes: int) -> int:
        """Send a piece of a file; how many bytes the socket took. Raises as `os.sendfile`."""
        return os.sendfile(connection.fileno(), file.fd, position, size_bytes)
