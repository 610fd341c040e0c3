"""Producer ids (KIP-98): unique, and allocated in blocks, so that most allocations need no write."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class ProducerIdManager:
    """Allocates producer ids from blocks.

    `allocate_block(least_id)` durably reserves the next block, without ids below `least_id`, and returns it; after a
    failure the next request calls it again. `start` runs a coroutine in the background. `ready` returns when
    `allocate_block` need not wait; callers that wait for it at the same time share one block.
    """

    def __init__(
        self,
        allocate_block: Callable[[int], Awaitable[range]],
        start: Callable[[Coroutine[Any, Any, None]], object] | None = None,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._allocate_block = allocate_block
        self._start = start
        self._ready = ready
        self._is_fetching = False
        self._block = range(0)
        self._least_id = 0
        self._logged = ""
        """The last failure that was logged: it is not logged again, although clients retry many times a second."""

    def begin_at(self, least_id: int) -> None:
        """Allocate no id below `least_id`, because lower ids may be in use. A lower value than before has no effect."""
        self._least_id = max(self._least_id, least_id)

    async def next_id(self) -> int:
        """Return a new producer id. Raises the exceptions of `allocate_block`."""
        while (producer_id := self._next_of_block()) is None:
            await self._fetch_block()
        return producer_id

    async def _fetch_block(self) -> None:
        if self._ready is not None:
            await self._ready()
        if self.is_empty:
            self._block = await self._allocate_block(self._least_id)

    @property
    def is_empty(self) -> bool:
        """Return whether no id is left, so that `take` needs a new block."""
        return self._block.stop <= max(self._block.start, self._least_id)

    async def prefetch(self) -> None:
        """Allocate a block if no id is left, so that `take` has one. A failure is logged, and `take` raises."""
        if self.is_empty:
            self._is_fetching = True
            await self._fetch()

    def take(self) -> int:
        """Return a new producer id without waiting. Raises COORDINATOR_LOAD_IN_PROGRESS while a block is allocated."""
        producer_id = self._next_of_block()
        if producer_id is None and not self._is_fetching and self._start is not None:
            self._is_fetching = True
            self._start(self._fetch())
            # If the fetch did not suspend, the block is available already.
            producer_id = self._next_of_block()
        if producer_id is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a block of producer ids is being allocated")
        return producer_id

    def _next_of_block(self) -> int | None:
        block = self._block
        producer_id = max(block.start, self._least_id)
        if producer_id >= block.stop:
            return None
        self._block = range(producer_id + 1, block.stop)
        return producer_id

    async def _fetch(self) -> None:
        try:
            await self._fetch_block()
            self._logged = ""
        except KafkaError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                logger.error("cannot allocate producer ids; each request retries error=%s", error)
        except Exception:
            logger.exception("cannot allocate producer ids; the next request retries")
        finally:
            self._is_fetching = False
