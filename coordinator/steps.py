"""Work on many groups or transactions, divided into steps; other requests are handled between them.

Each step reads the current state, because it may have changed since the previous step.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that yields after each step and returns its result."""

ITEMS_PER_STEP: Final = 200
"""Items per step, if an item takes up to a few microseconds."""


def pieces(items: Iterable[T], size: int = ITEMS_PER_STEP) -> Iterator[list[T]]:
    """Yield the items in lists of up to `size`. The collection is copied first, because it may change between steps."""
    remaining = iter(list(items))
    while piece := list(islice(remaining, size)):
        yield piece


def run_to_end(steps: Steps[T]) -> T:
    """Run all steps without interruption and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
