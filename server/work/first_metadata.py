"""The wait for the first metadata of a member that has just started.

Its metadata cache is empty until the controller has sent the topics. Until then clients would get
UNKNOWN_TOPIC_OR_PARTITION for existing topics, and producers fail records of missing topics. Therefore requests for
metadata wait. At the latest `MAX_WAIT_S` after the start they get what a controller has sent: it sends no topics that
never had a leader. While no controller has sent anything, for example because the broker is isolated, they get
LEADER_NOT_AVAILABLE after at most `MAX_WAIT_S`, and clients ask another broker.
"""

from collections.abc import Coroutine
from typing import Any, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.image import NO_CONTROLLER, ClusterMetadata, MetadataDelta
from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.waits import Wait

MAX_WAIT_S: Final = 5


class Executor(Protocol):
    """Runs the coroutine that completes the waiting requests."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine whose result is not awaited."""

    async def pause(self) -> None:
        """Let other work run if this has taken long."""


class FirstMetadata:
    """Requests that wait for the first publication of the cache that has all topics.

    is_awaited: requests have to wait
    """

    def __init__(self, cache: ClusterMetadata, clock: Clock, executor: Executor) -> None:
        self.is_awaited = False
        self._cache = cache
        self._clock = clock
        self._executor = executor
        self._expects_topics = False
        self._waiting: list[Wait[None]] = []
        self._expiry: DelayedCall | None = None

    def expect(self, has_topics: bool) -> None:
        """Make requests wait from now on; `has_topics`: the store has topics."""
        self.is_awaited = True
        self._expects_topics = has_topics
        self._cache.listeners.append(self._on_metadata)
        self._expiry = self._clock.callLater(MAX_WAIT_S, self._expire)

    def wait(self) -> Wait[None]:
        """Return a Deferred of the end of the wait. Without a controller it fails with LEADER_NOT_AVAILABLE."""
        wait: Wait[None] = Wait(lambda: "the first metadata from the controller")
        wait.addCallback(self._check)
        self._waiting.append(wait)
        return wait

    def stop(self) -> None:
        """Cancel the timer."""
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()

    def _check(self, _: None) -> None:
        if self._cache.controller_id == NO_CONTROLLER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "The broker has no metadata from a controller yet.")

    def _on_metadata(self, _: MetadataDelta) -> None:
        if self._cache.controller_id != NO_CONTROLLER and (self._cache.topics or not self._expects_topics):
            self.stop()
            self._end()

    def _expire(self) -> None:
        if self._cache.controller_id == NO_CONTROLLER:
            self._expiry = self._clock.callLater(MAX_WAIT_S, self._expire)
            self._release_all()
        else:
            self._end()

    def _end(self) -> None:
        self.is_awaited = False
        self._cache.listeners.remove(self._on_metadata)
        self._release_all()

    def _release_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._executor.start(self._release(waiting))

    async def _release(self, waiting: list[Wait[None]]) -> None:
        for wait in waiting:
            await self._executor.pause()
            # A request ends earlier if its connection is closed.
            if not wait.called:
                wait.callback(None)
