"""Order in which waiting requests are begun, so that no connection delays the others.

A request that arrives alone is begun as it is read, if no request waits and the reactor iteration has just begun.
Otherwise its connection waits in a line of the scheduler. In its turn it begins one request, and waits for the next.

There is a line for each level of expected cost, and the cheapest level goes first: a heartbeat does not wait for
hundreds of commits. The expected cost of a request is that of the last request of its connection if that was of the
same API, else the cost of that API on connections whose previous request was of another API.

Bounds, with `r` the time of one request:
- An iteration reads sockets for at most `READ_S + r` and begins waiting requests until it is `ITERATION_S` old, and at
  least one. Then all responses are sent and the sockets are polled again.
- No starvation: when cheaper requests have been served for `OVERTAKING_S`, the connection that has waited longest is
  served. With `k` others before it, a connection waits for at most `(k + 1) * (OVERTAKING_S + 2 * r)` of requests.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from odradek.protocol.framing import API_KEY_POSITION, NO_API_KEY
from odradek.server.network.watchdog import NOTABLE_S, Watchdog

if TYPE_CHECKING:
    from odradek.server.network.connection import Connection
    from odradek.server.network.writers.write_coalescer import WriteCoalescer

READ_S: Final = 0.0025
ITERATION_S: Final = 0.005
OVERTAKING_S: Final = 0.004
DIRECT_S: Final = 0.002
"""Age of an iteration up to which a request is begun as it is read."""

LEVELS: Final = 8
_LEVELS_PER_S: Final = 16384
"""The lowest level is for requests of up to 61 us, each higher one for up to twice the time."""

_QUICK_LEVEL: Final = 1
"""Highest level (122 us) whose responses wait for the end of the iteration. Before the first request of a higher level
all waiting responses are sent."""

_OUTLIER_S: Final = 0.00005
"""The expected cost grows to at most twice its value plus this: the thread may have been preempted, or the request may
be an exception. If later requests cost as much, the expected cost reaches it after a few of them."""


class RequestScheduler:
    """The connections that wait for their turn, and the time that requests take.

    is_direct: a request may be begun as it is read
    ended_s: the time at which the last event or request of the iteration ended
    waiting: the number of connections that wait

    `begin_iteration` is called first in every iteration. `wake` is for reactors that do not check `waiting`: it
    schedules a call of `serve`.
    """

    __slots__ = (
        "_api_costs_s",
        "_began_s",
        "_clock",
        "_is_woken",
        "_iteration_s",
        "_lines",
        "_overtaken_s",
        "_sequence",
        "_wake",
        "_watchdog",
        "_write_coalescer",
        "ended_s",
        "is_direct",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float],
        write_coalescer: "WriteCoalescer",
        watchdog: Watchdog | None = None,
        wake: Callable[[], object] | None = None,
        iteration_s: float = ITERATION_S,
    ) -> None:
        self.is_direct = True
        self.ended_s = clock()
        self.waiting = 0
        self._began_s = self.ended_s
        self._clock = clock
        self._write_coalescer = write_coalescer
        self._watchdog = watchdog or Watchdog()
        self._wake = wake
        self._is_woken = False
        self._iteration_s = iteration_s
        self._lines: list[deque[Connection]] = [deque() for _ in range(LEVELS)]
        self._sequence = 0
        self._overtaken_s = 0.0
        self._api_costs_s: dict[int, float] = {}

    def begin_iteration(self, now_s: float) -> None:
        """Begin a reactor iteration: events are about to be handled."""
        self._began_s = self.ended_s = now_s
        self.is_direct = not self.waiting

    def add(self, connection: "Connection") -> None:
        """Put a connection in line, so that its `begin_next` is called; no effect if it waits already."""
        if connection.is_in_line:
            return
        connection.is_in_line = True
        self.waiting += 1
        self._append(connection, connection.next_api_key)
        if self._wake is not None:
            self._ask_for_serve(self._wake)

    def end_request(self, connection: "Connection", frame: bytes | memoryview, *, has_begun: bool = True) -> None:
        """Count the time of a request, which began when the work before it ended.

        The time is the expected cost of the next request like it, unless the request was only tried and has to wait.
        """
        api_key = frame[API_KEY_POSITION] if len(frame) > API_KEY_POSITION else NO_API_KEY
        now_s = self._clock()
        cost_s = now_s - self.ended_s
        self.ended_s = now_s
        if has_begun and api_key == connection.api_key:
            most_s = 2 * connection.expected_s + _OUTLIER_S
            connection.expected_s = cost_s if cost_s < most_s else most_s
        elif has_begun:
            connection.api_key = api_key
            connection.expected_s = cost_s
            self._api_costs_s[api_key] = (self._api_costs_s.get(api_key, cost_s) + cost_s) / 2
        if cost_s > NOTABLE_S:
            self._watchdog.record_request(cost_s, connection, api_key)
        if now_s - self._began_s >= DIRECT_S:
            self.is_direct = False

    def serve(self) -> None:
        """Begin requests of waiting connections until the iteration is `ITERATION_S` old, and at least one."""
        end_s = self._began_s + self._iteration_s
        self._is_woken = False
        self.ended_s = self._clock()
        level = _QUICK_LEVEL
        lines = self._lines
        while self.waiting:
            for line in lines:
                if line:
                    break
            is_oldest = self._overtaken_s >= OVERTAKING_S
            if is_oldest:
                self._overtaken_s = 0.0
                line = min((line for line in lines if line), key=_find_sequence)
            elif line[0].is_cost_guessed and self._move_if_costlier(line):
                continue
            connection = line.popleft()
            if connection.level > level:
                level = connection.level
                self._write_coalescer.flush()
            may_overtake = not is_oldest and self.waiting > len(line) + 1
            began_s = self.ended_s
            while (api_key := connection.begin_next()) >= 0 and self.waiting == 1 and self.ended_s < end_s:
                pass
            if may_overtake:
                self._overtaken_s += self.ended_s - began_s
            if api_key >= 0:
                self._append(connection, api_key)
            else:
                connection.is_in_line = False
                self.waiting -= 1
            if self.ended_s >= end_s:
                break
        if self.waiting and self._wake is not None:
            self._ask_for_serve(self._wake)

    def _append(self, connection: "Connection", api_key: int) -> None:
        """Put a connection at the end of the line for its next request, which is of this API."""
        connection.is_cost_guessed = is_guessed = api_key != connection.api_key
        cost_s = self._api_costs_s.get(api_key, 0.0) if is_guessed else connection.expected_s
        level = int(cost_s * _LEVELS_PER_S).bit_length()
        connection.level = level = level if level < LEVELS else LEVELS - 1
        connection.sequence = self._sequence = self._sequence + 1
        self._lines[level].append(connection)

    def _move_if_costlier(self, line: "deque[Connection]") -> bool:
        """Move the first connection to another line if its API has become more expensive; return whether it moved."""
        connection = line[0]
        cost_s = self._api_costs_s.get(connection.next_api_key, 0.0)
        level = min(int(cost_s * _LEVELS_PER_S).bit_length(), LEVELS - 1)
        if level <= connection.level:
            return False
        connection.level = level
        line.popleft()
        line = self._lines[level]
        place = len(line)
        while place and line[place - 1].sequence > connection.sequence:
            place -= 1
        line.insert(place, connection)
        return True

    def _ask_for_serve(self, wake: Callable[[], object]) -> None:
        if not self._is_woken:
            self._is_woken = True
            wake()


def _find_sequence(line: "deque[Connection]") -> int:
    return line[0].sequence
