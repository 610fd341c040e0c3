"""Order in which waiting requests are begun, so that no connection holds up the others.

A request that arrives alone is begun as it is read, as long as no request waits and the reactor iteration is young.
Otherwise its connection waits here. A connection begins one request when its turn comes, and waits again for the next.

Requests that are expected to be cheap go first: a ping does not wait for hundreds of commits. A request is expected to
take as long as the last one of its connection if that was of the same API, else as long as recent ones of that API
took on other connections; what counts is the power of two.

Bounds, with `r` the time of one request:
- An iteration reads sockets for at most `READ_S + r` and begins waiting requests until it is `ITERATION_S` old, and at
  least one. Then all responses are sent and the sockets are polled again.
- No starvation: whenever cheaper requests have overtaken for `OVERTAKING_S`, the connection that has waited longest
  has its turn. One with `k` others before it has its turn after at most `(k + 1) * (OVERTAKING_S + r)`.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from odradek.server.watchdog import NOTABLE_S, Watchdog

if TYPE_CHECKING:
    from odradek.server.connection import Connection
    from odradek.server.turn import Turn

READ_S: Final = 0.0025
ITERATION_S: Final = 0.005
OVERTAKING_S: Final = 0.004
DIRECT_S: Final = 0.002
"""Age of an iteration up to which a request is begun as it is read."""

_LEVELS_PER_S: Final = 16384
"""The lowest level is for requests of up to 61 us, each further one for twice the time."""

_HIGHEST_LEVEL: Final = 7
_LONG_LEVEL: Final = 3
"""From here on (244 us) the responses at hand are sent first."""

_OUTLIER_S: Final = 0.00005
"""A request that takes more than twice the time expected, and this, does not count in full: the thread was preempted,
or the request is a rare one. If it goes on like that, the expectation follows in a few requests."""

_STALE_LIMIT: Final = 64


class RequestScheduler:
    """The connections that wait for their turn, and the time that requests take.

    is_direct: whether a request may be begun as it is read
    ended_s: when the last piece of work of the iteration ended
    waiting: the connections that wait, by the order in which they began to; with the sequence number of that

    `begin_iteration` comes first in every iteration. `wake`, for reactors that do not look at `waiting`, has `serve`
    called soon.
    """

    __slots__ = (
        "_api_costs_s", "_began_s", "_clock", "_heap", "_is_woken", "_iteration_s", "_overtaken_s", "_sequence",
        "_turn", "_wake", "_watchdog", "ended_s", "is_direct", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float],
        turn: "Turn",
        watchdog: Watchdog | None = None,
        wake: Callable[[], Any] | None = None,
        iteration_s: float = ITERATION_S,
    ) -> None:
        self.is_direct = True
        self.ended_s = clock()
        self.waiting: OrderedDict[Connection, int] = OrderedDict()
        self._began_s = self.ended_s
        self._clock = clock
        self._turn = turn
        self._watchdog = watchdog or Watchdog()
        self._wake = wake
        self._is_woken = False
        self._iteration_s = iteration_s
        self._heap: list[tuple[int, int, Connection]] = []
        self._sequence = 0
        self._overtaken_s = 0.0
        self._api_costs_s: dict[int, float] = {}

    def begin_iteration(self, now_s: float) -> None:
        """Begin a reactor iteration: events are about to be handled."""
        self._began_s = self.ended_s = now_s
        self.is_direct = not self.waiting

    def add(self, connection: "Connection") -> None:
        """Have `connection.begin_next` called in its turn; nothing if it waits already."""
        waiting = self.waiting
        if connection in waiting:
            return
        self._sequence += 1
        waiting[connection] = self._sequence
        heappush(self._heap, (self._level(connection), self._sequence, connection))
        self._ask_for_serve()

    def account(self, connection: "Connection", api_key: int) -> None:
        """Note the end of a request, which began when the work before it ended."""
        now_s = self._clock()
        cost_s = now_s - self.ended_s
        self.ended_s = now_s
        if api_key == connection.api_key:
            most_s = 2 * connection.expected_s + _OUTLIER_S
            connection.expected_s = cost_s if cost_s < most_s else most_s
        else:
            connection.api_key = api_key
            connection.expected_s = cost_s
            self._api_costs_s[api_key] = (self._api_costs_s.get(api_key, cost_s) + cost_s) / 2
        if cost_s > NOTABLE_S:
            self._watchdog.note_request(cost_s, connection, api_key)
        if now_s - self._began_s >= DIRECT_S:
            self.is_direct = False

    def serve(self) -> None:
        """Begin requests of the connections that wait, until the iteration has lasted long enough."""
        waiting = self.waiting
        end_s = self._began_s + self._iteration_s
        self._is_woken = False
        self.ended_s = self._clock()
        while waiting:
            oldest = next(iter(waiting))
            connection = oldest if self._overtaken_s >= OVERTAKING_S else self._cheapest()
            del waiting[connection]
            began_s = self.ended_s
            while (can_go_on := connection.begin_next()) and not waiting and self.ended_s < end_s:
                pass
            if can_go_on:
                self.add(connection)
            if connection is oldest:
                self._overtaken_s = 0.0
            else:
                self._overtaken_s += self.ended_s - began_s
            if self.ended_s >= end_s:
                break
        if len(self._heap) > 2 * len(waiting) + _STALE_LIMIT:
            self._heap = [entry for entry in self._heap if waiting.get(entry[2]) == entry[1]]
            heapify(self._heap)
        if waiting:
            self._ask_for_serve()

    def _ask_for_serve(self) -> None:
        if self._wake is not None and not self._is_woken:
            self._is_woken = True
            self._wake()

    def _cheapest(self) -> "Connection":
        heap, waiting = self._heap, self.waiting
        while True:
            level, sequence, connection = heappop(heap)
            if waiting.get(connection) != sequence:
                # It had its turn as the oldest.
                continue
            current = self._level(connection)
            if current > level:
                # The costs of its API have become known since.
                heappush(heap, (current, sequence, connection))
                continue
            if level >= _LONG_LEVEL:
                self._turn.flush()
            return connection

    def _level(self, connection: "Connection") -> int:
        api_key = connection.next_api_key
        is_known = api_key == connection.api_key
        cost_s = connection.expected_s if is_known else self._api_costs_s.get(api_key, 0.0)
        return min(int(cost_s * _LEVELS_PER_S).bit_length(), _HIGHEST_LEVEL)
