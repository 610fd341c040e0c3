"""Garbage collection while batches of records are processed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLD: Final = 100_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cycles of garbage rarely: a batch has more objects than the usual threshold, and no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
