"""Deletion of the replicas of deleted topics, in a cluster: every broker with a replica deletes its log.

A topic's nodes stay in the store until all of its replicas are deleted, so that a broker that is not live deletes its
log when it returns, and no topic of that name is created before.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.stop_replica import StopReplicaResponse
from odradek.replication.controller.propagation.broker_queue import ControlResponse
from odradek.replication.controller.propagation.propagation import Propagation, stop_errors
from odradek.replication.controller.propagation.requests import EPOCH_DURING_DELETE, ControlRequest, ReplicaToStop
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.pauses import Pause, in_slices

logger = logging.getLogger(__name__)

_REPLICAS_PER_PAUSE: Final = 500

_IS_GONE: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

OnDeleted = Callable[[str], None]
"""Called with the name of a topic of which the last replica was deleted. It submits an event."""


class ReplicaDeletion:
    """The replicas of deleted topics that still exist, by topic and broker.

    The coroutines are called within an event of the controller. `pause` lets other work run.
    """

    def __init__(self, propagation: Propagation, on_deleted: OnDeleted, pause: Pause) -> None:
        self._propagation = propagation
        self._on_deleted = on_deleted
        self._pause = pause
        self._remaining: dict[str, dict[int, set[int]]] = {}
        self._topics: dict[str, TopicMetadata] = {}

    def clear(self) -> None:
        """Forget the deletions of an earlier controller epoch."""
        self._remaining.clear()
        self._topics.clear()

    async def begin(self, topics: Iterable[TopicMetadata], live: Collection[int]) -> None:
        """Delete the replicas of topics, those of live brokers at once. The deletion must have been published."""
        added: dict[str, dict[int, set[int]]] = {}
        brokers: set[int] = set()
        for topic in topics:
            remaining = added[topic.name] = {}
            async for index, partition in in_slices(enumerate(topic.partitions), _REPLICAS_PER_PAUSE, self._pause):
                for replica in partition.replicas:
                    remaining.setdefault(replica, set()).add(index)
            self._topics[topic.name] = topic
            brokers.update(remaining)
        self._remaining |= added
        await self._stop_on([broker_id for broker_id in sorted(brokers) if broker_id in live], list(added))

    async def resume_on(self, broker_ids: Collection[int]) -> None:
        """Delete the remaining replicas of live brokers, also of those for which a request is under way.

        As in Kafka, UpdateMetadata is repeated: a broker whose session had expired may still have the topics in its
        metadata cache.
        """
        if self._topics and broker_ids:
            self._propagation.repeat_deletions(broker_ids, list(self._topics.values()))
        await self._stop_on(broker_ids, list(self._remaining))

    async def _stop_on(self, broker_ids: Iterable[int], names: Sequence[str]) -> None:
        """Stop and then delete the remaining replicas of topics: followers stop before a leader's log is deleted."""
        for broker_id in broker_ids:
            replicas = await self._list_remaining(broker_id, names)
            on_response = self._make_callback()
            for first in range(0, len(replicas), _REPLICAS_PER_PAUSE):
                await self._pause()
                self._propagation.stop_replicas(broker_id, replicas[first : first + _REPLICAS_PER_PAUSE])
            for first in range(0, len(replicas), _REPLICAS_PER_PAUSE):
                await self._pause()
                some = [one._replace(delete=True) for one in replicas[first : first + _REPLICAS_PER_PAUSE]]
                self._propagation.stop_replicas(broker_id, some, on_response)

    async def _list_remaining(self, broker_id: int, names: Sequence[str]) -> list[ReplicaToStop]:
        replicas: list[ReplicaToStop] = []
        for name in names:
            await self._pause()
            indexes = sorted(self._remaining.get(name, {}).get(broker_id, ()))
            async for index in in_slices(indexes, _REPLICAS_PER_PAUSE, self._pause):
                replicas.append(ReplicaToStop(name, index, EPOCH_DURING_DELETE, False))
        return replicas

    def _make_callback(self) -> Callable[[int, ControlRequest, ControlResponse], None]:
        # A topic of the same name may have been created and deleted before a response comes.
        ids = {name: topic.topic_id for name, topic in self._topics.items()}

        def on_response(broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
            assert isinstance(response, StopReplicaResponse)
            self._on_response(broker_id, response, ids)

        return on_response

    def _on_response(self, broker_id: int, response: StopReplicaResponse, ids: dict[str, bytes]) -> None:
        failed = 0
        changed: dict[str, None] = {}
        for (name, index), error in stop_errors(response).items():
            remaining = self._remaining.get(name)
            if remaining is None or self._topics[name].topic_id != ids.get(name):
                continue
            if error not in _IS_GONE:
                failed += 1
                continue
            remaining.get(broker_id, set()).discard(index)
            if not remaining.get(broker_id):
                remaining.pop(broker_id, None)
            changed[name] = None
        if failed:
            logger.warning(
                "replicas of deleted topics cannot be deleted until their broker starts again broker=%d replicas=%d",
                broker_id,
                failed,
            )
        for name in changed:
            if not self._remaining[name]:
                self._on_deleted(name)

    def is_done(self, name: str) -> bool:
        """Return whether no replica of a deleted topic remains."""
        return not self._remaining.get(name)

    def forget(self, name: str) -> None:
        """Forget a topic whose nodes are removed."""
        self._remaining.pop(name, None)
        self._topics.pop(name, None)
