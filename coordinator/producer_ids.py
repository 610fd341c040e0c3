"""Producer ids (KIP-98): never given out twice, drawn in blocks so that most of them cost no write."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)


class ProducerIdManager:
    """Gives out producer ids one by one.

    `allocate_block` durably reserves the next block and returns it; it may fail, and the next call tries again.
    `start` has a coroutine run in the background.
    """

    def __init__(
        self,
        allocate_block: Callable[[], Awaitable[range]],
        start: Callable[[Coroutine[Any, Any, None]], object] | None = None,
    ) -> None:
        self._allocate_block = allocate_block
        self._start = start
        self._is_fetching = False
        self._block = iter(range(0))

    async def next_id(self) -> int:
        """A producer id that nobody has had. Raises what `allocate_block` raises."""
        while True:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._allocate_block())

    def take(self) -> int:
        """`next_id` for who cannot wait. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS while a block is fetched."""
        for producer_id in self._block:
            return producer_id
        if not self._is_fetching and self._start is not None:
            self._is_fetching = True
            self._start(self._fetch())
            # Where the store does not suspend, the block is there by now.
            for producer_id in self._block:
                return producer_id
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "producer ids are being fetched")

    async def _fetch(self) -> None:
        try:
            self._block = iter(await self._allocate_block())
        except Exception:
            logger.exception("no producer ids could be reserved; the next request tries again")
        finally:
            self._is_fetching = False
