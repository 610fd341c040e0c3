"""The propagation of one controller epoch: what was published last, and a queue of requests per live broker.

Each publication is compared with the last one, topic by topic. Its requests are built in steps, in the order of
publication. Within a publication a broker gets LeaderAndIsr before UpdateMetadata; StopReplica is put afterwards. A
broker that has just registered gets the whole metadata first, then LeaderAndIsr for all of its replicas.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from odradek.replication.controller.events import Executor
from odradek.replication.controller.propagation.broker_queue import (
    BrokerQueue,
    ControlChannel,
    ControlResponse,
    OnResponse,
    is_failure,
)
from odradek.replication.controller.propagation.requests import (
    ControlBatch,
    ControlRequest,
    ReplicaToStop,
    make_stop_replica,
)
from odradek.replication.controller.states.partition_states import PartitionState, determine_state
from odradek.replication.metadata.image import BrokerMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.updates import MetadataUpdate
from odradek.replication.remote import Delay

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST: Final = 2000
"""Larger changes are split, except for the first LeaderAndIsr to a broker: Kafka starts its high watermark checkpoints
with the partitions of that request."""

REPLICAS_PER_STOP: Final = 500
"""Most replicas in one StopReplica, which is built and handled in one step of a few ms."""

_PARTITIONS_PER_PAUSE: Final = 50
"""To add so many to LeaderAndIsr and UpdateMetadata takes 0.5 ms."""

_Previous = Mapping[str, TopicMetadata | None]
"""Changed topics as they were published before; None for a new topic."""

Build = Callable[[], Coroutine[Any, Any, None]]


class _StoppedError(Exception):
    """The epoch ended while a request was built."""


OpenControlChannel = Callable[[BrokerMetadata], ControlChannel]
"""Returns a channel for control requests to a broker."""


class PropagationParts(NamedTuple):
    """The parts of a broker that the propagation uses.

    broker_id: id of this broker, the controller
    listener: name of the inter-broker listener
    """

    broker_id: int
    listener: str
    connect: OpenControlChannel
    executor: Callable[[], Executor]
    delay: Delay


class EpochPropagation:
    """Builds and sends the requests of one controller epoch until `stop`.

    on_failure: called when requests could not be built; those of later publications are built nevertheless
    deletions: deleted topics that the first publication removes from the caches of all brokers, too
    """

    def __init__(
        self,
        epoch: int,
        parts: PropagationParts,
        on_response: OnResponse,
        on_failure: Callable[[], None],
        deletions: Iterable[TopicMetadata] = (),
    ) -> None:
        self.epoch = epoch
        self._parts = parts
        self._on_response = on_response
        self._on_failure = on_failure
        self._brokers: dict[int, BrokerMetadata] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._queues: dict[int, BrokerQueue] = {}
        # Deleted topics that may still be in the cache of a broker, by name.
        self._unconfirmed = {topic.name: topic for topic in deletions}
        self._has_failed = False
        self._work: deque[Build] = deque()
        self._is_building = False
        self._is_stopped = False
        self._is_first = True

    @property
    def unconfirmed_deletions(self) -> Collection[TopicMetadata]:
        """The deleted topics that may still be in the cache of a broker, because it has not responded since."""
        return self._unconfirmed.values()

    def publish(self, update: MetadataUpdate) -> None:
        """Send the difference between the last publication and this one."""
        self._unconfirmed |= {topic.name: topic for topic in update.deleted_topics}
        self._add(partial(self._publish, update))

    def resend_roles(self, broker_id: int) -> None:
        """Send LeaderAndIsr for all replicas of a broker: its log directories may have failed."""
        self._add(partial(self._resend_roles, broker_id))

    def repeat_deletions(self, broker_ids: Collection[int], topics: Sequence[TopicMetadata]) -> None:
        """Send UpdateMetadata that removes deleted topics from caches, after the publications before it."""
        self._add(partial(self._send_deletions, topics, broker_ids))

    def stop_replicas(
        self, broker_id: int, replicas: Sequence[ReplicaToStop], on_response: OnResponse | None = None
    ) -> None:
        """Send StopReplica, after the publications before it; nothing if the broker is not live.

        Many replicas are divided over several requests. `on_response` is called with each response.
        """
        for first in range(0, len(replicas), REPLICAS_PER_STOP):
            some = replicas[first : first + REPLICAS_PER_STOP]
            self._add(partial(self._stop_replicas, broker_id, some, on_response))

    def stop(self) -> None:
        """Send nothing more."""
        self._is_stopped = True
        self._work.clear()
        for queue in self._queues.values():
            queue.stop()
        self._queues.clear()

    def _add(self, build: Build) -> None:
        if self._is_stopped:
            return
        self._work.append(build)
        if not self._is_building:
            self._is_building = True
            self._parts.executor().start(self._run())

    async def _run(self) -> None:
        try:
            while self._work:
                await self._build(self._work.popleft())
        except _StoppedError:
            pass
        finally:
            self._is_building = False

    async def _build(self, build: Build) -> None:
        try:
            await build()
        except _StoppedError:
            raise
        except Exception:
            logger.exception("requests to brokers could not be built; everything is sent again; please report it")
            self._on_failure()

    # Publications

    async def _publish(self, update: MetadataUpdate) -> None:
        is_first, self._is_first = self._is_first, False
        started, changed = self._update_brokers(update)
        previous = self._update_topics(update)
        others = [broker_id for broker_id in self._brokers if broker_id not in started]
        deleted = update.deleted_topics
        if is_first:
            # A broker may have a new topic of the same name already.
            deleted = [topic for topic in self._unconfirmed.values() if topic.name not in self._topics]
        # A deletion precedes a new topic of the same name.
        await self._send_deletions(deleted, self._brokers)
        if is_first:
            self._put_updates(ControlBatch(), started)
            await self._send_all_roles(started, {})
            await self._send_all_updates(started)
            return
        if started:
            await self._send_all_updates(started)
            await self._send_all_roles(started, previous)
            # Before the roles: a follower of Apache Kafka does not follow a leader that is not in its cache.
            self._put_updates(ControlBatch(), others)
        if not await self._send_changes(previous, others, changed) and changed and not started:
            # Caches replace their list of live brokers.
            self._put_updates(ControlBatch(), others)

    def _update_brokers(self, update: MetadataUpdate) -> tuple[set[int], set[int]]:
        """Open and close queues. Return the brokers that have just registered, and all that changed."""
        changed = set()
        for broker_id in update.removed_brokers:
            if self._brokers.pop(broker_id, None) is not None:
                self._queues.pop(broker_id).stop()
                changed.add(broker_id)
        started = set()
        for broker in update.brokers:
            known = self._brokers.get(broker.broker_id)
            if known == broker:
                continue
            changed.add(broker.broker_id)
            self._brokers[broker.broker_id] = broker
            connect = partial(self._parts.connect, broker)
            if known is not None and known.epoch == broker.epoch:
                if known.endpoints != broker.endpoints:
                    self._queues[broker.broker_id].reconnect(connect)
                continue
            if known is not None:
                self._queues[broker.broker_id].stop()
            started.add(broker.broker_id)
            self._queues[broker.broker_id] = BrokerQueue(
                broker.broker_id, connect, self._parts.executor, self._parts.delay, self._on_delivered
            )
        return started, changed

    def _update_topics(self, update: MetadataUpdate) -> _Previous:
        """Record the published topics; return the changed ones as they were, None for a new one."""
        for topic in update.deleted_topics:
            known = self._topics.get(topic.name)
            if known is not None and known.topic_id == topic.topic_id:
                del self._topics[topic.name]
        previous: dict[str, TopicMetadata | None] = {}
        for topic in update.topics:
            known = self._topics.get(topic.name)
            if known is not topic:
                same = known is not None and known.topic_id == topic.topic_id
                previous[topic.name] = known if same else None
                self._topics[topic.name] = topic
        return previous

    async def _send_deletions(self, topics: Iterable[TopicMetadata], recipients: Collection[int]) -> None:
        """Send UpdateMetadata that removes topics from the caches of brokers."""
        batch = ControlBatch()
        for topic, indexes in _steps(topics):
            await self._pause()
            for index in indexes:
                batch.add_deletion(topic, index, self._brokers)
            batch = self._put_full(batch, recipients)
        self._put_rest(batch, recipients)

    async def _send_all_updates(self, recipients: Collection[int]) -> None:
        """Send UpdateMetadata with all partitions."""
        batch, is_sent = ControlBatch(), False
        for topic, indexes in _steps(self._topics.values()):
            await self._pause()
            for index in indexes:
                if _is_begun(topic.partitions[index]):
                    batch.add_update(topic, index, self._brokers)
            if batch.partitions >= PARTITIONS_PER_REQUEST:
                self._put_updates(batch, recipients)
                batch, is_sent = ControlBatch(), True
        if batch.partitions or not is_sent:
            self._put_updates(batch, recipients)

    async def _send_all_roles(self, recipients: Collection[int], previous: _Previous) -> None:
        """Send LeaderAndIsr for all replicas of these brokers, in one request each."""
        batch = ControlBatch()
        for topic, indexes in _steps(self._topics.values()):
            await self._pause()
            for index in indexes:
                partition = topic.partitions[index]
                hosts = [replica for replica in partition.replicas if replica in recipients]
                if hosts and _is_begun(partition):
                    is_new = topic.name in previous and _published(previous[topic.name], index) is None
                    batch.add_roles(topic, index, hosts, partition.isr if is_new else ())
        self._put_roles(batch)

    async def _send_changes(
        self, previous: _Previous, others: Collection[int], changed_brokers: Collection[int]
    ) -> bool:
        """Send changed partitions, and those with replicas on changed brokers; return False if there are none.

        Recipients are brokers that were live before.
        """
        topics = list(self._topics.values()) if changed_brokers else [self._topics[name] for name in previous]
        batch, is_sent = ControlBatch(), False
        for topic, indexes in _steps(topics):
            await self._pause()
            is_changed = topic.name in previous
            earlier = previous.get(topic.name)
            for index in indexes:
                partition = topic.partitions[index]
                before = _published(earlier, index) if is_changed else partition
                if not _is_begun(partition) or (
                    (before is partition or before == partition)
                    and not any(replica in changed_brokers for replica in partition.replicas)
                ):
                    continue
                self._add_roles(batch, topic, index, before, others)
                batch.add_update(topic, index, self._brokers)
                is_sent = True
            batch = self._put_full(batch, others)
        self._put_rest(batch, others)
        return is_sent

    @staticmethod
    def _add_roles(
        batch: ControlBatch, topic: TopicMetadata, index: int, before: PartitionMetadata | None, others: Collection[int]
    ) -> None:
        """Add a new partition, or one with a new leader epoch, to LeaderAndIsr.

        A new partition goes to its ISR only: the brokers of its other replicas are not live, or shut down.
        """
        partition = topic.partitions[index]
        if before is None:
            recipients = [replica for replica in partition.isr if replica in others]
            batch.add_roles(topic, index, recipients, recipients)
        elif before.leader_epoch != partition.leader_epoch:
            offline = partition.offline
            live = [replica for replica in partition.replicas if replica in others and replica not in offline]
            batch.add_roles(topic, index, live, [replica for replica in live if replica not in before.replicas])

    async def _resend_roles(self, broker_id: int) -> None:
        await self._send_all_roles({broker_id}, {})

    async def _stop_replicas(
        self, broker_id: int, replicas: Sequence[ReplicaToStop], on_response: OnResponse | None
    ) -> None:
        await self._pause()
        broker = self._brokers.get(broker_id)
        if broker is not None:
            request = make_stop_replica(self._parts.broker_id, self.epoch, broker.epoch, replicas)
            self._put(broker_id, request, on_response)

    # Queues

    def _put_full(self, batch: ControlBatch, recipients: Collection[int]) -> ControlBatch:
        """Put the requests of a batch that is large enough; return the batch to fill."""
        if batch.partitions < PARTITIONS_PER_REQUEST:
            return batch
        self._put_rest(batch, recipients)
        return ControlBatch()

    def _put_rest(self, batch: ControlBatch, recipients: Collection[int]) -> None:
        if batch.partitions:
            self._put_roles(batch)
            self._put_updates(batch, recipients)

    def _put_roles(self, batch: ControlBatch) -> None:
        parts = self._parts
        requests = batch.leader_and_isr(parts.broker_id, self.epoch, self._brokers, parts.listener)
        for broker_id, request in requests:
            self._put(broker_id, request)

    def _put_updates(self, batch: ControlBatch, recipients: Iterable[int]) -> None:
        requests = batch.update_metadata(self._parts.broker_id, self.epoch, self._brokers, recipients)
        for broker_id, request in requests:
            self._put(broker_id, request)

    def _put(self, broker_id: int, request: ControlRequest, on_response: OnResponse | None = None) -> None:
        queue = self._queues.get(broker_id)
        if queue is not None:
            queue.put(request, on_response)

    def _on_delivered(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        self._on_response(broker_id, request, response)
        self._has_failed = self._has_failed or is_failure(response)
        is_complete = not self._is_building and not any(map(len, self._queues.values()))
        if self._unconfirmed and is_complete and not self._has_failed:
            self._unconfirmed.clear()

    async def _pause(self) -> None:
        await self._parts.executor().pause()
        if self._is_stopped:
            raise _StoppedError


def _steps(topics: Iterable[TopicMetadata]) -> Iterator[tuple[TopicMetadata, range]]:
    """Split topics into steps of a few partitions."""
    for topic in topics:
        count = len(topic.partitions)
        for first in range(0, count, _PARTITIONS_PER_PAUSE):
            yield topic, range(first, min(first + _PARTITIONS_PER_PAUSE, count))


def _is_begun(partition: PartitionMetadata) -> bool:
    """Return whether the partition ever had a leader; brokers get no request for one that had none."""
    return determine_state(partition) is not PartitionState.NEW


def _published(topic: TopicMetadata | None, index: int) -> PartitionMetadata | None:
    """Return a partition as it was published, None if it was not."""
    if topic is None or index >= len(topic.partitions) or not _is_begun(topic.partitions[index]):
        return None
    return topic.partitions[index]
