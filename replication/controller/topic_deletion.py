"""Deletion of topics in two steps: a mark, which commits the deletion, and the removal of the topic's nodes.

The mark is a node under /admin/delete_topics, as in Kafka's ZooKeeper mode. From its commit on the topic is deleted:
clients get success, brokers drop their replicas. If the store fails in the second step, the rest is removed later, at
the latest by the next controller; a topic of that name can be created as soon as that is done.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import MAX_OPERATIONS, ControllerContext, as_kafka_error
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStoreError,
    NodeExistsError,
    StoreUnavailableError,
    TransactionError,
)

logger = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 1_000
LONGEST_RETRY_MS: Final = 60_000

Task = Callable[[], Coroutine[Any, Any, None]]
RunLater = Callable[[int, Task], None]
"""Runs a task after a delay in ms."""


class TopicDeletion:
    """The topics that are marked and not yet removed.

    Except for `obstacle` and `schedule_retry`, methods are called within an event of the controller. `retry` submits
    the events that finish pending removals.

    run_later: schedules the next attempt; until the server sets it, only `finish` removes nodes
    """

    def __init__(self, context: ControllerContext, retry: Task) -> None:
        self.run_later: RunLater = lambda delay_ms, task: None
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
        self._drop([name for name in present if name not in errors])
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
            self._drop(names)

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
        for name in [name for name in names if name in self._unfinished]:
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
                    self.schedule_retry()
                    return False
        self.schedule_retry()
        return True

    def schedule_retry(self) -> None:
        """Schedule the next attempt, if one is needed."""
        if not self._context.is_active:
            # The next controller finds the marks.
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
            self._unfinished.pop(name, None)
            return
        paths = []
        if await store.exists(znodes.partitions_path(name)) is not None:
            for index in await store.get_children(znodes.partitions_path(name)):
                await self._context.pause()
                paths += [znodes.state_path(name, int(index)), znodes.partition_path(name, int(index))]
            paths.append(znodes.partitions_path(name))
        paths += [znodes.topic_path(name), znodes.topic_config_path(name), mark]
        deletions = []
        for path in paths:
            await self._context.pause()
            if await store.exists(path) is not None:
                deletions.append(Delete(path))
        for first in range(0, len(deletions), MAX_OPERATIONS):
            # Without the mark these nodes are those of a later topic of that name.
            await self._context.write([Check(mark), *deletions[first : first + MAX_OPERATIONS]])
        self._unfinished.pop(name, None)
