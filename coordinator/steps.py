"""Decisions about many groups or transactions, in steps: other requests are decided between them.

A step looks at the state anew: what an earlier one has seen may have changed since.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that yields after each step, and returns its outcome."""

ITEMS_PER_STEP: Final = 200
"""Of what takes up to a few microseconds each."""


def pieces(items: Iterable[T], size: int = ITEMS_PER_STEP) -> Iterator[list[T]]:
    """The items as lists of up to `size`. They are copied first, so that their collection may change meanwhile."""
    remaining = iter(list(items))
    while piece := list(islice(remaining, size)):
        yield piece


def run_to_end(steps: Steps[T]) -> T:
    """Take all steps at once, and return the outcome."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
