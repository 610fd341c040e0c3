"""Pauses of long work, in which other work of the broker runs.

A pause suspends its caller only if work in this iteration of the reactor has taken long enough. All state may have
changed after a pause, except what the caller's event protects.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Pause = Callable[[], Awaitable[None]]


async def no_pause() -> None:
    """Return at once."""


async def in_slices(items: Iterable[T], size: int, pause: Pause) -> AsyncIterator[T]:
    """Iterate over the items, and await `pause` before each slice of `size` of them."""
    for number, item in enumerate(items):
        if number % size == 0:
            await pause()
        yield item


async def run_with_pauses(steps: Generator[None, None, T], pause: Pause) -> T:
    """Run all steps, and await `pause` between them; return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await pause()
