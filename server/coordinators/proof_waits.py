"""Requests that wait until it is certain that this broker is still the coordinator."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.waits import Wait

_PAUSE_S: Final = 0.05
_REPLIES_PER_CHECK: Final = 20
"""Number of requests that continue in one iteration of the reactor."""


class _Waiting(NamedTuple):
    """A request, the time of its arrival, and the partitions that it uses and of which the proof is missing."""

    wait: Wait[set[int]]
    arrival_ms: int
    missing: set[int]


class ProofWaits:
    """Waits for proofs that no other broker had become the coordinator of partitions when a request arrived.

    A broker that was suspended or cut off does not notice at once that it has been replaced. A wait ends at the latest
    `timeout_ms` after the arrival. One timer serves all requests.

    is_proved: returns whether there is a proof for a partition, by the time of the arrival
    is_doubtful: returns whether without a proof another broker may be the coordinator of a partition
    """

    def __init__(
        self,
        clock: Clock,
        monotonic_ms: Callable[[], int],
        timeout_ms: int,
        is_proved: Callable[[int, int], bool],
        is_doubtful: Callable[[int], bool],
    ) -> None:
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._timeout_ms = timeout_ms
        self._is_proved = is_proved
        self._is_doubtful = is_doubtful
        self._waiting: list[_Waiting] = []
        self._timer: DelayedCall | None = None

    def add(self, partitions: Iterable[int]) -> Wait[set[int]] | None:
        """Return a Deferred of the partitions whose state must not be used; None if there are proofs for all."""
        arrival_ms = self._monotonic_ms()
        missing = {partition for partition in partitions if not self._is_proved(partition, arrival_ms)}
        if not missing:
            return None
        wait: Wait[set[int]] = Wait(lambda: f"coordinators: followers of partitions {sorted(missing)[:10]} to fetch")
        self._waiting.append(_Waiting(wait, arrival_ms, missing))
        self._start_timer(_PAUSE_S)
        return wait

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(delay_s, self._check)

    def _check(self) -> None:
        """Continue up to _REPLIES_PER_CHECK requests, the oldest first."""
        self._timer = None
        ended: list[tuple[Wait[set[int]], set[int]]] = []
        left: list[_Waiting] = []
        for position, one in enumerate(self._waiting):
            if len(ended) == _REPLIES_PER_CHECK:
                left += self._waiting[position:]
                break
            unproved = {each for each in one.missing if not self._is_proved(each, one.arrival_ms)}
            if unproved and self._monotonic_ms() - one.arrival_ms >= self._timeout_ms:
                ended.append((one.wait, {each for each in unproved if self._is_doubtful(each)}))
            elif not unproved:
                ended.append((one.wait, unproved))
            elif not one.wait.called:
                # A request ends earlier if its connection is closed.
                left.append(one)
        self._waiting = left
        if left:
            self._start_timer(0 if len(ended) == _REPLIES_PER_CHECK else _PAUSE_S)
        for wait, unproved in ended:
            if not wait.called:
                wait.callback(unproved)
