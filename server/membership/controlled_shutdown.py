"""Controlled shutdown: before a broker stops, the controller moves its leaderships to other brokers."""

import logging
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import CancelledError, Deferred

from odradek.log.storage.found_directories import format_names
from odradek.protocol.errors import read_error_code
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import SessionEvent
from odradek.replication.remote import BrokerUnavailableError, ControllerRequests, Delay
from odradek.server.config import BrokerConfig
from odradek.server.work.clock import Clock, DelayedCall

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 30
"""Longest controlled shutdown, besides the pauses between its attempts."""

DISCONNECTED_TIMEOUT_S: Final = 5
"""Longest controlled shutdown without ZooKeeper. A controller that is still connected needs less."""


class ControlledShutdown:
    """The controlled shutdown of one broker (controlled.shutdown.enable)."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        controller: ControllerRequests,
        broker_epoch: Callable[[], int],
        clock: Clock,
        delay: Delay,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._delay = delay
        self._is_disconnected = False
        self._timeout: DelayedCall | None = None

    def on_session(self, event: SessionEvent) -> None:
        """Shorten the wait if the connection to ZooKeeper is lost. The store calls this."""
        self._is_disconnected = event is SessionEvent.DISCONNECTED
        if self._is_disconnected and self._timeout is not None and self._timeout.active():
            remaining_s = self._timeout.getTime() - self._clock.seconds()
            self._timeout.reset(min(remaining_s, DISCONNECTED_TIMEOUT_S))

    async def run(self) -> None:
        """Return when no leadership is left that can be moved, or after the timeout.

        A leadership of a partition without another live replica cannot be moved; it causes no further attempt.
        """
        config, begin_s = self._config, self._clock.seconds()
        if not config.controlled_shutdown_enable:
            return
        pauses_ms = config.controlled_shutdown_max_retries * config.controlled_shutdown_retry_backoff_ms
        timeout_s = DISCONNECTED_TIMEOUT_S if self._is_disconnected else TIMEOUT_S + pauses_ms / 1000
        moved = Deferred.fromCoroutine(self._move_leaderships())
        timeout = self._timeout = self._clock.callLater(timeout_s, moved.cancel)
        try:
            await moved
        except CancelledError:
            logger.warning(
                "the controlled shutdown is not complete after %d s; the remaining leaderships move after the stop",
                self._clock.seconds() - begin_s,
            )
        finally:
            if timeout.active():
                timeout.cancel()

    async def _move_leaderships(self) -> None:
        for attempt in range(1, self._config.controlled_shutdown_max_retries + 1):
            if len(self._metadata.brokers) <= 1:
                return
            if attempt > 1:
                await self._delay(self._config.controlled_shutdown_retry_backoff_ms)
            why = await self._request()
            if not why:
                return
            if self._metadata.brokers.keys() <= {self._config.node_id}:
                # No other broker is live, perhaps since the request: no attempt can move a leadership.
                return
            logger.warning("the controlled shutdown is not complete attempt=%d: %s", attempt, why)

    async def _request(self) -> str:
        """Send one request; return why leaderships that could be moved remain, or nothing."""
        request = ControlledShutdownRequest(broker_id=self._config.node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._controller.send(request, ControlledShutdownResponse)
        except BrokerUnavailableError as error:
            return str(error)
        if response.error_code:
            return read_error_code(response.error_code).name
        remaining = [
            f"{one.topic_name}-{one.partition_index}"
            for one in response.remaining_partitions
            if self._has_other_live_replica(one.topic_name, one.partition_index)
        ]
        return f"this broker still leads {format_names(remaining)}" if remaining else ""

    def _has_other_live_replica(self, topic: str, index: int) -> bool:
        partition, live = self._metadata.partition(topic, index), self._metadata.brokers
        replicas = () if partition is None else partition.replicas
        return any(replica in live and replica != self._config.node_id for replica in replicas)
