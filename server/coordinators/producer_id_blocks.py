"""Blocks of producer ids for the broker: from the metadata store, or from the controller of a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from twisted.internet.defer import Deferred

from odradek.log.log_manager import LogManager
from odradek.protocol.errors import ErrorCode, KafkaError, read_error_code
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from odradek.replication.metadata.producer_id_blocks import allocate_block
from odradek.replication.metadata.store import MetadataStore
from odradek.replication.remote import BrokerUnavailableError, ControllerRequests
from odradek.server.work.clock import Clock
from odradek.server.work.waits import wait_until_done

_MAX_SKIPPED_BLOCKS: Final = 100


class ProducerIdBlocks:
    """Reserves blocks in the metadata store, and records them in the log directories. `clock` is the reactor."""

    def __init__(self, store: MetadataStore, broker_id: int, logs: LogManager, clock: Clock) -> None:
        self._store = store
        self._broker_id = broker_id
        self._logs = logs
        self._in_progress = _AllocationInProgress(clock)

    async def ready(self) -> None:
        """Wait until no allocation is in progress, so that all callers share its block, and the store is ready."""
        await self._in_progress.wait()
        await self._store.ready()

    async def allocate(self, least_id: int) -> range:
        """Return a new block without ids below `least_id`. Raises MetadataStoreError, KafkaError."""
        with self._in_progress.begin():
            block = await allocate_block(self._store, self._broker_id, least_id)
            await wait_until_done(lambda done: self._logs.record_producer_ids(block.stop, done))
        return block


class RemoteProducerIds:
    """Requests blocks from the controller with AllocateProducerIds (KIP-730).

    broker_epoch: returns the epoch of this broker's registration. `clock` is the reactor.
    """

    def __init__(
        self, controller: ControllerRequests, broker_id: int, broker_epoch: Callable[[], int], clock: Clock
    ) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._in_progress = _AllocationInProgress(clock)

    async def ready(self) -> None:
        """Wait until no allocation is in progress, so that all callers share its block."""
        await self._in_progress.wait()

    async def allocate(self, least_id: int) -> range:
        """Return a new block without ids below `least_id`.

        Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS, after which clients retry, if the controller is not available
        or refuses, or if its ids are still too low after `_MAX_SKIPPED_BLOCKS`.
        """
        with self._in_progress.begin():
            for _ in range(_MAX_SKIPPED_BLOCKS):
                block = await self._request_block()
                if block.stop > least_id:
                    return range(max(block.start, least_id), block.stop)
        raise KafkaError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            f"the controller allocates producer ids up to {block.stop}; ids up to {least_id} are in the logs",
        )

    async def _request_block(self) -> range:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._controller.send(request, AllocateProducerIdsResponse)
        except BrokerUnavailableError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        if response.error_code:
            refusal = read_error_code(response.error_code)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the controller answered {refusal.name}")
        if response.producer_id_len <= 0:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller allocated an empty block")
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


class _AllocationInProgress:
    """Lets callers wait until no allocation is in progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._waiting: list[Deferred[None]] = []

    async def wait(self) -> None:
        while self._count:
            wait: Deferred[None] = Deferred()
            self._waiting.append(wait)
            await wait

    @contextmanager
    def begin(self) -> Iterator[None]:
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._waiting:
                # In the next iteration, so that the caller has the block first.
                self._clock.callLater(0, self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wait in waiting:
            wait.callback(None)
