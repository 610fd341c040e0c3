"""The end of a reactor iteration: small responses leave together.

A response sent while other requests wait to be read costs the kernel more than one of many sent in a row. Responses are
therefore held back until the events of one poll are handled, and no longer.
"""

import logging
from typing import Final, Protocol

logger = logging.getLogger(__name__)


class Flushable(Protocol):
    """A writer that holds data back until the end of the reactor iteration."""

    def flush(self) -> None:
        """Send it now."""
        ...

    def abort(self) -> None:
        """Drop it, and close the connection."""
        ...


class WriteCoalescer:
    """The writers to flush when the events at hand are handled. None waits for more than `LIMIT` others."""

    LIMIT: Final = 64

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Flushable] = []

    def add(self, waiting: Flushable) -> None:
        """Have `waiting` flushed at the end of the iteration."""
        self._waiting.append(waiting)
        if len(self._waiting) >= self.LIMIT:
            self.flush()

    def flush(self) -> None:
        """End the iteration: flush every writer. One that fails is aborted and affects no other."""
        while waiting := self._waiting:
            self._waiting = []
            for one in waiting:
                try:
                    one.flush()
                except Exception:
                    logger.exception("responses could not be sent; closing their connection; please report it")
                    one.abort()
