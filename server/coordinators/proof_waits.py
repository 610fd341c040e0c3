"""Requests that wait until it is certain that this broker is still the coordinator."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from twisted.internet.defer import Deferred

from odradek.replication.replicas.leader_state import ALWAYS, NEVER
from odradek.server.work.clock import Clock, DelayedCall
from odradek.server.work.waits import Wait

_PAUSE_S: Final = 0.05

VERIFY_AFTER_MS: Final = 1_000
"""Wait for proofs by followers before the metadata store is asked: followers of idle partitions fetch twice in it. With
a short timeout it is less. Half of it is the least pause between two questions about a partition."""

_REPLIES_PER_CHECK: Final = 20
"""Number of requests that continue in one iteration of the reactor."""

_ENTRIES_PER_CHECK: Final = 500
"""Number of entries of the queues that one iteration removes, which takes up to 0.5 ms."""


class _Waiting:
    """A request, the time of its arrival, and the partitions that it uses and of which the proof is missing."""

    __slots__ = ("arrival_ms", "missing", "wait")

    def __init__(self, wait: Wait[set[int]], arrival_ms: int, missing: set[int]) -> None:
        self.wait = wait
        self.arrival_ms = arrival_ms
        self.missing = missing


class ProofWaits:
    """Waits for proofs that no other broker had become the coordinator of partitions when a request arrived.

    A broker that was suspended or cut off does not notice at once that it has been replaced. If followers give no
    proof, because they hang or cannot reach this broker, the metadata store does. A wait ends at the latest
    `timeout_ms` after the arrival. One timer serves all requests. A proof holds for all requests that arrived before,
    so that a check examines only the oldest requests of each partition.

    find_proved_ms: returns the time before which followers have given a proof for a partition
    verify: returns whether this broker leads a partition at the time of the call or later, by the metadata store; it
        does not fail
    """

    def __init__(
        self,
        clock: Clock,
        monotonic_ms: Callable[[], int],
        timeout_ms: int,
        find_proved_ms: Callable[[int], int],
        verify: Callable[[int], Deferred[bool]],
    ) -> None:
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._timeout_ms = timeout_ms
        self._pause_s = min(_PAUSE_S, timeout_ms / 10_000)
        self._find_followed_ms = find_proved_ms
        self._verify = verify
        self._verify_after_ms = min(VERIFY_AFTER_MS, timeout_ms // 3)
        # By partition: the time of the last question to which the metadata store gave a proof, and the earliest time of
        # the next question, which is ALWAYS until the answer.
        self._verified_ms: dict[int, int] = {}
        self._next_verification_ms: dict[int, int] = {}
        # In the order of the arrivals: all requests, and those of each partition. Some may have ended.
        self._waiting: deque[_Waiting] = deque()
        self._by_partition: dict[int, deque[_Waiting]] = {}
        self._timer: DelayedCall | None = None

    def add(self, partitions: Iterable[int]) -> Wait[set[int]] | None:
        """Return a Deferred of the partitions without a proof, whose state must not be used; None if all have one."""
        arrival_ms = self._monotonic_ms()
        missing = {partition for partition in partitions if self._find_proved_ms(partition) <= arrival_ms}
        if not missing:
            return None
        wait: Wait[set[int]] = Wait(lambda: f"coordinators: a proof for partitions {sorted(missing)[:10]}")
        waiting = _Waiting(wait, arrival_ms, missing)
        self._waiting.append(waiting)
        for partition in missing:
            self._by_partition.setdefault(partition, deque()).append(waiting)
        self._start_timer(self._pause_s)
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
        """Continue the requests with proofs, and those that have waited for too long; of many only a part."""
        self._timer = None
        proved: list[_Waiting] = []
        is_complete = self._remove_proved(proved)
        late: list[_Waiting] = []
        is_complete = self._remove_late(late, _REPLIES_PER_CHECK - len(proved)) and is_complete
        if self._waiting:
            self._start_timer(self._pause_s if is_complete else 0)
            self._verify_oldest()
        ended = [(one.wait, self._find_unusable(one)) for one in proved + late]
        for wait, unusable in ended:
            if not wait.called:
                wait.callback(unusable)

    def _find_unusable(self, waiting: _Waiting) -> set[int]:
        """Return the partitions without a proof: another broker may be their coordinator."""
        return {
            partition for partition in waiting.missing if self._find_proved_ms(partition) <= waiting.arrival_ms
        }

    def _find_proved_ms(self, partition: int) -> int:
        """Return the time before which there is a proof for a partition."""
        return max(self._find_followed_ms(partition), self._verified_ms.get(partition, NEVER))

    def _verify_oldest(self) -> None:
        """Ask the metadata store for the proofs that requests have been waiting for too long."""
        asked_ms = self._monotonic_ms()
        late_ms = asked_ms - self._verify_after_ms
        for partition in [index for index, queue in self._by_partition.items() if queue[0].arrival_ms <= late_ms]:
            if asked_ms >= self._next_verification_ms.get(partition, NEVER):
                self._next_verification_ms[partition] = ALWAYS
                self._verify(partition).addCallback(self._add_answer, partition, asked_ms)

    def _add_answer(self, is_proved: bool, partition: int, asked_ms: int) -> None:
        self._next_verification_ms[partition] = self._monotonic_ms() + self._verify_after_ms // 2
        if is_proved:
            self._verified_ms[partition] = asked_ms

    def _remove_proved(self, proved: list[_Waiting]) -> bool:
        """Remove entries with a proof from the queues of their partitions; return False if some may be left.

        A request that had a proof of its last partition is added to `proved`, unless it has ended.
        """
        removed = 0
        for partition in list(self._by_partition):
            queue = self._by_partition[partition]
            proved_ms = self._find_proved_ms(partition)
            while queue and (queue[0].arrival_ms < proved_ms or queue[0].wait.called):
                if len(proved) == _REPLIES_PER_CHECK or removed == _ENTRIES_PER_CHECK:
                    return False
                removed += 1
                one = queue.popleft()
                one.missing.discard(partition)
                if not one.missing and not one.wait.called:
                    proved.append(one)
            if not queue:
                del self._by_partition[partition]
        return True

    def _remove_late(self, late: list[_Waiting], count: int) -> bool:
        """Remove requests that have ended, and up to `count` late ones, which are added to `late`.

        Returns False if some may be left.
        """
        late_ms = self._monotonic_ms() - self._timeout_ms
        for _ in range(_ENTRIES_PER_CHECK):
            if not self._waiting:
                return True
            one = self._waiting[0]
            if one.missing and not one.wait.called:
                if one.arrival_ms > late_ms:
                    return True
                if len(late) == count:
                    return False
                late.append(one)
            self._waiting.popleft()
        return False
