"""The parts that the pages share, and the current request's part of them."""

import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar, cast

from flask import current_app, render_template, request

from odradek.tools.console.cluster_pool import CACHE_S, Cache, ClusterPool
from odradek.tools.console.formats import escape, format_time
from odradek.tools.console.lag_history import LagHistory
from odradek.tools.console.records.schemas import Schemas
from odradek.tools.console.security import LoginAttempts, Sessions
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import Cluster

EXTENSION: Final = "odradek"

T = TypeVar("T")


def write_to_standard_error(line: str) -> None:
    """Report a change."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Console:
    """Cluster, cache and sessions of one console.

    address: the addresses of the cluster, for its pages
    schemas: decode contents by a schema registry or files
    report: called with a line for each change
    """

    def __init__(
        self,
        make_cluster: Callable[[], Cluster],
        address: str,
        settings: ConsoleSettings,
        monotonic: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
        schemas: Schemas | None = None,
        report: Callable[[str], None] = write_to_standard_error,
    ) -> None:
        self.address = address
        self.settings = settings
        self.sessions = Sessions(settings.password, monotonic)
        self.attempts = LoginAttempts(monotonic)
        self.schemas = schemas or Schemas()
        self.lag_history = LagHistory()
        self.cookie_name = f"odradek_console{settings.cookie_suffix}"
        self._now_s = now_s
        self._report = report
        self._pool = ClusterPool(make_cluster, monotonic)
        self._cache = Cache(monotonic)

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        return int(self._now_s() * 1000)

    def read(self, key: Hashable, work: Callable[[Cluster], T], ttl_s: float = CACHE_S, stale_s: float = 0.0) -> T:
        """Return the result of `work`, which may be some seconds old. It must not be changed by the caller.

        With `stale_s` a thread may call `work` outside of a request (`Cache.get`).
        """
        return self._cache.get(key, lambda: self._pool.run(work), ttl_s, stale_s)

    def read_files(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the result of `load`, which reads files of this machine; it may be some seconds old."""
        return self._cache.get(key, load)

    def read_now(self, work: Callable[[Cluster], T]) -> T:
        """Return the result of `work`, not cached."""
        return self._pool.run(work)

    def search(self, work: Callable[[Cluster], T]) -> T:
        """Return the result of `work`, which may take seconds, not cached."""
        return self._pool.search(work)

    def change(self, work: Callable[[Cluster], T]) -> T:
        """Change the cluster; pages show its state after it."""
        try:
            return self._pool.run(work, is_change=True)
        finally:
            self._cache.clear()

    def log_change(self, text: str) -> None:
        """Report a change that the current request has made."""
        line = escape(" ".join(text.split()))
        self._report(f"{format_time(self.now_ms())} {request.remote_addr} {line}")


def get_console() -> Console:
    """Return the console of the current request."""
    return cast(Console, current_app.extensions[EXTENSION])


def get_cookie() -> str:
    """Return the session's cookie of the current request."""
    return request.cookies.get(get_console().cookie_name, "")


def get_arguments() -> Mapping[str, str]:
    """Return the arguments in the address of the current request."""
    return request.args.to_dict()


def render(template: str, **values: object) -> str:
    """Return a page."""
    return render_template(template, **values)
