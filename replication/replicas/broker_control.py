"""Requests of the controller to this broker: LeaderAndIsr, UpdateMetadata and StopReplica of ZooKeeper mode.

UpdateMetadata changes the metadata cache, from which clients are answered. LeaderAndIsr and StopReplica change the
assignments, which the replica manager follows. The requests are executed one at a time. A request of an earlier
controller, or for an earlier registration of this broker, changes nothing.

Sources: Kafka 3.9 (KafkaApis, ReplicaManager), KIP-380, KIP-516, KIP-570.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrRequestLeaderAndIsrPartitionState,
    LeaderAndIsrRequestLeaderAndIsrTopicState,
    LeaderAndIsrResponse,
    LeaderAndIsrResponseLeaderAndIsrPartitionError,
    LeaderAndIsrResponseLeaderAndIsrTopicError,
)
from odradek.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaRequestStopReplicaPartitionState,
    StopReplicaResponse,
    StopReplicaResponseStopReplicaPartitionError,
)
from odradek.protocol.messages.update_metadata import (
    UpdateMetadataRequest,
    UpdateMetadataRequestUpdateMetadataBroker,
    UpdateMetadataRequestUpdateMetadataPartitionState,
    UpdateMetadataRequestUpdateMetadataTopicState,
    UpdateMetadataResponse,
)
from odradek.protocol.types import ZERO_UUID
from odradek.replication.controller.events import EventKind, EventLoop
from odradek.replication.controller.propagation.requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    ControlRequest,
)
from odradek.replication.controller.repetition import Repetition, RunLater
from odradek.replication.metadata.config_follower import ConfigFollower
from odradek.replication.metadata.image import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    SECURITY_PROTOCOL_IDS,
    BrokerMetadata,
    ClusterMetadata,
    Endpoint,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata.store import MetadataStoreError, SessionExpiredError
from odradek.replication.metadata.topic_names import is_internal
from odradek.replication.pauses import in_slices
from odradek.replication.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

NO_LEADER_EPOCH: Final = -1

_SECURITY_PROTOCOLS: Final = {number: name for name, number in SECURITY_PROTOCOL_IDS.items()}

_PARTITIONS_PER_PAUSE: Final = 100
"""For this many partitions of a topic each loop takes up to 0.3 ms."""

_NO_EPOCHS: Final = (0, NO_BROKER_EPOCH)

_UNASSIGNED: Final = PartitionMetadata(NO_LEADER, -1, (), ())
"""A partition of which this broker has no replica, or of which the cache has no state."""


class BrokerControl:
    """Applies requests of the controller to this broker.

    metadata, assignments: the metadata cache and the image that `replicas` follows
    count_partitions: returns the number of a topic's partitions in the metadata store. Raises MetadataStoreError
    list_topics: returns the names of the topics in the metadata store. Raises MetadataStoreError
    find_broker_epoch: returns the epoch of this broker's registration
    run_later: runs a coroutine function after a delay in ms
    on_request: called for each request of a present controller, with the epoch of the registration that it was sent to
    """

    def __init__(
        self,
        broker_id: int,
        metadata: ClusterMetadata,
        assignments: ClusterMetadata,
        replicas: ReplicaManager,
        configs: ConfigFollower,
        events: EventLoop,
        find_broker_epoch: Callable[[], int],
        count_partitions: Callable[[str], Awaitable[int]],
        list_topics: Callable[[], Awaitable[Collection[str]]],
        run_later: RunLater,
        monotonic_ms: Callable[[], int],
        on_request: Callable[[int], None],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._assignments = assignments
        self._replicas = replicas
        self._configs = configs
        self._events = events
        self._find_broker_epoch = find_broker_epoch
        self._count_partitions = count_partitions
        self._list_topics = list_topics
        self._on_request = on_request
        self._controller_epoch = 0
        # The epochs of the controller and of this broker in which the cache was compared with the store.
        self._compared_in = _NO_EPOCHS
        self._comparison = Repetition(
            run_later, lambda: self._compare_with_store(self._find_broker_epoch()), monotonic_ms
        )

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Take the roles in partitions that the controller assigns. Raises KafkaError if the store fails."""
        try:
            return await self._events.submit(EventKind.REPLICAS, "LeaderAndIsr", lambda: self._leader_and_isr(request))
        except MetadataStoreError as error:
            raise _store_error(error) from error

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Update the metadata cache. Raises KafkaError if the store fails."""
        try:
            return await self._events.submit(
                EventKind.REPLICAS, "UpdateMetadata", lambda: self._update_metadata(request)
            )
        except MetadataStoreError as error:
            raise _store_error(error) from error

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop or delete replicas."""
        return await self._events.submit(EventKind.REPLICAS, "StopReplica", lambda: self._stop_replica(request))

    def _refuse(self, request: ControlRequest) -> ErrorCode:
        """Return the error of a stale request; NONE, and the controller's epoch counts from now on, for others."""
        if request.broker_epoch != NO_BROKER_EPOCH and request.broker_epoch < self._find_broker_epoch():
            error = ErrorCode.STALE_BROKER_EPOCH
        elif request.controller_epoch < self._controller_epoch:
            error = ErrorCode.STALE_CONTROLLER_EPOCH
        else:
            self._controller_epoch = request.controller_epoch
            self._on_request(request.broker_epoch)
            return ErrorCode.NONE
        logger.warning(
            "refused a request of the controller type=%s error=%s controller=%d controller_epoch=%d broker_epoch=%d",
            type(request).__name__,
            error.name,
            request.controller_id,
            request.controller_epoch,
            request.broker_epoch,
        )
        return error

    # -- LeaderAndIsr --------------------------------------------------------------------------------------------------

    async def _leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        error = self._refuse(request)
        if error:
            return LeaderAndIsrResponse(error_code=error)
        await self._configs.load_topics((topic.topic_name, topic.topic_id) for topic in request.topic_states)
        refused = [await self._assign(topic) for topic in request.topic_states]
        self._assignments.publish()
        await self._replicas.applied()
        rows = [
            LeaderAndIsrResponseLeaderAndIsrTopicError(
                topic_id=topic.topic_id, partition_errors=await self._find_outcomes(topic, errors)
            )
            for topic, errors in zip(request.topic_states, refused, strict=True)
        ]
        return LeaderAndIsrResponse(topics=rows)

    async def _assign(self, requested: LeaderAndIsrRequestLeaderAndIsrTopicState) -> dict[int, ErrorCode]:
        """Put a topic's new states into the assignments; return the errors of those refused."""
        name = requested.topic_name
        current = self._assignments.topics.get(name)
        if current is not None and current.topic_id != requested.topic_id:
            # A topic of a broker before Kafka 2.8 has no id; that it gets one does not mean that it was created again.
            if ZERO_UUID in (current.topic_id, requested.topic_id) or not self._replace_deleted(current):
                return {state.partition_index: ErrorCode.INCONSISTENT_TOPIC_ID for state in requested.partition_states}
            current = None
        known = () if current is None else current.partitions
        errors: dict[int, ErrorCode] = {}
        changed: dict[int, PartitionMetadata] = {}
        async for state in in_slices(requested.partition_states, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            index = state.partition_index
            before = known[index] if index < len(known) else _UNASSIGNED
            error = self._check_state(name, state, before)
            if error:
                errors[index] = error
                continue
            changed[index] = _to_partition(state)
            if state.is_new:
                self._replicas.expect_new(name, index)
        if changed:
            self._assignments.put_topic(TopicMetadata(name, requested.topic_id, _merge(known, changed)))
        return errors

    def _replace_deleted(self, topic: TopicMetadata) -> bool:
        """Remove the assignments of a topic that was deleted; return False if the metadata cache has the topic.

        Before a topic is created again, the controller deletes its replicas, except those that a reassignment removed
        from this broker while it was not live. Their logs are kept, as stray ones.
        """
        cached = self._metadata.topics.get(topic.name)
        if cached is not None and cached.topic_id == topic.topic_id:
            return False
        logger.warning(
            "a topic was deleted and created again; its old logs here are renamed as stray topic=%s", topic.name
        )
        self._replicas.keep_logs(topic.topic_id)
        self._assignments.remove_topic(topic.name)
        return True

    def _check_state(
        self, topic: str, state: LeaderAndIsrRequestLeaderAndIsrPartitionState, before: PartitionMetadata
    ) -> ErrorCode:
        if state.leader_epoch <= before.leader_epoch:
            is_offline = self._replicas.is_offline(topic, state.partition_index)
            return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    async def _find_outcomes(
        self, topic: LeaderAndIsrRequestLeaderAndIsrTopicState, errors: Mapping[int, ErrorCode]
    ) -> list[LeaderAndIsrResponseLeaderAndIsrPartitionError]:
        """Return the rows of a topic's partitions after the replica manager has applied the assignments.

        A log that cannot be created for lack of a resource is created later, with the role that is assigned now.
        """
        rows = []
        async for state in in_slices(topic.partition_states, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            index = state.partition_index
            error = errors.get(index)
            if error is None:
                is_offline = self._replicas.is_offline(topic.topic_name, index)
                error = ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE
            rows.append(LeaderAndIsrResponseLeaderAndIsrPartitionError(partition_index=index, error_code=error))
        return rows

    # -- StopReplica ---------------------------------------------------------------------------------------------------

    async def _stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        error = self._refuse(request)
        if error:
            return StopReplicaResponse(error_code=error)
        errors: list[tuple[str, int, ErrorCode]] = []
        for topic in request.topic_states:
            found = await self._stop(topic.topic_name, topic.partition_states)
            errors += [
                (topic.topic_name, state.partition_index, found.get(state.partition_index, ErrorCode.NONE))
                for state in topic.partition_states
            ]
        self._assignments.publish()
        await self._replicas.applied()
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaResponseStopReplicaPartitionError(topic_name=name, partition_index=index, error_code=code)
                for name, index, code in errors
            ]
        )

    async def _stop(
        self, name: str, states: Iterable[StopReplicaRequestStopReplicaPartitionState]
    ) -> dict[int, ErrorCode]:
        """Stop a topic's replicas in the assignments; return the errors of those that are not stopped."""
        topic = self._assignments.topics.get(name)
        known = () if topic is None else topic.partitions
        errors: dict[int, ErrorCode] = {}
        changed: dict[int, PartitionMetadata] = {}
        async for state in in_slices(states, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            index = state.partition_index
            before = known[index] if index < len(known) else _UNASSIGNED
            if self._replicas.is_offline(name, index):
                errors[index] = ErrorCode.KAFKA_STORAGE_ERROR
            elif (
                state.leader_epoch not in (EPOCH_DURING_DELETE, NO_LEADER_EPOCH)
                and state.leader_epoch < before.leader_epoch
            ):
                errors[index] = ErrorCode.FENCED_LEADER_EPOCH
            elif not before.replicas:
                if state.delete_partition:
                    self._replicas.delete_unassigned(name, index)
            elif state.delete_partition:
                changed[index] = _UNASSIGNED
            else:
                changed[index] = before._replace(leader=NO_LEADER)
        if topic is not None and changed:
            partitions = _merge(known, changed)
            if any(partition.replicas for partition in partitions):
                self._assignments.put_topic(topic._replace(partitions=partitions))
            else:
                # All its replicas here are deleted; `remove_topic` deletes the logs of the replicas it had.
                self._assignments.remove_topic(name)
        return errors

    # -- UpdateMetadata ------------------------------------------------------------------------------------------------

    async def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        error = self._refuse(request)
        if error:
            return UpdateMetadataResponse(error_code=error)
        cache = self._metadata
        self._compare_with_store(request.broker_epoch)
        for topic in request.topic_states:
            known = cache.topics.get(topic.topic_name)
            if known is not None and topic.topic_id not in (known.topic_id, ZERO_UUID):
                # Its deletion was not delivered. The configuration is that of the old topic.
                cache.remove_topic(known.name)
                self._configs.drop_topic(known.name)
        states = [topic for topic in request.topic_states if topic.topic_name not in cache.topics]
        new = {topic.topic_name: topic.topic_id for topic in states if not _is_deletion(topic)}
        await self._configs.load_topics(new.items())
        counts = {name: await self._count_partitions(name) for name in new if is_internal(name)}
        if (cache.controller_id, cache.controller_epoch) != (request.controller_id, request.controller_epoch):
            cache.put_controller(request.controller_id, request.controller_epoch)
        self._update_brokers(request.live_brokers)
        for topic in request.topic_states:
            await self._update_topic(topic, counts.get(topic.topic_name, 0))
        cache.publish()
        stopped = [await self._stop_removed(topic) for topic in request.topic_states]
        if any(stopped):
            self._assignments.publish()
            await self._replicas.applied()
        return UpdateMetadataResponse()

    def _compare_with_store(self, broker_epoch: int) -> None:
        """Begin to compare the cache with the store, with the first request in the epochs of controller and broker.

        The last controller may have failed, or this broker may have had no session, before it got the deletion of a
        topic. The deletions that are not complete follow. No request waits for the store, which may be disconnected.
        """
        epochs = (self._controller_epoch, max(broker_epoch, self._find_broker_epoch()))
        if epochs == self._compared_in:
            return
        self._compared_in = epochs
        if self._metadata.topics:
            self._events.executor.start(self._find_deleted(epochs, list(self._metadata.topics.values())))

    async def _find_deleted(self, epochs: tuple[int, int], cached: Sequence[TopicMetadata]) -> None:
        """Remove those of the topics from the cache that do not exist in the store."""
        try:
            stored = await self._list_topics()
        except MetadataStoreError as error:
            if self._compared_in == epochs:
                self._compared_in = _NO_EPOCHS
            # The first request in the next session begins another comparison.
            if not isinstance(error, SessionExpiredError):
                logger.warning("cannot compare the metadata cache with the store; trying again later: %s", error)
                self._comparison.schedule()
            return
        self._comparison.succeed()
        deleted = [topic for topic in cached if topic.name not in stored]
        if deleted:
            self._events.post(EventKind.REPLICAS, "remove deleted topics", lambda: self._remove_deleted(deleted))

    async def _remove_deleted(self, topics: Iterable[TopicMetadata]) -> None:
        """Remove topics from the cache, except those that the controller has sent again meanwhile.

        Replicas of them here were removed before: the controller deletes a topic after its replicas.
        """
        cache = self._metadata
        has_stopped = False
        async for topic in in_slices(topics, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            if cache.topics.get(topic.name) is topic:
                cache.remove_topic(topic.name)
                self._configs.drop_topic(topic.name)
                assigned = self._assignments.topics.get(topic.name)
                if assigned is not None and assigned.topic_id == topic.topic_id:
                    has_stopped |= self._take_roles(assigned, range(len(assigned.partitions)))
        cache.publish()
        if has_stopped:
            self._assignments.publish()
            await self._replicas.applied()

    async def _stop_removed(self, update: UpdateMetadataRequestUpdateMetadataTopicState) -> bool:
        """Stop replicas that were removed from this broker while it was not live; return whether there are any.

        The controller does not stop replicas on brokers that are not live. Without a restart they would keep their last
        role, and a leader would answer clients. Their logs are kept.
        """
        topic = self._assignments.topics.get(update.topic_name)
        if topic is None:
            return False
        if topic.topic_id != update.topic_id:
            # The name belongs to another topic now, so the replicas here were removed before the deletion of theirs.
            is_deleted = ZERO_UUID not in (topic.topic_id, update.topic_id)
            return is_deleted and self._take_roles(topic, range(len(topic.partitions)))
        removed = []
        async for state in in_slices(update.partition_states, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            index, me = state.partition_index, self._broker_id
            before = topic.partitions[index] if index < len(topic.partitions) else _UNASSIGNED
            is_removed = me in before.replicas and bool(state.replicas) and me not in state.replicas
            # The deletion of a topic has no leader epoch.
            is_later = before.leader_epoch < state.leader_epoch or state.leader == LEADER_DURING_DELETE
            if is_removed and is_later:
                removed.append(index)
        return self._take_roles(topic, removed)

    def _take_roles(self, topic: TopicMetadata, indexes: Iterable[int]) -> bool:
        """Take the roles from replicas that were removed, and keep their logs; return whether there are any."""
        known = topic.partitions
        stopped = {
            index: known[index]._replace(leader=NO_LEADER) for index in indexes if known[index].leader != NO_LEADER
        }
        if stopped:
            # Each reassignment removes replicas: UpdateMetadata precedes StopReplica.
            logger.info(
                "stopped replicas that the controller has removed from this broker topic=%s partitions=%s",
                topic.name,
                sorted(stopped),
            )
            self._assignments.put_topic(topic._replace(partitions=_merge(known, stopped)))
        return bool(stopped)

    def _update_brokers(self, live: Iterable[UpdateMetadataRequestUpdateMetadataBroker]) -> None:
        cache = self._metadata
        registered = {broker.id: _to_broker(broker) for broker in live}
        for broker_id in cache.brokers.keys() - registered.keys():
            cache.remove_broker(broker_id)
        for broker_id, broker in registered.items():
            if cache.brokers.get(broker_id) != broker:
                cache.put_broker(broker)

    async def _update_topic(self, update: UpdateMetadataRequestUpdateMetadataTopicState, count: int) -> None:
        """Change a topic in the cache. A topic that is new in it has at least `count` partitions.

        The controller sends no partition that no broker has led yet, and may divide a topic over several requests. An
        internal topic has all its partitions from the beginning, because their number determines the coordinators.
        """
        cache, name = self._metadata, update.topic_name
        changed: dict[int, PartitionMetadata] = {}
        async for state in in_slices(update.partition_states, _PARTITIONS_PER_PAUSE, self._events.executor.pause):
            changed[state.partition_index] = _to_cached(state)
        current = cache.topics.get(name)
        topic_id = update.topic_id
        if topic_id == ZERO_UUID and current is not None:
            topic_id = current.topic_id
        is_known = current is not None and current.topic_id == topic_id
        known = current.partitions if current is not None and is_known else (_UNASSIGNED,) * count
        partitions = _merge(known, changed)
        end = len(partitions)
        while end and not partitions[end - 1].replicas:
            end -= 1
        if end:
            if not is_internal(name):
                partitions = partitions[:end]
            cache.put_topic(TopicMetadata(name, topic_id, partitions))
        elif is_known:
            cache.remove_topic(name)
            self._configs.drop_topic(name)


def _store_error(error: MetadataStoreError) -> KafkaError:
    """Return the error of a request that was not applied, because the configurations of new topics could not be read.

    The controller repeats everything when the broker has registered again in a new session. It repeats a request at
    once if the store failed otherwise.
    """
    is_over = isinstance(error, SessionExpiredError)
    return KafkaError(ErrorCode.STALE_BROKER_EPOCH if is_over else ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _merge(
    known: tuple[PartitionMetadata, ...], changed: dict[int, PartitionMetadata]
) -> tuple[PartitionMetadata, ...]:
    """Return the partitions with the changes; those between that have no state are unassigned."""
    count = max(len(known), max(changed, default=-1) + 1)
    merged = [*known, *[_UNASSIGNED] * (count - len(known))]
    for index, partition in changed.items():
        merged[index] = partition
    return tuple(merged)


def _to_partition(state: LeaderAndIsrRequestLeaderAndIsrPartitionState) -> PartitionMetadata:
    return PartitionMetadata(
        state.leader,
        state.leader_epoch,
        tuple(state.replicas),
        tuple(state.isr),
        state.controller_epoch,
        state.partition_epoch,
        state.leader_recovery_state,
        tuple(state.adding_replicas),
        tuple(state.removing_replicas),
    )


def _to_cached(state: UpdateMetadataRequestUpdateMetadataPartitionState) -> PartitionMetadata:
    if state.leader == LEADER_DURING_DELETE:
        return _UNASSIGNED
    return PartitionMetadata(
        state.leader,
        state.leader_epoch,
        tuple(state.replicas),
        tuple(state.isr),
        state.controller_epoch,
        state.zk_version,
        offline=tuple(state.offline_replicas),
    )


def _is_deletion(topic: UpdateMetadataRequestUpdateMetadataTopicState) -> bool:
    return all(state.leader == LEADER_DURING_DELETE for state in topic.partition_states)


def _to_broker(broker: UpdateMetadataRequestUpdateMetadataBroker) -> BrokerMetadata:
    endpoints = tuple(
        Endpoint(one.listener, _SECURITY_PROTOCOLS.get(one.security_protocol, "PLAINTEXT"), one.host, one.port)
        for one in broker.endpoints
    )
    return BrokerMetadata(broker.id, endpoints, broker.rack)
