"""A RunInThread for tests: it runs work when the test calls `run`."""

from collections.abc import Callable

from odradek.log.background.tasks import Done, run_inline


class Threads:
    """A RunInThread that keeps work in `waiting`, the oldest first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Done]] = []

    def __call__(self, work: Callable[[], None], done: Done) -> None:
        self.waiting.append((work, done))

    def run(self, count: int = 1000) -> None:
        """Run at most `count` waiting pieces of work, including those that are added meanwhile."""
        while self.waiting and count:
            count -= 1
            run_inline(*self.waiting.pop(0))
