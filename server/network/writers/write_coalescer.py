"""Write coalescer: sends small responses together at the end of a reactor iteration.

A response that is sent while other requests wait to be read costs the kernel more than one of many sent in a row.
Therefore responses wait until the events of one poll are handled. So do fetches of followers that an append wakes: one
of them then copies all batches that were appended meanwhile.
"""

import logging
from typing import Final

from odradek.server.work.clock import Flushable

logger = logging.getLogger(__name__)


class WriteCoalescer:
    """The writers to flush after the events of a poll. At `LIMIT` writers all are flushed at once.

    waiting: the writers, in the order of their calls of `add`; empty after `flush`
    """

    LIMIT: Final = 64

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Flushable] = []

    def add(self, waiting: Flushable) -> None:
        """Flush `waiting` at the end of the iteration."""
        self.waiting.append(waiting)
        if len(self.waiting) >= self.LIMIT:
            self.flush()

    def flush(self) -> None:
        """Flush every writer. One that fails is aborted, and affects no other."""
        while waiting := self.waiting:
            self.waiting = []
            for one in waiting:
                try:
                    one.flush()
                except Exception:
                    logger.exception("responses could not be sent; closing the connection; please report it")
                    one.abort()
