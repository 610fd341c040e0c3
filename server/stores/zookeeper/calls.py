"""Requests to ZooKeeper: those that wait, those in flight, and those that a connection loss interrupted.

A request that was in flight at a connection loss is sent again on the next connection, before later requests, as often
as necessary. Requests wait while there is no connection. Only the end of the session ends them without a result.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from kazoo.exceptions import ConnectionLoss
from twisted.internet.defer import Deferred

from odradek.log.background.histogram import Histogram
from odradek.server.stores.zookeeper.client import Send, ZooKeeperClient


class Call:
    """A request, and its result once `done` is called: `value`, or `error`.

    is_read: the request changes nothing, so it can be repeated
    is_renewal: a read that sets a watch again on the present connection
    was_interrupted: the connection was lost while the request was in flight, so an earlier attempt may have succeeded
    is_premature: sent before watches were set on the connection
    sent_s: the time at which it was sent; negative if it is not measured
    """

    __slots__ = (
        "done", "error", "is_premature", "is_read", "is_renewal", "send", "sent_s", "value", "was_interrupted",
    )  # fmt: skip

    def __init__(self, send: Send, done: "Callable[[Call], None]", *, is_read: bool, is_renewal: bool = False) -> None:
        self.send = send
        self.done = done
        self.is_read = is_read
        self.is_renewal = is_renewal
        self.was_interrupted = False
        self.is_premature = False
        self.sent_s = -1.0
        self.value: object = None
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        self.error = error
        self.done(self)


class CallQueue:
    """The requests of one session, sent in their order, at most `max_in_flight` at a time.

    times: from the sending of a request to its result; None while nothing uses them
    """

    def __init__(self, max_in_flight: int) -> None:
        self.times: Histogram | None = None
        self._clock: Callable[[], float] = lambda: 0.0
        self._max_in_flight = max_in_flight
        self._client: ZooKeeperClient | None = None
        self._renewals: Iterator[Call] = iter(())
        self._waiting: deque[Call] = deque()
        self._in_flight: dict[Call, None] = {}
        self._interrupted: list[Call] = []

    def measure(self, clock: Callable[[], float]) -> Histogram:
        """Begin to measure the times of requests."""
        times = self.times = Histogram()
        self._clock = clock
        return times

    def run(self, send: Send, *, is_read: bool) -> Deferred[Call]:
        """Send a request when its turn has come; the Deferred fires with the finished call, which may have an error."""
        finished: Deferred[Call] = Deferred()
        self._waiting.append(Call(send, finished.callback, is_read=is_read))
        self._send_waiting()
        return finished

    def resume(self, client: ZooKeeperClient, renewals: Iterator[Call]) -> None:
        """Send on a new connection: first `renewals`, which set watches again, then interrupted and waiting calls.

        Renewals are reads. They are discarded when the connection is lost.
        """
        self._client = client
        self._renewals = renewals
        self._waiting = deque((*self._interrupted, *self._waiting))
        self._interrupted = []
        self._send_waiting()

    def pause(self) -> None:
        """Send nothing until `resume`: the connection is lost, and so are the results of calls sent on it.

        What is still in flight was sent after the loss, and kazoo sends it first on the next connection.
        """
        self._client = None
        self._renewals = iter(())
        for call in self._in_flight:
            call.is_premature = call.is_read and not call.is_renewal

    def take_all(self) -> list[Call]:
        """Remove all calls, which the caller ends, and send nothing until `resume`."""
        taken = [*self._in_flight, *self._interrupted, *self._waiting]
        self._client = None
        self._renewals = iter(())
        self._in_flight = {}
        self._interrupted = []
        self._waiting = deque()
        return [call for call in taken if not call.is_renewal]

    def _send_waiting(self) -> None:
        while self._client is not None and len(self._in_flight) < self._max_in_flight:
            call = next(self._renewals, None)
            if call is None:
                if not self._waiting:
                    return
                call = self._waiting.popleft()
            self._in_flight[call] = None
            if self.times is not None:
                call.sent_s = self._clock()
            call.send(self._client.kazoo).deliver_to(partial(self._on_result, call))

    def _on_result(self, call: Call, value: object, error: Exception | None) -> None:
        if call not in self._in_flight:
            # The session had ended before.
            return
        del self._in_flight[call]
        if isinstance(error, ConnectionLoss):
            call.was_interrupted = True
            if not call.is_renewal:
                self._interrupted.append(call)
            return
        if self.times is not None and call.sent_s >= 0:
            self.times.record(self._clock() - call.sent_s)
        if call.is_premature:
            # Repeated after the renewals, so that it returns no change before the watch event of the change.
            call.is_premature = False
            self._waiting.append(call)
        else:
            call.value, call.error = value, error
            call.done(call)
        self._send_waiting()
