"""Deletion of topics in two steps: a mark, which decides, and the removal of what the store has of the topic.

The mark is a node under /admin/delete_topics, as in Kafka's ZooKeeper mode. From its commit on the topic is deleted:
clients get success, brokers drop their replicas. If the store fails in the second step, the rest is removed later, at
the latest by the next controller; a topic of that name can be created as soon as that is done.
"""

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    Operation,
    OperationResult,
    StoreUnavailableError,
    TransactionError,
)

logger = logging.getLogger(__name__)

MAX_OPERATIONS: Final = 2000
"""Of one transaction, where a change can be split."""

FIRST_RETRY_MS: Final = 1_000
LONGEST_RETRY_MS: Final = 60_000

Task = Callable[[], Coroutine[Any, Any, None]]
Pause = Callable[[], Coroutine[Any, Any, None]]
RunLater = Callable[[int, Task], None]
"""Run a task after so many ms."""


class DeletionHost(Protocol):
    """The controller, as the deletion of topics uses it."""

    store: MetadataStore
    image: ClusterMetadata
    is_active: bool
    pause: Pause

    async def write(self, operations: Sequence[Operation]) -> list[OperationResult]: ...


class TopicDeletion:
    """The topics that are marked and not yet removed.

    run_later: schedules the next try; until the server sets it, only `finish` removes what is left
    """

    def __init__(self, controller: DeletionHost) -> None:
        self.run_later: RunLater = lambda delay_ms, task: None
        self._controller = controller
        self._unfinished: dict[str, KafkaError | MetadataStoreError | None] = {}
        self._removing: set[str] = set()
        self._retry_ms = FIRST_RETRY_MS
        self._is_retry_scheduled = False

    async def delete(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Delete topics and publish that; return the errors of those that remain."""
        topics = self._controller.image.topics
        ids = {name: topics[name].topic_id for name in names if name in topics}
        errors: dict[str, KafkaError] = {}
        for first in range(0, len(names), MAX_OPERATIONS):
            errors |= await self._mark_present(names[first : first + MAX_OPERATIONS], ids)
        deleted = [name for name in names if name not in errors]
        self._drop(deleted)
        await self.finish(deleted)
        return errors

    async def _mark_present(self, names: Sequence[str], ids: Mapping[str, bytes]) -> dict[str, KafkaError]:
        """Mark the topics that still have these ids.

        While this waits for the store, another request may delete a topic. A mark set after that would be found beside
        a later topic of that name, whose creation is under way, and take its nodes away.
        """
        await self._controller.store.ready()
        topics = self._controller.image.topics
        present = [name for name in names if name in topics and topics[name].topic_id == ids.get(name)]
        gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors = dict.fromkeys(set(names).difference(present), gone)
        return errors | await self._mark(present) if present else errors

    async def _mark(self, names: Sequence[str]) -> dict[str, KafkaError]:
        try:
            await self._controller.write([Create(znodes.deletion_path(name)) for name in names])
        except TransactionError as error:
            if len(names) == 1:
                # A mark that is there already says the same.
                return {} if isinstance(error.cause, NodeExistsError) else dict.fromkeys(names, as_kafka_error(error))
            errors: dict[str, KafkaError] = {}
            for name in names:
                errors |= await self._mark([name])
            return errors
        except (KafkaError, MetadataStoreError) as error:
            return dict.fromkeys(names, as_kafka_error(error))
        return {}

    async def resume(self) -> None:
        """Finish the deletions that an earlier controller began. Raises MetadataStoreError if they cannot be read."""
        names = await self._controller.store.get_children(znodes.DELETE_TOPICS)
        if names:
            logger.info("finishing the deletion of topics count=%d", len(names))
            self._drop(names)
            await self.finish(names)

    def _drop(self, names: Sequence[str]) -> None:
        """Take deleted topics out of the image and publish it: brokers delete their logs."""
        self._unfinished.update(dict.fromkeys(names))
        for name in names:
            self._controller.image.remove_topic(name)
        if names:
            self._controller.image.publish()

    async def finish(self, names: Iterable[str]) -> None:
        """Remove from the store what is left of deleted topics; what fails is tried again later."""
        for name in [name for name in names if name in self._unfinished]:
            if name in self._removing or name not in self._unfinished:
                # Somebody else finishes it, or has done so while this was waiting.
                continue
            self._removing.add(name)
            try:
                await self._controller.pause()
                await self._remove(name)
            except (KafkaError, MetadataStoreError) as error:
                self._unfinished[name] = error
                logger.warning(
                    "a deleted topic is not yet removed from the metadata store; trying again later topic=%s: %s",
                    name,
                    error,
                )
                if isinstance(error, StoreUnavailableError):
                    break
            finally:
                self._removing.discard(name)
        if not self._controller.is_active:
            # The next controller finds the marks.
            self._unfinished.clear()
        if not self._unfinished:
            self._retry_ms = FIRST_RETRY_MS
        elif not self._is_retry_scheduled:
            self._is_retry_scheduled = True
            self.run_later(self._retry_ms, self._retry)
            self._retry_ms = min(2 * self._retry_ms, LONGEST_RETRY_MS)

    async def _retry(self) -> None:
        self._is_retry_scheduled = False
        await self.finish(list(self._unfinished))

    def obstacle(self, name: str) -> KafkaError | None:
        """Return the error for a new topic whose deleted namesake is still in the store; None if there is none."""
        if name not in self._unfinished:
            return None
        reason = self._unfinished[name] or "their removal is under way"
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Topic '{name}' was deleted, but parts of it are still in the metadata store: {reason}. Try again; their "
            "removal is repeated until it succeeds.",
        )

    async def _remove(self, name: str) -> None:
        """Remove a topic's nodes, the mark last, so that an interrupted removal can begin again."""
        store = self._controller.store
        mark = znodes.deletion_path(name)
        if await store.exists(mark) is None:
            self._unfinished.pop(name, None)
            return
        paths = []
        if await store.exists(znodes.partitions_path(name)) is not None:
            for index in await store.get_children(znodes.partitions_path(name)):
                await self._controller.pause()
                paths += [znodes.state_path(name, int(index)), znodes.partition_path(name, int(index))]
            paths.append(znodes.partitions_path(name))
        paths += [znodes.topic_path(name), znodes.topic_config_path(name), mark]
        deletions = []
        for path in paths:
            await self._controller.pause()
            if await store.exists(path) is not None:
                deletions.append(Delete(path))
        for first in range(0, len(deletions), MAX_OPERATIONS):
            # Without the mark these nodes are those of a later topic of that name.
            await self._controller.write([Check(mark), *deletions[first : first + MAX_OPERATIONS]])
        self._unfinished.pop(name, None)


def as_kafka_error(error: KafkaError | MetadataStoreError) -> KafkaError:
    """Return the answer to a client whose change the store refused."""
    return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
