"""Access to the cluster from the threads of the web server: a bounded pool, and a cache of some seconds."""

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.kafka.connection.profile import ProfileError

MOST_CONCURRENT: Final = 6
"""Fewer than the threads of the web server, so that pages without Kafka are served while brokers do not answer."""

MOST_SEARCHES: Final = MOST_CONCURRENT // 2
"""Searches of records, which take seconds, so that other pages have connections meanwhile."""

_MOST_ADMITTED_SEARCHES: Final = 3 * MOST_SEARCHES
"""Searches that run or wait. Each occupies a thread of the web server, which other pages need."""

CACHE_S: Final = 3.0
STALE_S: Final = 7.0
"""Time for which an expired result may be shown while the next one is loaded."""

_SLOW_S: Final = 0.05
"""Least time of a load that callers do not wait for again. Small clusters are always shown as they are."""

_ERROR_CACHE_S: Final = 1.0
_MOST_ENTRIES: Final = 300
_BUSY_AFTER_S: Final = 3.0
_REUSE_S: Final = 60.0
"""Longest use of connections; later ones find brokers that have moved."""

T = TypeVar("T")


class BusyError(Exception):
    """Too many requests wait for brokers."""


class _Pooled(NamedTuple):
    cluster: Cluster
    made_at: float


class ClusterPool:
    """Clusters for one caller at a time, because their connections block.

    make_cluster: returns a cluster with timeouts of some seconds
    """

    def __init__(
        self,
        make_cluster: Callable[[], Cluster],
        monotonic: Callable[[], float],
        busy_after_s: float = _BUSY_AFTER_S,
    ) -> None:
        self._make_cluster = make_cluster
        self._monotonic = monotonic
        self._busy_after_s = busy_after_s
        self._slots = threading.BoundedSemaphore(MOST_CONCURRENT)
        self._searches = threading.BoundedSemaphore(MOST_SEARCHES)
        self._admitted_searches = threading.BoundedSemaphore(_MOST_ADMITTED_SEARCHES)
        self._lock = threading.Lock()
        self._idle: list[_Pooled] = []

    def search(self, work: Callable[[Cluster], T]) -> T:
        """Call `work`, which may take seconds, with a cluster. Raises BusyError and what `work` raises."""
        if not self._admitted_searches.acquire(blocking=False):
            raise BusyError("too many searches wait")
        try:
            if not self._searches.acquire(timeout=self._busy_after_s):
                raise BusyError(f"{MOST_SEARCHES} searches are running")
            try:
                return self.run(work)
            finally:
                self._searches.release()
        finally:
            self._admitted_searches.release()

    def run(self, work: Callable[[Cluster], T], *, is_change: bool = False) -> T:
        """Call `work` with a cluster. A change is never repeated. Raises BusyError and what `work` raises."""
        if not self._slots.acquire(timeout=self._busy_after_s):
            raise BusyError("all connections to the cluster are in use")
        try:
            pooled = None if is_change else self._take_idle()
            if pooled is not None:
                try:
                    return self._use(pooled, work)
                except NoResponseError:
                    # The broker may have closed an idle connection, or restarted; a new connection shows which.
                    pass
            return self._use(_Pooled(self._make_cluster(), self._monotonic()), work)
        finally:
            self._slots.release()

    def _use(self, pooled: _Pooled, work: Callable[[Cluster], T]) -> T:
        try:
            result = work(pooled.cluster)
        except RequestError:
            self._put_back(pooled)
            raise
        except BaseException:
            pooled.cluster.close()
            raise
        self._put_back(pooled)
        return result

    def _take_idle(self) -> _Pooled | None:
        oldest = self._monotonic() - _REUSE_S
        with self._lock:
            while self._idle:
                pooled = self._idle.pop()
                if pooled.made_at >= oldest:
                    return pooled
                pooled.cluster.close()
        return None

    def _put_back(self, pooled: _Pooled) -> None:
        with self._lock:
            self._idle.append(pooled)
            # Changes use new connections, which would accumulate.
            surplus = self._idle.pop(0) if len(self._idle) > MOST_CONCURRENT else None
        if surplus is not None:
            surplus.cluster.close()


class _Loaded(NamedTuple):
    """A result or an error of a load that took `took_s`."""

    result: Any
    error: NoResponseError | None
    expires_at: float
    took_s: float


class _Entry:
    """A cached result or error; `lock` is held while it is loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loaded: _Loaded | None = None


class Cache:
    """Results of some seconds. Concurrent callers of one key wait for the first one instead of repeating its work."""

    def __init__(self, monotonic: Callable[[], float], busy_after_s: float = _BUSY_AFTER_S) -> None:
        self._monotonic = monotonic
        self._busy_after_s = busy_after_s
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, load: Callable[[], T], ttl_s: float = CACHE_S, stale_s: float = 0.0) -> T:
        """Return the result of `load`, or that of an earlier call. A NoResponseError is repeated for a second.

        A result that took long to load is returned for `stale_s` longer, while a thread loads the next one.

        Raises BusyError if another caller waits for the result too long.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._evict()
                entry = self._entries[key] = _Entry()
        loaded = entry.loaded
        if loaded is not None and self._is_usable_while_loading(loaded, stale_s):
            stale: T = loaded.result
            if entry.lock.acquire(blocking=False):
                try:
                    threading.Thread(target=self._reload, args=(entry, load, ttl_s), name="reload", daemon=True).start()
                except RuntimeError:
                    # There are too many threads; the next caller tries again.
                    entry.lock.release()
            return stale
        # Without the limit, callers of one slow page would occupy all threads of the web server.
        if not entry.lock.acquire(timeout=self._busy_after_s):
            raise BusyError("the cluster takes long to answer")
        try:
            loaded = entry.loaded
            if loaded is None or self._monotonic() >= loaded.expires_at:
                loaded = entry.loaded = self._load(load, ttl_s)
        finally:
            entry.lock.release()
        if loaded.error is not None:
            raise loaded.error
        result: T = loaded.result
        return result

    def _is_usable_while_loading(self, loaded: _Loaded, stale_s: float) -> bool:
        is_slow = loaded.error is None and loaded.took_s >= _SLOW_S
        return is_slow and loaded.expires_at <= self._monotonic() < loaded.expires_at + stale_s

    def _reload(self, entry: _Entry, load: Callable[[], Any], ttl_s: float) -> None:
        """Load an entry whose lock the caller has acquired."""
        try:
            # Other errors are those of the next caller that has to wait for the result.
            with suppress(BusyError, RequestError, ProfileError):
                entry.loaded = self._load(load, ttl_s)
        finally:
            entry.lock.release()

    def _load(self, load: Callable[[], Any], ttl_s: float) -> _Loaded:
        began_s = self._monotonic()
        try:
            result, error = load(), None
        except NoResponseError as failure:
            result, error, ttl_s = None, failure, _ERROR_CACHE_S
        now_s = self._monotonic()
        return _Loaded(result, error, now_s + ttl_s, now_s - began_s)

    def clear(self) -> None:
        """Forget everything, because the cluster was changed."""
        with self._lock:
            self._entries.clear()

    def _evict(self) -> None:
        now = self._monotonic()
        if len(self._entries) >= _MOST_ENTRIES:
            fresh = {
                key: entry
                for key, entry in self._entries.items()
                if entry.loaded is not None and entry.loaded.expires_at > now
            }
            self._entries = fresh if len(fresh) < _MOST_ENTRIES else {}
