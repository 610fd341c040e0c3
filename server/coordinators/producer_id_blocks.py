"""Blocks of producer ids for the broker: reserved in the metadata store, then recorded in the log directories."""

from twisted.internet.defer import Deferred

from odradek.log.log_manager import LogManager
from odradek.replication.metadata.producer_id_blocks import allocate_block
from odradek.replication.metadata.store import MetadataStore
from odradek.server.work.clock import Clock
from odradek.server.work.waits import wait_until_done


class ProducerIdBlocks:
    """Allocates blocks. `clock` is the reactor."""

    def __init__(self, store: MetadataStore, broker_id: int, logs: LogManager, clock: Clock) -> None:
        self._store = store
        self._broker_id = broker_id
        self._logs = logs
        self._clock = clock
        self._under_way = 0
        self._waiting: list[Deferred[None]] = []

    async def ready(self) -> None:
        """Wait until no allocation is in progress, so that all callers share its block, and the store is ready."""
        while self._under_way:
            wait: Deferred[None] = Deferred()
            self._waiting.append(wait)
            await wait
        await self._store.ready()

    async def allocate(self, least_id: int) -> range:
        """Return a new block without ids below `least_id`. Raises MetadataStoreError, KafkaError."""
        self._under_way += 1
        try:
            block = await allocate_block(self._store, self._broker_id, least_id)
            await wait_until_done(lambda done: self._logs.record_producer_ids(block.stop, done))
        finally:
            self._under_way -= 1
            if self._waiting:
                # In the next iteration, so that the caller has the block first.
                self._clock.callLater(0, self._wake)
        return block

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wait in waiting:
            wait.callback(None)
