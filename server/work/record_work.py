"""Long work on records of clients: the check of large batches, and searches by timestamp.

The work runs in `Slices`; what it asks to be called on a thread is. Work of more than a few steps needs one of
`MOST_IN_PROGRESS` places. That bounds the memory: with a place, work may hold a decompressed batch
(`MAX_DECOMPRESSED_BYTES`), without one about a megabyte. It also bounds the threads: a call keeps the place of its work
until it ends, although the client may be gone. Short work never waits for a place. Places that become free go to the
connections in turn: one that asks for much waits for itself.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from twisted.internet.defer import Deferred

from odradek.log.background.tasks import RunInThread
from odradek.protocol.batches.streaming import Step
from odradek.server.work.slices import Slices, Work
from odradek.server.work.waits import AnyDeferred, Wait, call_in_thread

T = TypeVar("T")

MOST_IN_PROGRESS: Final = 4
FREE_STEPS: Final = 8
"""Of work without a place; a step gives up to 128 KiB of decompressed bytes."""


class RecordWork:
    """Runs generators of steps.

    in_progress: how many have a place
    """

    def __init__(self, slices: Slices, run_in_thread: RunInThread) -> None:
        self.in_progress = 0
        self._lines: OrderedDict[object, dict[_Place, None]] = OrderedDict()
        self._slices = slices
        self._run_in_thread = run_in_thread

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(map(len, self._lines.values()))

    def run(
        self, work: Generator[Step, None, T], owner: object = None, *, ends_with_client: bool = True
    ) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        Cancelling that closes the generator; unless `ends_with_client`, only while it waits for a place. `owner` stands
        for the connection.
        """
        place = _Place(owner)
        running = self._slices.run(self._steps(work, place))
        return self._watch(running, lambda: ends_with_client or self._is_waiting(place))

    def run_lookups(self, work: Work[T]) -> Deferred[T]:
        """Run work that takes a place only for its calls of `steps`; cancelling the Deferred closes the generator.

        What needs no place begins at once, whatever other work is in progress.
        """
        return self._watch(self._slices.run(work, at_once=1), lambda: True)

    def steps(self, work: Generator[Step, None, T], owner: object) -> Work[T]:
        """Run `work` as a part of other work in slices."""
        return self._steps(work, _Place(owner))

    def _watch(self, running: Deferred[T], may_cancel: Callable[[], bool]) -> Deferred[T]:
        if running.called:
            return running

        def cancelled(_: AnyDeferred) -> None:
            if may_cancel():
                running.cancel()

        outcome: Wait[T] = Wait(lambda: f"work on records, {self.in_progress} in progress", cancelled)
        running.addBoth(lambda result: None if outcome.called else outcome.callback(result))
        return outcome

    def _steps(self, work: Generator[Step, None, T], place: "_Place") -> Work[T]:
        steps = 0
        in_thread: Deferred[object] | None = None
        try:
            while True:
                call = next(work)
                steps += 1
                if not place.is_taken and (steps > FREE_STEPS or call is not None):
                    yield self._take(place)
                in_thread = None if call is None else call_in_thread(self._run_in_thread, call)
                yield in_thread
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            work.close()
            if in_thread is None or in_thread.called:
                self._leave(place)
            else:
                in_thread.addBoth(lambda _: self._leave(place))

    def _take(self, place: "_Place") -> Deferred[None] | None:
        if self.in_progress < MOST_IN_PROGRESS:
            self.in_progress += 1
            place.is_taken = True
            return None
        self._lines.setdefault(place.owner, {})[place] = None
        return place.turn

    def _is_waiting(self, place: "_Place") -> bool:
        return place in self._lines.get(place.owner, ())

    def _leave(self, place: "_Place") -> None:
        if self._is_waiting(place):
            self._remove(place)
        if not place.is_taken:
            return
        if not self._lines:
            self.in_progress -= 1
            return
        owner, line = next(iter(self._lines.items()))
        following = next(iter(line))
        self._lines.move_to_end(owner)
        self._remove(following)
        following.is_taken = True
        following.turn.callback(None)

    def _remove(self, place: "_Place") -> None:
        line = self._lines[place.owner]
        del line[place]
        if not line:
            del self._lines[place.owner]


class _Place:
    """A place among the works in progress, or the wait for one. `owner` is the connection that asks."""

    __slots__ = ("is_taken", "owner", "turn")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.is_taken = False
        self.turn: Deferred[None] = Deferred()
