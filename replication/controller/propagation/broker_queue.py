"""The queue of requests from the controller to one broker: in order, one in flight.

A request is sent again until the broker has responded. After some failures of the broker itself it is dropped, and the
controller publishes everything again later.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from odradek.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from odradek.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from odradek.replication.controller.events import Executor
from odradek.replication.controller.propagation.requests import (
    LEADER_AND_ISR_VERSION,
    STOP_REPLICA_VERSION,
    UPDATE_METADATA_VERSION,
    ControlRequest,
)
from odradek.replication.remote import BrokerChannel, BrokerUnavailableError, Delay

logger = logging.getLogger(__name__)

ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
OnResponse = Callable[[int, ControlRequest, ControlResponse], None]
"""Called with the broker's id, a request and its response."""

RESEND_MS: Final = 100
"""As in Kafka."""

MAX_RESENDS_AFTER_ERROR: Final = 20
"""Most resends of a request on which a broker fails with UNKNOWN_SERVER_ERROR: later requests wait for it."""


class LocalBroker(Protocol):
    """The control requests of the broker on which the controller runs."""

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Apply leaders and ISRs of this broker's replicas."""

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Apply an update to this broker's metadata cache."""

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop or delete replicas of this broker."""


class ControlChannel(Protocol):
    """Sends control requests to one broker."""

    def send(self, request: ControlRequest) -> Awaitable[ControlResponse]:
        """Return the response. Raises BrokerUnavailableError, after which the request is sent again."""

    def close(self) -> None:
        """Release the connection."""


class LocalControlChannel:
    """Calls the broker on which the controller runs."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Return the response."""
        match request:
            case LeaderAndIsrRequest():
                return await self._broker.leader_and_isr(request)
            case UpdateMetadataRequest():
                return await self._broker.update_metadata(request)
            case StopReplicaRequest():
                return await self._broker.stop_replica(request)

    def close(self) -> None:
        """Release nothing."""


class RemoteControlChannel:
    """Sends over a channel of its own, without negotiation of versions."""

    def __init__(self, channel: BrokerChannel) -> None:
        self._channel = channel

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Return the response."""
        match request:
            case LeaderAndIsrRequest():
                return await self._channel.send(request, LeaderAndIsrResponse, LEADER_AND_ISR_VERSION)
            case UpdateMetadataRequest():
                return await self._channel.send(request, UpdateMetadataResponse, UPDATE_METADATA_VERSION)
            case StopReplicaRequest():
                return await self._channel.send(request, StopReplicaResponse, STOP_REPLICA_VERSION)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _make_error_response(request: ControlRequest, error: Exception) -> ControlResponse:
    """Return the response of a broker that fails with `error`, as its request handler would return it."""
    code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
    match request:
        case LeaderAndIsrRequest():
            return LeaderAndIsrResponse(error_code=code)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error_code=code)
        case StopReplicaRequest():
            return StopReplicaResponse(error_code=code)


def is_failure(response: ControlResponse) -> bool:
    """Return whether a broker failed to apply a request.

    A stale request is refused. The controller gets a notice of a later controller, or of the broker's new registration,
    anyway.
    """
    return response.error_code not in (
        ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH
    )  # fmt: skip


class _Item(NamedTuple):
    request: ControlRequest
    on_response: OnResponse | None


class BrokerQueue:
    """The requests to one broker in one of its epochs.

    on_response: called with each response, before the next request is sent
    """

    def __init__(
        self,
        broker_id: int,
        connect: Callable[[], ControlChannel],
        executor: Callable[[], Executor],
        delay: Delay,
        on_response: OnResponse,
    ) -> None:
        self.broker_id = broker_id
        self._connect = connect
        self._executor = executor
        self._delay = delay
        self._on_response = on_response
        self._items: deque[_Item] = deque()
        self._channel: ControlChannel | None = None
        self._is_sending = False
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, request: ControlRequest, on_response: OnResponse | None = None) -> None:
        """Send a request after those put before it. `on_response` is called with its response, too."""
        if self._is_stopped:
            return
        self._items.append(_Item(request, on_response))
        if not self._is_sending:
            self._is_sending = True
            self._executor().start(self._run())

    def reconnect(self, connect: Callable[[], ControlChannel]) -> None:
        """Send further requests to another address."""
        self._connect = connect
        self._disconnect()

    def stop(self) -> None:
        """Drop the requests: the broker is gone, or the controller resigned."""
        self._is_stopped = True
        self._items.clear()
        self._disconnect()

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def _run(self) -> None:
        try:
            while self._items:
                item = self._items[0]
                response = await self._send(item.request)
                if response is None:
                    return
                self._items.popleft()
                for on_response in (self._on_response, item.on_response):
                    if on_response is not None:
                        self._report(on_response, item.request, response)
        finally:
            self._is_sending = False

    def _report(self, on_response: OnResponse, request: ControlRequest, response: ControlResponse) -> None:
        """Pass a response on. An error must not end the queue."""
        try:
            on_response(self.broker_id, request, response)
        except Exception:
            logger.exception("a response of broker %d was not handled; please report it", self.broker_id)

    async def _send(self, request: ControlRequest) -> ControlResponse | None:
        """Return the response to a request; None if the queue was stopped before it came."""
        failures = 0
        while not self._is_stopped:
            if self._channel is None:
                self._channel = self._connect()
            response, failure = None, "the broker returned UNKNOWN_SERVER_ERROR"
            try:
                response = await self._channel.send(request)
            except BrokerUnavailableError as error:
                # A request that is dropped would leave the broker with an old state.
                failure = repr(error)
            except Exception as error:
                if not failures and not isinstance(error, KafkaError):
                    logger.exception("a request to broker %d failed; please report it", self.broker_id)
                failure = repr(error)
                response = _make_error_response(request, error)
            if self._is_stopped:
                break
            if response is not None and (
                response.error_code != ErrorCode.UNKNOWN_SERVER_ERROR or failures >= MAX_RESENDS_AFTER_ERROR
            ):
                return response
            failures += 1
            if failures & (failures - 1) == 0:
                logger.warning(
                    "a request to a broker failed and is sent again broker=%d request=%s failures=%d: %s",
                    self.broker_id,
                    type(request).__name__,
                    failures,
                    failure,
                )
            await self._delay(RESEND_MS)
        return None
