"""Long work on records of clients: the check of large batches, and searches by timestamp.

The work runs in `Slices`; what it asks to be called on a thread is. Work of more than a few steps needs one of
`MOST_IN_PROGRESS` places, in the order of arrival. That bounds the memory: with a place, work may hold a decompressed
batch (`MAX_DECOMPRESSED_BYTES`), without one about a megabyte. Short work never waits for a place.
"""

from collections.abc import Generator
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred

from odradek.log.background import RunInThread
from odradek.protocol.streaming import Step
from odradek.server.slices import Slices
from odradek.server.waits import Wait, call_in_thread

T = TypeVar("T")

MOST_IN_PROGRESS: Final = 4
FREE_STEPS: Final = 8
"""Of work without a place; a step gives up to 128 KiB of decompressed bytes."""


class RecordWork:
    """Runs generators of steps.

    in_progress: how many have a place; waiting: those that wait for one
    """

    def __init__(self, slices: Slices, run_in_thread: RunInThread) -> None:
        self.in_progress = 0
        self.waiting: dict[_Place, None] = {}
        self._slices = slices
        self._run_in_thread = run_in_thread

    def run(self, work: Generator[Step, None, T], *, ends_with_client: bool = True) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        Cancelling that closes the generator; unless `ends_with_client`, only while it waits for a place.
        """
        place = _Place()
        running = self._slices.run(self._steps(work, place))
        if running.called:
            return running

        def cancelled(_: Deferred[Any]) -> None:
            if ends_with_client or place in self.waiting:
                running.cancel()

        outcome: Wait[T] = Wait(lambda: f"work on records, {self.in_progress} in progress", cancelled)
        running.addBoth(lambda result: None if outcome.called else outcome.callback(result))
        return outcome

    def _steps(self, work: Generator[Step, None, T], place: "_Place") -> Generator[Deferred[None] | None, None, T]:
        steps = 0
        try:
            while True:
                call = next(work)
                steps += 1
                if not place.is_taken and (steps > FREE_STEPS or call is not None):
                    yield self._take(place)
                yield None if call is None else call_in_thread(self._run_in_thread, call)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            work.close()
            self._leave(place)

    def _take(self, place: "_Place") -> Deferred[None] | None:
        if self.in_progress < MOST_IN_PROGRESS:
            self.in_progress += 1
            place.is_taken = True
            return None
        self.waiting[place] = None
        return place.turn

    def _leave(self, place: "_Place") -> None:
        self.waiting.pop(place, None)
        if not place.is_taken:
            return
        if not self.waiting:
            self.in_progress -= 1
            return
        following = next(iter(self.waiting))
        del self.waiting[following]
        following.is_taken = True
        following.turn.callback(None)


class _Place:
    """A place among the works in progress, or the wait for one."""

    __slots__ = ("is_taken", "turn")

    def __init__(self) -> None:
        self.is_taken = False
        self.turn: Deferred[None] = Deferred()
