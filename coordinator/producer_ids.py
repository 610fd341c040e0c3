"""Producer ids (KIP-98): never given out twice, drawn in blocks so that most of them cost no write."""

from collections.abc import Awaitable, Callable


class ProducerIdManager:
    """Gives out producer ids one by one.

    `allocate_block` durably reserves the next block and returns it; it may fail, and the next call tries again.
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[range]]) -> None:
        self._allocate_block = allocate_block
        self._block = iter(range(0))

    async def next_id(self) -> int:
        """A producer id that nobody has had. Raises what `allocate_block` raises."""
        while True:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._allocate_block())
