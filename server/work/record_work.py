"""Long work on records of clients: validation of large batches, and searches by timestamp.

The work runs in `Slices`, and the functions that it yields run on threads. Work of more than a few steps needs one of
`MAX_IN_PROGRESS` places. This bounds the memory: with a place, work may hold a decompressed batch
(`MAX_DECOMPRESSED_BYTES`), without one about a megabyte. It also bounds the threads: a call on a thread keeps its place
until it ends, even if the connection is lost. Short work never waits for a place. Connections get free places in turn,
so that one with many requests does not delay the others.
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

MAX_IN_PROGRESS: Final = 4
FREE_STEPS: Final = 8
"""Steps of work without a place; each yields up to 128 KiB of decompressed bytes."""


class RecordWork:
    """Runs generators of steps.

    in_progress: the number of generators with a place
    """

    def __init__(self, slices: Slices, run_in_thread: RunInThread) -> None:
        self.in_progress = 0
        self._queues: OrderedDict[object, dict[_Place, None]] = OrderedDict()
        self._slices = slices
        self._run_in_thread = run_in_thread

    @property
    def waiting(self) -> int:
        """The number of generators that wait for a place."""
        return sum(map(len, self._queues.values()))

    def run(
        self, work: Generator[Step, None, T], owner: object = None, *, ends_with_client: bool = True
    ) -> Deferred[T]:
        """Run `work` to its end, and return a Deferred of its return value.

        Its cancellation closes the generator, without `ends_with_client` only while it waits for a place. `owner`
        identifies the connection.
        """
        place = _Place(owner)
        running = self._slices.run(self._steps(work, place))
        return self._watch(running, lambda: ends_with_client or self._is_waiting(place))

    def run_lookups(self, work: Work[T]) -> Deferred[T]:
        """Run work that takes a place only for its calls of `steps`; cancelling the Deferred closes the generator.

        The work itself begins at once, even if no place is free.
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
                    yield self._take_place(place)
                in_thread = None if call is None else call_in_thread(self._run_in_thread, call)
                yield in_thread
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            work.close()
            if in_thread is None or in_thread.called:
                self._release_place(place)
            else:
                in_thread.addBoth(lambda _: self._release_place(place))

    def _take_place(self, place: "_Place") -> Deferred[None] | None:
        if self.in_progress < MAX_IN_PROGRESS:
            self.in_progress += 1
            place.is_taken = True
            return None
        self._queues.setdefault(place.owner, {})[place] = None
        return place.turn

    def _is_waiting(self, place: "_Place") -> bool:
        return place in self._queues.get(place.owner, ())

    def _release_place(self, place: "_Place") -> None:
        if self._is_waiting(place):
            self._remove_waiting(place)
        if not place.is_taken:
            return
        if not self._queues:
            self.in_progress -= 1
            return
        owner, queue = next(iter(self._queues.items()))
        next_place = next(iter(queue))
        self._queues.move_to_end(owner)
        self._remove_waiting(next_place)
        next_place.is_taken = True
        next_place.turn.callback(None)

    def _remove_waiting(self, place: "_Place") -> None:
        queue = self._queues[place.owner]
        del queue[place]
        if not queue:
            del self._queues[place.owner]


class _Place:
    """A place, or the wait for one. `owner` is the context of the connection."""

    __slots__ = ("is_taken", "owner", "turn")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.is_taken = False
        self.turn: Deferred[None] = Deferred()
