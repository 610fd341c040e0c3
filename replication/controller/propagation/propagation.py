"""The publisher of the controller in a cluster: each publication becomes control requests to all live brokers."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from odradek.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from odradek.replication.controller.events import Executor, ImmediateExecutor
from odradek.replication.controller.propagation.broker_queue import (
    ControlChannel,
    ControlResponse,
    LocalBroker,
    LocalControlChannel,
    OnResponse,
    RemoteControlChannel,
    is_failure,
)
from odradek.replication.controller.propagation.epoch_propagation import (
    EpochPropagation,
    PropagationParts,
)
from odradek.replication.controller.propagation.requests import ControlRequest, ReplicaToStop
from odradek.replication.metadata.image import BrokerMetadata, ClusterMetadata, TopicMetadata
from odradek.replication.metadata.updates import MetadataUpdate, apply_update
from odradek.replication.remote import BrokerChannels, Delay

logger = logging.getLogger(__name__)

ReplicasOfBroker = Sequence[tuple[bytes, int]]
"""Topic ids and partition numbers of replicas of one broker."""


class PropagationListener(Protocol):
    """The controller, as the recipient of responses of brokers."""

    def on_controller_moved(self) -> None:
        """Handle a response with STALE_CONTROLLER_EPOCH."""

    def on_replicas_failed(self, broker_id: int, broker_epoch: int, replicas: ReplicasOfBroker) -> None:
        """Handle a response with KAFKA_STORAGE_ERROR for these replicas, in an epoch of their broker."""

    def on_replicas_online(self, broker_id: int, broker_epoch: int, replicas: ReplicasOfBroker) -> None:
        """Handle a response without an error for these replicas, in an epoch of their broker."""

    def on_publication_failed(self) -> None:
        """Handle requests that could not be built, or that a broker did not apply."""


class Propagation:
    """Sends publications to the live brokers while this broker is the controller.

    Configurations are not part of control requests: every broker reads them from the store. They are applied to the
    broker's own cache, whether it is the controller or not.

    executor, listener: set by the controller before its first epoch
    cache: the metadata cache of this broker
    own: control requests of this broker
    inter_broker_listener: name of the listener for requests between brokers
    timeout_ms: maximum time to the response to a control request (controller.socket.timeout.ms)
    """

    def __init__(
        self,
        broker_id: int,
        cache: ClusterMetadata,
        own: LocalBroker,
        channels: BrokerChannels,
        delay: Delay,
        *,
        inter_broker_listener: str,
        timeout_ms: int,
    ) -> None:
        self.executor: Executor = ImmediateExecutor()
        self.listener: PropagationListener | None = None
        self._cache = cache
        self._own = own
        self._channels = channels
        self._timeout_ms = timeout_ms
        self._parts = PropagationParts(
            broker_id, inter_broker_listener, self._connect, lambda: self.executor, delay
        )
        self._current: EpochPropagation | None = None

    @property
    def is_active(self) -> bool:
        """True while requests are sent."""
        return self._current is not None

    def begin(self, epoch: int) -> None:
        """Begin a controller epoch, or begin it anew. Its first publication must contain all brokers and topics."""
        last = self._current
        deletions = () if last is None or last.epoch != epoch else tuple(last.unconfirmed_deletions)
        self.end()
        self._current = EpochPropagation(epoch, self._parts, self._on_response, self._on_failure, deletions)

    def end(self) -> None:
        """End the controller epoch: nothing more is sent."""
        current, self._current = self._current, None
        if current is not None:
            current.stop()

    def publish(self, update: MetadataUpdate) -> None:
        """Apply configurations to the own cache, and send the rest to the brokers."""
        if update.topic_configs or update.broker_configs is not None:
            cache = self._cache
            configs = MetadataUpdate(
                cache.controller_id,
                cache.controller_epoch,
                topic_configs=update.topic_configs,
                broker_configs=update.broker_configs,
            )
            apply_update(cache, configs)
        if self._current is not None:
            self._current.publish(update)

    def resend_roles(self, broker_id: int) -> None:
        """Send LeaderAndIsr for all replicas of a broker, whose response has those that are offline."""
        if self._current is not None:
            self._current.resend_roles(broker_id)

    def repeat_deletions(self, broker_ids: Collection[int], topics: Sequence[TopicMetadata]) -> None:
        """Send UpdateMetadata that removes deleted topics from the caches of brokers."""
        if self._current is not None:
            self._current.repeat_deletions(broker_ids, topics)

    def stop_replicas(
        self, broker_id: int, replicas: Sequence[ReplicaToStop], on_response: OnResponse | None = None
    ) -> None:
        """Send StopReplica after the publications before it, many replicas in several requests.

        `on_response` is called with each response. It is not called if the broker is not live or fails, or if the
        controller resigns.
        """
        if self._current is not None:
            self._current.stop_replicas(broker_id, replicas, on_response)

    def delete_replicas(
        self, broker_id: int, partitions: Sequence[tuple[str, int, int]], done: Callable[[], None]
    ) -> None:
        """Delete replicas (topic, partition, leader epoch).

        `done` is called once, after the last response, whatever the results of the replicas. It is not called in the
        cases of `stop_replicas`, nor if the broker has refused a whole request: it has restarted, or has a later
        controller.
        """
        remaining = len(partitions)

        def on_response(_: int, request: ControlRequest, response: ControlResponse) -> None:
            nonlocal remaining
            if isinstance(request, StopReplicaRequest) and response.error_code == ErrorCode.NONE:
                remaining -= sum(len(topic.partition_states) for topic in request.topic_states)
                if not remaining:
                    done()

        replicas = [ReplicaToStop(topic, index, epoch, True) for topic, index, epoch in partitions]
        self.stop_replicas(broker_id, replicas, on_response)

    def _connect(self, broker: BrokerMetadata) -> ControlChannel:
        if broker.broker_id == self._parts.broker_id:
            return LocalControlChannel(self._own)
        client_id = str(self._parts.broker_id)
        return RemoteControlChannel(self._channels.open(broker, client_id=client_id, timeout_ms=self._timeout_ms))

    def _on_failure(self) -> None:
        if self.listener is not None:
            self.listener.on_publication_failed()

    def _on_response(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        listener = self.listener
        if response.error_code != ErrorCode.NONE:
            has_failed = is_failure(response)
            logger.log(
                logging.ERROR if has_failed else logging.INFO,
                "a broker refused a request of the controller broker=%d request=%s error=%s%s",
                broker_id,
                type(request).__name__,
                read_error_code(response.error_code).name,
                "; its log has the reason; everything is sent again" if has_failed else "",
            )
            if has_failed:
                self._on_failure()
            if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH and listener is not None:
                listener.on_controller_moved()
        elif isinstance(response, LeaderAndIsrResponse) and listener is not None:
            if failed := _find_replicas(response, ErrorCode.KAFKA_STORAGE_ERROR):
                listener.on_replicas_failed(broker_id, request.broker_epoch, failed)
            if online := _find_replicas(response, ErrorCode.NONE):
                listener.on_replicas_online(broker_id, request.broker_epoch, online)
            if refused := _find_replicas(response, ErrorCode.INCONSISTENT_TOPIC_ID):
                # It has missed a deletion, as its cache has. With the metadata of this publication it takes the roles.
                logger.warning(
                    "a broker has replicas of deleted topics; everything is sent again broker=%d partitions=%d",
                    broker_id,
                    len(refused),
                )
                self._on_failure()


def _find_replicas(response: LeaderAndIsrResponse, error: ErrorCode) -> ReplicasOfBroker:
    return [
        (topic.topic_id, row.partition_index)
        for topic in response.topics
        for row in topic.partition_errors
        if row.error_code == error
    ]


def stop_errors(response: StopReplicaResponse) -> dict[tuple[str, int], ErrorCode]:
    """Return the result of each replica in a response to StopReplica."""
    return {
        (row.topic_name, row.partition_index): read_error_code(row.error_code or response.error_code)
        for row in response.partition_errors
    }
