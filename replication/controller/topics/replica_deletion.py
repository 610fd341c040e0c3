"""Deletion of the replicas of deleted topics, in a cluster: every broker with a replica deletes its log.

A topic's nodes stay in the store until all of its replicas are deleted, so that a broker that is not live deletes its
log when it returns, and no topic of that name is created before.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.stop_replica import StopReplicaResponse
from odradek.replication.controller.propagation.broker_queue import ControlResponse
from odradek.replication.controller.propagation.propagation import Propagation, stop_errors
from odradek.replication.controller.propagation.requests import EPOCH_DURING_DELETE, ControlRequest, ReplicaToStop
from odradek.replication.metadata.image import TopicMetadata

logger = logging.getLogger(__name__)

_IS_GONE: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

OnDeleted = Callable[[str], None]
"""Called with the name of a topic of which the last replica was deleted. It submits an event."""


class ReplicaDeletion:
    """The replicas of deleted topics that still exist, by topic and broker."""

    def __init__(self, propagation: Propagation, on_deleted: OnDeleted) -> None:
        self._propagation = propagation
        self._on_deleted = on_deleted
        self._remaining: dict[str, dict[int, set[int]]] = {}
        self._ids: dict[str, bytes] = {}

    def clear(self) -> None:
        """Forget the deletions of an earlier controller epoch."""
        self._remaining.clear()
        self._ids.clear()

    def begin(self, topics: Iterable[TopicMetadata], live: Collection[int]) -> None:
        """Delete the replicas of topics, those of live brokers at once. The deletion must have been published."""
        brokers: set[int] = set()
        for topic in topics:
            remaining: dict[int, set[int]] = {}
            for index, partition in enumerate(topic.partitions):
                for replica in partition.replicas:
                    remaining.setdefault(replica, set()).add(index)
            self._remaining[topic.name] = remaining
            self._ids[topic.name] = topic.topic_id
            brokers.update(remaining)
        self.resume_on([broker_id for broker_id in sorted(brokers) if broker_id in live])

    def resume_on(self, broker_ids: Iterable[int]) -> None:
        """Delete the remaining replicas of live brokers, also of those for which a request is under way."""
        for broker_id in broker_ids:
            replicas = [
                ReplicaToStop(name, index, EPOCH_DURING_DELETE, False)
                for name, remaining in self._remaining.items()
                for index in sorted(remaining.get(broker_id, ()))
            ]
            if replicas:
                # Followers stop before a leader's log is deleted.
                self._propagation.stop_replicas(broker_id, replicas)
                deletions = [replica._replace(delete=True) for replica in replicas]
                self._propagation.stop_replicas(broker_id, deletions, self._make_callback())

    def _make_callback(self) -> Callable[[int, ControlRequest, ControlResponse], None]:
        # A topic of the same name may have been created and deleted before a response comes.
        ids = dict(self._ids)

        def answered(broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
            assert isinstance(response, StopReplicaResponse)
            self._on_answer(broker_id, response, ids)

        return answered

    def _on_answer(self, broker_id: int, response: StopReplicaResponse, ids: dict[str, bytes]) -> None:
        failed = 0
        changed: dict[str, None] = {}
        for (name, index), error in stop_errors(response).items():
            remaining = self._remaining.get(name)
            if remaining is None or self._ids[name] != ids.get(name):
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
        self._ids.pop(name, None)
