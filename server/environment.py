"""Environment of a broker: clock, randomness, files, threads, metadata store, host name.

A broker uses the operating system only through its environment, which tests and the simulation replace.

There are two clocks with different names throughout the broker. `now_ms` is the wall clock, which may be set back or
forward at any time. It is for the timestamps of records and for times that are compared with them: retention,
compaction lag, expiry of offsets, producer ids and transactional ids. `monotonic_ms` (also `monotonic`, in seconds) is
for timers, sessions and timeouts. `coordinator.timers` and `log.background.tasks.Schedule` read it themselves, and
their callers pass delays; no deadline is computed from `now_ms`.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from odradek.log.background import parallel
from odradek.log.background.tasks import Done
from odradek.log.compaction.run import Worker
from odradek.log.storage.filesystem import File, FileSystem, OsFileSystem
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig
from odradek.server.network.watchdog import Watchdog
from odradek.server.work.clock import Reactor, call_in_pool
from odradek.server.work.slices import SLICE_S
from odradek.server.work.threads import GrowingThreads, run_in_daemon_thread

if TYPE_CHECKING:
    from odradek.server.stores.zookeeper.store import ZooKeeperStore

_DISK_THREADS: Final = 8
"""For reads, and for drops behind followers: as many as Apache Kafka has for requests by default (num.io.threads)."""


class Environment:
    """The operating system and Twisted's reactor. The simulation overrides some of the methods.

    fs: the file system of the logs
    random_source: for ids, jitter and other random values
    watchdog: the reactor's watchdog, if it has one
    slice_s: seconds of each reactor iteration for long work (`slices`)
    count_polls: returns the number of the reactor's iterations so far, if it counts them
    """

    slice_s = SLICE_S
    watchdog: Watchdog | None = None
    count_polls: Callable[[], int] | None = None

    def __init__(
        self,
        reactor: Reactor,
        random_source: random.Random | None = None,
        watchdog: Watchdog | None = None,
        count_polls: Callable[[], int] | None = None,
    ) -> None:
        self.reactor = reactor
        self.watchdog = watchdog
        self.count_polls = count_polls
        self.random_source: random.Random = random_source or random.SystemRandom()
        self.fs: FileSystem = OsFileSystem()
        self._compaction_threads = GrowingThreads(reactor, "compaction")
        self._read_threads = GrowingThreads(reactor, "read", _DISK_THREADS)
        self._drop_behind_threads = GrowingThreads(reactor, "drop-behind", _DISK_THREADS)

    def now_ms(self) -> int:
        """Return the time of the wall clock, in ms since 1970."""
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        """Return the time of the monotonic clock in seconds, which no step of the wall clock changes."""
        return time.monotonic()

    def monotonic_ms(self) -> int:
        """Return the time of the monotonic clock in ms."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Block the current thread, which is never the reactor thread."""
        time.sleep(seconds)

    def run_in_thread(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` in a thread, then `done` in the reactor thread with the exception that it raised, or None."""
        deferred = call_in_pool(self.reactor, self.reactor.getThreadPool(), work)
        deferred.addCallbacks(lambda _: done(None), lambda failure: done(failure.value))

    def run_request(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` like `run_in_thread`, in a thread for a request to another server, which may never respond.

        The stop of the broker does not wait for it.
        """
        run_in_daemon_thread(self.reactor, work, done)

    def run_compaction(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` like `run_in_thread`, in threads for compaction, which takes long and sleeps between reads."""
        self._compaction_threads.run(work, done)

    def run_read(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` like `run_in_thread`, in up to `_DISK_THREADS` threads for reads of segments.

        In the reactor's pool, syncs for which acknowledgements wait would be queued behind them.
        """
        self._read_threads.run(work, done)

    def run_drop_behind(self, work: Callable[[], None], done: Done) -> None:
        """Call `work` like `run_in_thread`, in threads for `DropBehind`, for which nothing waits."""
        self._drop_behind_threads.run(work, done)

    @property
    def start_compaction_worker(self) -> Callable[[bool], Worker] | None:
        """Function that starts a process for compaction, or raises OSError. None if it could not access the files."""
        if not isinstance(self.fs, OsFileSystem):
            return None

        def start(is_idle_priority: bool) -> Worker:
            from odradek.log.compaction.process import ProcessWorker

            return ProcessWorker(is_idle_priority=is_idle_priority, monotonic=self.monotonic)

        return start

    def run_all(self, actions: Sequence[Callable[[], None]], thread_count: int) -> None:
        """Call all functions in up to `thread_count` threads, and wait for them (`log.background.parallel`)."""
        parallel.run_all(actions, thread_count)

    def has_metadata_store(self, directory: str) -> bool:
        """Return whether the file of a store is in a log directory, which may be absent. Raises OSError."""
        from odradek.server.stores.sqlite import has_store

        return has_store(directory)

    def open_metadata_store(self, directory: str) -> MetadataStore:
        """Open the store in a log directory, created if there is none. Raises MetadataStoreError."""
        from odradek.server.stores.sqlite import SqliteMetadataStore

        return SqliteMetadataStore(directory, self.now_ms, call_later=self.reactor.callLater)

    def make_zookeeper_store(self, config: BrokerConfig) -> "ZooKeeperStore":
        """Return a store for `zookeeper.connect`, which is not connected."""
        # kazoo is imported only by members of a cluster.
        from odradek.server.stores.zookeeper.client import ThreadedReactor
        from odradek.server.stores.zookeeper.settings import ZooKeeperSettings
        from odradek.server.stores.zookeeper.store import ZooKeeperStore

        # Twisted's reactor has `callFromThread`, which the simulation's has not.
        return ZooKeeperStore(ZooKeeperSettings.of(config), cast(ThreadedReactor, self.reactor))

    def absolute_path(self, path: str) -> str:
        """Return the absolute path of `path`, which may be relative to the working directory."""
        return os.path.abspath(path)

    def is_writable(self, directory: str) -> bool:
        """Return whether files can be created in the directory."""
        return os.access(directory, os.W_OK | os.X_OK)

    def host_name(self) -> str:
        """Return the host name that is advertised for listeners without a host."""
        return socket.gethostname()

    def send_file(self, connection: socket.socket, file: File, position: int, size_bytes: int) -> int:
        """Send a part of a file; return the number of bytes sent. Raises OSError like `os.sendfile`."""
        return os.sendfile(connection.fileno(), file.fd, position, size_bytes)
