"""The controller's event loop: one queue of events, processed one at a time in the order of their arrival.

An event is a coroutine with a kind and a description. Its submitter may wait for its result: an admin request is an
event whose result becomes the response. While an event waits for the store or pauses, other work of the broker runs,
but no other event.

An `Executor` drives the loop. `ImmediateExecutor` needs no reactor: every event ends before `submit` returns. It is
used while a broker starts, and in tests.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from odradek.log.background.histogram import Histogram
from odradek.replication.metadata.store import SessionExpiredError, Waiter, run_now

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class EventKind(Enum):
    """The cause of an event."""

    SESSION = "session"
    CONTROLLER = "controller"
    BROKERS = "brokers"
    TOPICS = "topics"
    CONFIGURATION = "configuration"
    ADMIN_REQUEST = "admin request"
    REPLICAS = "replicas"
    DELETION = "deletion"


class Executor(Protocol):
    """Runs the loop's coroutine, and lets it share its thread with other work."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine until it waits; resume it when its awaitable is complete."""

    def waiter(self) -> Waiter:
        """Return a new waiter."""

    async def pause(self) -> None:
        """Let other work run if this iteration of the reactor has done enough."""


class ImmediateExecutor:
    """Runs coroutines that never wait."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine to its end. Raises RuntimeError if it waits."""
        run_now(work)

    def waiter(self) -> Waiter:
        """Raise RuntimeError: nothing would resume the caller."""
        raise RuntimeError("an event was submitted by another event, which would wait for itself")

    async def pause(self) -> None:
        """Return at once."""


class _Event(Generic[T]):
    """An event and its outcome. `waiter` resumes the submitter; None while no submitter waits.

    arrived_s: the time of its arrival; negative if it is not measured
    """

    __slots__ = ("_error", "_result", "arrived_s", "description", "is_over", "kind", "waiter", "work")

    def __init__(self, kind: EventKind, description: str, work: Work[T]) -> None:
        self.kind = kind
        self.description = description
        self.work = work
        self.arrived_s = -1.0
        self.is_over = False
        self.waiter: Waiter | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None

    def succeed(self, result: T) -> None:
        self._result.append(result)
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.is_over = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.callback(None)

    def outcome(self) -> T:
        """Return the result of an event that is over, or raise its error."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._result[0]


class EventTimes:
    """The times of events: in the queue, and from their begin to their end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.queue = Histogram()
        self.processing = Histogram()


class EventLoop:
    """The queue and its loop. `executor` is replaced once, before clients can connect.

    times: None while nothing uses them
    on_failure: called after a posted event has failed, unless the session has ended
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.on_failure: Callable[[], None] = lambda: None
        self.times: EventTimes | None = None
        self._queue: deque[_Event[Any]] = deque()
        self._is_working = False
        self._is_stopped = False

    async def submit(self, kind: EventKind, description: str, work: Work[T]) -> T:
        """Process an event after those submitted before it; return its result or raise its error."""
        event = _Event(kind, description, work)
        self._append(event)
        if not event.is_over:
            event.waiter = self.executor.waiter()
            await event.waiter
        return event.outcome()

    def post(self, kind: EventKind, description: str, work: Work[None]) -> None:
        """Process an event without a submitter that waits; an error is logged, and `on_failure` is called."""

        async def logged() -> None:
            try:
                await work()
            except Exception as error:
                if self._is_stopped and isinstance(error, SessionExpiredError):
                    # The store is closed after the stop, and the next session repeats the work.
                    return
                logger.error("controller event failed kind=%s event=%s error=%r", kind.value, description, error)
                if not isinstance(error, SessionExpiredError):
                    self.on_failure()

        self._append(_Event(kind, description, logged))

    def drop(self, error: Exception) -> None:
        """Drop the queued events; their submitters get `error`."""
        dropped, self._queue = self._queue, deque()
        if dropped:
            logger.warning("dropped controller events count=%d: %s", len(dropped), error)
        for event in dropped:
            event.fail(error)

    def stop(self) -> None:
        """Process no further event. Submitters of queued and later events are not resumed."""
        self._is_stopped = True
        self._queue.clear()

    def _append(self, event: _Event[Any]) -> None:
        if self._is_stopped:
            return
        if self.times is not None:
            event.arrived_s = self.times.clock()
        self._queue.append(event)
        if not self._is_working:
            self._is_working = True
            self.executor.start(self._run())

    async def _run(self) -> None:
        try:
            while self._queue:
                # Without pauses many short events would hold the reactor.
                await self.executor.pause()
                if self._queue:
                    await self._measure(self._queue.popleft())
        finally:
            self._is_working = False

    async def _measure(self, event: _Event[Any]) -> None:
        times = self.times
        if times is None or event.arrived_s < 0:
            await self._process(event)
            return
        began_s = times.clock()
        times.queue.record(began_s - event.arrived_s)
        try:
            await self._process(event)
        finally:
            times.processing.record(times.clock() - began_s)

    async def _process(self, event: _Event[Any]) -> None:
        logger.debug("controller event kind=%s event=%s", event.kind.value, event.description)
        try:
            result = await event.work()
        except GeneratorExit:
            raise
        except Exception as error:
            event.fail(error)
        except BaseException as error:
            event.fail(error)
            raise
        else:
            event.succeed(result)
