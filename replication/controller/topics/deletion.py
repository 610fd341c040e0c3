"""Deletion of topics in two steps: a mark, which commits the deletion, and the removal of the topic's nodes.

The mark is a node under /admin/delete_topics, as in Kafka's ZooKeeper mode. From its commit on the topic is deleted:
clients get success, brokers drop their replicas. If the store fails in the second step, the rest is removed later, at
the latest by the next controller; a topic of that name can be created as soon as that is done.

In a cluster the second step waits until all replicas are deleted (`replica_deletion`). A topic that is being reassigned
is marked, and deleted when the reassignment is complete.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import MAX_OPERATIONS, ControllerContext, as_kafka_error, split_operations
from odradek.replication.controller.states.replica_states import is_online, remove_from_isr
from odradek.replication.controller.topics.replica_deletion import ReplicaDeletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, TopicMetadata
from odradek.replication.metadata.loader import load_topics, read_nodes
from odradek.replication.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStoreError,
    NodeExistsError,
    Operation,
    SetData,
    StoreUnavailableError,
    TransactionError,
)
from odradek.replication.pauses import in_slices

logger = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 1_000
LONGEST_RETRY_MS: Final = 60_000
_PARTITIONS_PER_PAUSE: Final = 100

Task = Callable[[], Coroutine[Any, Any, None]]
RunLater = Callable[[int, Task], None]
"""Runs a task after a delay in ms."""


class TopicDeletion:
    """The topics that are marked and not yet removed.

    Except for `obstacle`, methods are called within an event of the controller.

    retry: submits the events that finish pending removals
    run_later: schedules the next attempt; until the server sets it, only `finish` removes nodes
    is_enabled: returns `delete.topic.enable`; if it is false, marks of other brokers are removed
    replicas: deletion of replicas in a cluster
    """

    def __init__(self, context: ControllerContext, retry: Task, replicas: ReplicaDeletion | None = None) -> None:
        self.run_later: RunLater = lambda delay_ms, task: None
        self.is_enabled: Callable[[], bool] = lambda: True
        self.replicas = replicas
        self._blocked: set[str] = set()
        self._context = context
        self._retry = retry
        self._unfinished: dict[str, KafkaError | MetadataStoreError | None] = {}
        self._retry_ms = FIRST_RETRY_MS
        self._is_retry_scheduled = False

    @property
    def unfinished(self) -> list[str]:
        """The names of deleted topics of which the store still has nodes."""
        return list(self._unfinished)

    @staticmethod
    def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
        """Split names into batches that one event deletes."""
        for first in range(0, len(names), MAX_OPERATIONS):
            yield names[first : first + MAX_OPERATIONS]

    async def delete(self, names: Sequence[str], ids: Mapping[str, bytes]) -> dict[str, KafkaError]:
        """Mark the topics that have these ids, and publish their deletion; return the errors of the others."""
        topics = self._context.image.topics
        present = [name for name in names if name in topics and topics[name].topic_id == ids.get(name)]
        missing = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors = dict.fromkeys(set(names).difference(present), missing)
        if present:
            errors |= await self._mark(present)
        marked = [name for name in present if name not in errors]
        if self.replicas is None:
            self._drop(marked)
            return errors
        try:
            blocked = await self._begin(marked)
        except (KafkaError, MetadataStoreError) as error:
            # They are deleted nevertheless: the event of their marks begins the deletion, or the next controller.
            logger.warning("the deletion of marked topics begins later count=%d: %s", len(marked), error)
        else:
            text = "the topic is being reassigned, and is deleted when that is complete"
            errors |= dict.fromkeys(blocked, KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))
        return errors

    async def _mark(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Mark topics, all in one transaction if the store accepts it; return the errors of those refused."""
        try:
            await self._context.write([Create(znodes.deletion_path(name)) for name in names])
        except TransactionError as error:
            if len(names) == 1:
                # The mark of an earlier request has the same effect.
                return {} if isinstance(error.cause, NodeExistsError) else dict.fromkeys(names, as_kafka_error(error))
            errors: dict[str, KafkaError] = {}
            middle = len(names) // 2
            for half in (names[:middle], names[middle:]):
                await self._context.pause()
                errors |= await self._mark(half)
            return errors
        except (KafkaError, MetadataStoreError) as error:
            return dict.fromkeys(names, as_kafka_error(error))
        return {}

    async def resume(self) -> None:
        """Publish the deletions that an earlier controller began. Raises MetadataStoreError if they cannot be read."""
        names = await self._context.store.get_children(znodes.DELETE_TOPICS)
        if names:
            logger.info("finishing the deletion of topics count=%d", len(names))
            if self.replicas is None:
                self._drop(names)
            else:
                await self.follow_marks(names)

    async def restart(self) -> None:
        """Resume as a new controller of a cluster, without the state of an earlier controller epoch."""
        if self.replicas is not None:
            self.replicas.clear()
        self._unfinished.clear()
        self._blocked.clear()
        await self.resume()

    async def resume_replicas(self) -> None:
        """Delete the remaining replicas of all live brokers again, in a cluster."""
        if self.replicas is not None:
            await self.replicas.resume_on(sorted(self._context.image.brokers))

    async def refuse_marks(self) -> bool:
        """Remove the marks of other brokers if the deletion of topics is disabled; return whether there were any."""
        store = self._context.store
        names = [] if self.is_enabled() else await store.get_children(znodes.DELETE_TOPICS)
        refused = [name for name in names if name not in self._unfinished and name not in self._blocked]
        if refused:
            logger.warning("topic deletion is disabled; marks of other brokers are removed count=%d", len(refused))
        for name in refused:
            try:
                await self._context.write([Delete(znodes.deletion_path(name))])
            except TransactionError as error:
                logger.debug("a mark is gone already topic=%s: %s", name, error)
        return bool(refused)

    async def follow_marks(self, names: Iterable[str]) -> None:
        """Begin the deletion of topics that are marked, in a cluster. Raises MetadataStoreError, KafkaError."""
        store, image = self._context.store, self._context.image
        if not self.is_enabled():
            # The watch of the marks submits an event that refuses them.
            return
        new = [name for name in names if name not in self._unfinished and name not in self._blocked]
        # A new controller's image does not have the topics. The node of one that it has may still contain replicas that
        # a reassignment has removed, and that are being stopped.
        missing = [name for name in new if name not in image.topics]
        for topic in await load_topics(store, missing, self._context.pause):
            image.put_topic(topic)
        # The topic's node is removed before its mark, or there never was such a topic.
        self._unfinished.update(dict.fromkeys([name for name in missing if name not in image.topics]))
        await self._begin([name for name in new if name in image.topics])

    async def _begin(self, names: Sequence[str]) -> list[str]:
        """Begin the deletion of marked topics in a cluster; return those whose reassignment must be complete before."""
        assert self.replicas is not None
        image = self._context.image
        blocked = [name for name in names if image.topics[name].is_reassigned]
        self._blocked.update(blocked)
        ready = [image.topics[name] for name in names if name not in self._blocked]
        if ready:
            # Replicas that a reassignment has removed are deleted here, too: it waits no longer for their brokers.
            whole = [_as_assigned(self._context.with_stopping(topic)) for topic in ready]
            await self._write_assignments(one for one, topic in zip(whole, ready, strict=True) if one != topic)
            await self._write_offline(ready)
            self._drop([topic.name for topic in ready])
            await self.replicas.begin(whole, image.brokers)
        return blocked

    async def _write_assignments(self, topics: Iterable[TopicMetadata]) -> None:
        """Write the replicas of topics without those that are being removed.

        Otherwise the next controller would regard the topics as being reassigned, which needs leaders, and their
        leaders would begin with empty logs.
        """
        for topic in topics:
            data = await self._context.encode_topic(topic, {})
            try:
                await self._context.write([SetData(znodes.topic_path(topic.name), data)])
            except TransactionError as error:
                logger.warning("cannot write the replicas of a deleted topic topic=%s: %s", topic.name, error)

    @property
    def has_blocked(self) -> bool:
        """True while a deletion waits for the end of a reassignment."""
        return bool(self._blocked)

    async def resume_unblocked(self) -> None:
        """Begin the deletion of marked topics whose reassignment is complete."""
        names, self._blocked = self._blocked, set()
        if names:
            await self._begin([name for name in sorted(names) if name in self._context.image.topics])

    async def _write_offline(self, topics: Iterable[TopicMetadata]) -> None:
        """Write that partitions have no leader, for brokers and tools that read the store before the nodes are gone."""
        context = self._context
        brokers = context.image.brokers
        operations: list[Operation] = []
        for topic in topics:
            async for index, partition in in_slices(enumerate(topic.partitions), _PARTITIONS_PER_PAUSE, context.pause):
                if partition.leader == NO_LEADER:
                    continue
                live = [replica for replica in partition.replicas if is_online(replica, partition, brokers)]
                # The leader's broker may have failed without another election, because the topic was marked already.
                offline = remove_from_isr(partition, [*live, partition.leader], context.epoch)
                path = znodes.state_path(topic.name, index)
                operations.append(SetData(path, znodes.encode_state(offline), partition.partition_epoch))
        for some in split_operations(operations, context.max_operations):
            try:
                await context.write(some)
            except TransactionError as error:
                # The deletion does not depend on these states.
                logger.warning("cannot write that partitions of deleted topics have no leader: %s", error)

    def _drop(self, names: Sequence[str]) -> None:
        """Remove deleted topics from the image and publish it: brokers delete their logs."""
        self._unfinished.update(dict.fromkeys(names))
        for name in names:
            self._context.image.remove_topic(name)
        if names:
            self._context.image.publish()

    async def finish(self, names: Iterable[str]) -> bool:
        """Remove the remaining nodes of deleted topics from the store.

        Return False if the store is unavailable, so that further attempts would fail, too.
        """
        for name in [name for name in names if name in self._unfinished and self._is_removable(name)]:
            try:
                await self._context.pause()
                await self._remove(name)
            except (KafkaError, MetadataStoreError) as error:
                self._unfinished[name] = error
                logger.warning(
                    "cannot remove a deleted topic from the metadata store; the removal is retried topic=%s: %s",
                    name,
                    error,
                )
                if isinstance(error, StoreUnavailableError):
                    self._schedule_retry()
                    return False
        self._schedule_retry()
        return True

    def _is_removable(self, name: str) -> bool:
        return self.replicas is None or self.replicas.is_done(name)

    def _schedule_retry(self) -> None:
        """Schedule the next attempt if a removal has failed. A broker that is not the controller forgets the deletions.

        The next controller finds their marks.
        """
        if not self._context.is_active:
            self._unfinished.clear()
        if not self._unfinished:
            self._retry_ms = FIRST_RETRY_MS
        elif not self._is_retry_scheduled and any(self._unfinished.values()):
            self._is_retry_scheduled = True
            self.run_later(self._retry_ms, self._run_retry)
            self._retry_ms = min(2 * self._retry_ms, LONGEST_RETRY_MS)

    async def _run_retry(self) -> None:
        self._is_retry_scheduled = False
        await self._retry()

    def obstacle(self, name: str) -> KafkaError | None:
        """Return the error for a new topic if the store has nodes of a deleted one of that name; otherwise None."""
        if name not in self._unfinished:
            return None
        if self.replicas is not None:
            return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
        reason = self._unfinished[name] or "their removal is in progress"
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Topic '{name}' was deleted, but parts of it are still in the metadata store: {reason}. Try again later; "
            "their removal is retried until it succeeds.",
        )

    async def _remove(self, name: str) -> None:
        """Remove a topic's nodes, the mark last, so that an interrupted removal can begin again."""
        store = self._context.store
        mark = znodes.deletion_path(name)
        if await store.exists(mark) is None:
            self._end(name)
            return
        paths = []
        if await store.exists(znodes.partitions_path(name)) is not None:
            for index in await store.get_children(znodes.partitions_path(name)):
                await self._context.pause()
                paths += [znodes.state_path(name, int(index)), znodes.partition_path(name, int(index))]
            paths.append(znodes.partitions_path(name))
        paths += [znodes.topic_path(name), znodes.topic_config_path(name), mark]
        existing = await read_nodes(store, dict.fromkeys(paths, lambda node: None), self._context.pause)
        deletions: list[Operation] = []
        async for path in in_slices(existing, _PARTITIONS_PER_PAUSE, self._context.pause):
            deletions.append(Delete(path))
        for some in split_operations(deletions, self._context.max_operations):
            # Without the mark these nodes are those of a later topic of that name.
            await self._context.write([Check(mark), *some])
        self._end(name)

    def _end(self, name: str) -> None:
        self._unfinished.pop(name, None)
        if self.replicas is not None:
            self.replicas.forget(name)


def _as_assigned(topic: TopicMetadata) -> TopicMetadata:
    """Return a topic whose replicas are all assigned to it, also those that are being removed."""
    return topic._replace(partitions=tuple([one._replace(adding=(), removing=()) for one in topic.partitions]))
