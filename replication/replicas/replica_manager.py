"""The replicas on this broker: lookup by topic name or id, creation and retirement as the metadata image requires.

A topic may have thousands of partitions, each with files to create or to rename, so the image is followed in steps. A
request for a partition that is in the image, but not yet created here, gets NOT_LEADER_OR_FOLLOWER, after which clients
retry.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from odradek.log.background.tasks import SHORTAGE_RETRY_MS, Schedule
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.log.storage.found_directories import format_names
from odradek.properties import PropertySet
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import (
    NO_LEADER,
    ClusterMetadata,
    MetadataDelta,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.metadata.store import Waiter
from odradek.replication.replicas.leader_state import Replication
from odradek.replication.replicas.partition import Partition
from odradek.replication.replicas.topic_traffic import Traffic

logger = logging.getLogger(__name__)

_UNCHANGED_PER_STEP: Final = 500

_LOGS_PER_THREAD_CALL: Final = 64
"""Logs whose files one call of a thread makes, in 10 to 100 ms."""


class LogStore(Protocol):
    """The part of the log manager that is used here."""

    def get(self, topic: str, partition: int) -> PartitionLog | None: ...

    def prepare_creation(self, topic: str, partition: int, done: Callable[[], None]) -> bool: ...

    def make_files(
        self, topic: str, partitions: Iterable[int], topic_id: bytes, done: Callable[[], None]
    ) -> bool: ...

    def discard_files(self) -> None: ...

    def create_log(
        self, topic: str, partition: int, topic_id: bytes | None, now_ms: int, *, is_new: bool = False
    ) -> PartitionLog: ...

    def delete_log(self, topic: str, partition: int) -> None: ...

    def mark_stray(self, topic: str, partition: int) -> None: ...

    def fail_directory(self, path: str, error: Exception) -> None: ...

    def forget_lost_logs(self) -> None: ...

    @property
    def schedule(self) -> Schedule: ...


Steps = Generator[None, None, None]
"""Steps, each of which takes a few tenths of a ms."""

Work = Generator[Waiter | None, None, None]
"""Steps like `Steps`. One that yields a waiter is followed by the next when the waiter has ended."""

RunSteps = Callable[[Work], Awaitable[None]]
"""Starts work. The result completes after its last step."""


class FetchProgress(Protocol):
    """A partition that is fetched from its leader.

    lag: number of offsets up to the leader's high watermark at the last fetch; None before
    """

    leader: int
    lag: int | None

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def is_parked(self) -> bool:
        """True while fetching cannot succeed before the next leader epoch."""


class PartitionFetchers(Protocol):
    """Fetches records from the leaders of partitions."""

    def follow(self, partition: Partition) -> None:
        """Fetch from the partition's leader, beginning again if its leader epoch has changed."""

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching, because this broker leads the partition, or has no replica of it any more."""

    def list_fetched(self) -> Sequence[FetchProgress]:
        """Return the partitions that are fetched, in any state."""


class NoFetchers:
    """For a broker that is not in a cluster."""

    def follow(self, partition: Partition) -> None:
        """Do nothing: without other brokers there is no leader."""

    def unfollow(self, partition: Partition) -> None:
        """Do nothing."""

    def list_fetched(self) -> Sequence[FetchProgress]:
        """Return nothing."""
        return ()


class _Done:
    """A waiter that is complete."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield

    def callback(self, result: None, /) -> None:
        """Do nothing."""


def run_at_once(work: Work) -> Awaitable[None]:
    """Run all steps before returning, without waiting. For a broker without clients: while it starts, and in tests."""
    for _ in work:
        pass
    return _Done()


class ReplicaManager:
    """All replicas of this broker. It applies each publication of the image.

    The logs must be open when the image is published for the first time. The log manager calls `directory_failed` and
    `log_replaced`.

    `request_sync` and `cluster` are for the partitions, see `Partition`. `metadata` is the metadata cache. In
    a cluster `image` is another one, which contains only what LeaderAndIsr assigned to this broker.

    partitions: by (topic name, index); partitions_by_id: by (topic id, index)
    deleted_topics: those whose replicas are not all retired yet; while there are any, a request must not use a
        partition from `partitions`, `partitions_by_id` or its own memory for which `is_deleted` returns true
    run_steps, make_waiter: run the steps that follow the image; the server replaces them before clients can connect
    fetchers: fetch from the leaders of the partitions that this broker follows
    listeners: called with a topic's name when all its replicas here have the roles that the image gives them
    on_offline: called when a replica goes offline whose log could not be created before: the controller counts it as
        online
    lost_logs: topic ids of partitions that had a log in a directory that was replaced by an empty one (`_has_lost_log`)
    """

    __slots__ = (
        "_applied", "_broker_id", "_cluster", "_configs", "_finished", "_image", "_is_loaded", "_is_working",
        "_kept_topics", "_last_made", "_logs", "_make_next_from", "_making", "_metadata", "_missing_logs", "_new",
        "_now_ms", "_queued", "_request_sync", "_tasks", "_uncreated", "_undeleted", "_waiter", "_with_files",
        "deleted_topics", "fetchers", "listeners", "lost_logs", "make_waiter", "on_offline", "partitions",
        "partitions_by_id", "run_steps", "traffic",
    )  # fmt: skip

    def __init__(
        self,
        broker_id: int,
        image: ClusterMetadata,
        configs: BrokerConfigs,
        logs: LogStore,
        now_ms: Callable[[], int],
        request_sync: Callable[[Partition], None] = lambda partition: None,
        metadata: ClusterMetadata | None = None,
        cluster: Replication | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._metadata = image if metadata is None else metadata
        self._configs = configs
        self._logs = logs
        self._now_ms = now_ms
        self._request_sync = request_sync
        self._cluster = cluster
        self.traffic = Traffic()
        self._uncreated: set[tuple[str, int]] = set()
        # Logs without a replica whose deletion is retried. No other log gets such a name before it is deleted.
        self._undeleted: set[tuple[str, int]] = set()
        self._is_loaded = False
        # Partitions of the first publication whose logs had to be created.
        self._missing_logs: list[str] = []
        # Pending tasks, in the order of the publications.
        self._tasks: deque[Steps] = deque()
        self._is_working = False
        self._queued = self._finished = 0
        self._applied: dict[str, tuple[TopicMetadata, LogConfig]] = {}
        # Partitions of the task in progress whose files a thread makes, has made, or could not make; those of the last
        # call of a thread; its end, unless it has ended; and the index of the next partition.
        self._with_files: set[tuple[str, int]] = set()
        self._last_made: frozenset[tuple[str, int]] = frozenset()
        self._making: Waiter | None = None
        self._make_next_from = 0
        self.run_steps: RunSteps = run_at_once
        self.make_waiter: Callable[[], Waiter] = _Done
        # Ends when the step that follows the image may continue.
        self._waiter: Waiter | None = None
        self.fetchers: PartitionFetchers = NoFetchers()
        self.listeners: list[Callable[[str], None]] = []
        self.on_offline: Callable[[], None] = lambda: None
        self.lost_logs: dict[tuple[str, int], bytes] = {}
        self.deleted_topics: deque[TopicMetadata] = deque()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.partitions_by_id: dict[tuple[bytes, int], Partition] = {}
        # Deleted topics whose logs are not deleted, see `keep_logs`.
        self._kept_topics: set[bytes] = set()
        # Roles of the last publication, see `expect_new`.
        self._new: set[tuple[str, int]] = set()
        image.listeners.append(self._on_metadata)
        if self._metadata is not image:
            self._metadata.listeners.append(self._on_topic_configs)
        configs.listeners.append(self._on_broker_configs)

    def get(self, topic: str, index: int) -> Partition:
        """Return a replica by topic name.

        Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION, or NOT_LEADER_OR_FOLLOWER if this broker has no replica of it.
        """
        partition = self.partitions.get((topic, index))
        if partition is None or (self.deleted_topics and self.is_deleted(partition)):
            raise self._missing_error(self._metadata.topics.get(topic), index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Return a replica by topic id. Raises KafkaError UNKNOWN_TOPIC_ID, otherwise as `get`."""
        partition = self.partitions_by_id.get((topic_id, index))
        if partition is None or (self.deleted_topics and self.is_deleted(partition)):
            raise self._missing_error(self._metadata.topics_by_id.get(topic_id), index, ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def is_deleted(self, partition: Partition) -> bool:
        """Return whether the topic is deleted, although the replica is not retired yet."""
        topic = self._image.topics.get(partition.topic)
        return topic is None or topic.topic_id != partition.topic_id

    def _missing_error(self, topic: TopicMetadata | None, index: int, unknown: ErrorCode) -> KafkaError:
        if topic is None:
            return KafkaError(unknown)
        if not 0 <= index < len(topic.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker has no replica of {topic.name}-{index}")

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self.partitions.values()))

    @property
    def offline(self) -> list[tuple[str, int]]:
        """Return the partitions whose log is in a directory that failed."""
        waiting = self._uncreated
        return [key for key, partition in self.partitions.items() if partition.log is None and key not in waiting]

    def is_offline(self, topic: str, index: int) -> bool:
        """Return whether this broker has a replica whose log is in a directory that failed."""
        partition = self.partitions.get((topic, index))
        return partition is not None and partition.log is None and (topic, index) not in self._uncreated

    def list_led(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that this broker leads and whose log is online."""
        metadata = self._image.topics.get(topic)
        count = 0 if metadata is None else len(metadata.partitions)
        found = [partition for index in range(count) if (partition := self.partitions.get((topic, index))) is not None]
        return [partition for partition in found if partition.is_leader and partition.log is not None]

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic; None if it does not exist."""
        metadata = self._metadata.topics.get(topic)
        return None if metadata is None else metadata.topic_id

    # Following the image

    def expect_new(self, topic: str, index: int) -> None:
        """Create the log of this partition, with the next publication, also if it could be in an offline directory."""
        self._new.add((topic, index))

    def delete_unassigned(self, topic: str, index: int) -> None:
        """Delete the log of a partition that no publication has assigned to this broker, if there is one."""
        if (topic, index) not in self.partitions:
            self._delete_log(topic, index)

    def keep_logs(self, topic_id: bytes) -> None:
        """Retire the replicas of a topic that is about to be deleted from the image, without deleting their logs.

        The log of a later topic of the same name takes its place as a stray one.
        """
        self._kept_topics.add(topic_id)

    def stop(self) -> None:
        """Stop following the image, because the logs are about to be closed."""
        self.run_steps = lambda work: _Done()

    async def applied(self) -> None:
        """Return when this broker has applied all earlier publications."""
        last = self._queued
        if self._finished < last:
            await self.run_steps(self._until_finished(last))

    def _until_finished(self, last: int) -> Work:
        while self._finished < last:
            yield self._waiter

    def _on_metadata(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted_topics:
            self.deleted_topics.append(topic)
            self._tasks.append(self._delete_logs(topic))
        topics = [self._image.topics[name] for name in delta.topics]
        self._tasks += [self._apply(topic.name, topic.topic_id) for topic in topics]
        self._tasks += [self._configure(name) for name in sorted(delta.topic_configs - delta.topics.keys())]
        self._begin()
        if not self._is_loaded:
            self._report_missing_logs()
        self._is_loaded = True

    def _report_missing_logs(self) -> None:
        """Log which stored partitions had no log: their records may be missing.

        The first publication is applied in one step, before clients can connect.
        """
        if self._missing_logs:
            logger.warning(
                "partitions of the metadata store had no log and begin empty count=%d: %s; if a directory of log.dirs "
                "is not mounted, stop the broker, mount it and start again",
                len(self._missing_logs),
                format_names(self._missing_logs),
            )
            self._missing_logs.clear()

    def _on_topic_configs(self, delta: MetadataDelta) -> None:
        self._tasks += [self._configure(name) for name in sorted(delta.topic_configs)]
        self._begin()

    def _on_broker_configs(self, old: PropertySet, new: PropertySet) -> None:
        self._tasks += [self._configure(name) for name in self._image.topics]
        self._begin()

    def _begin(self) -> None:
        self._queued = self._finished + len(self._tasks)
        if self._tasks and not self._is_working:
            self._is_working = True
            self.run_steps(self._work())

    def _work(self) -> Work:
        """Do the tasks in their order. Deleted topics are retired first: no more records may be written to them."""
        while self._tasks:
            task = self._tasks[0]
            is_over = False
            while not is_over:
                while self.deleted_topics:
                    retirement = self._retire(self.deleted_topics[0])
                    while not self._do_step(retirement):
                        yield None
                    self.deleted_topics.popleft()
                is_over = self._do_step(task)
                yield self._waiter
                self._waiter = None
            if self._with_files:
                if self._making is not None:
                    yield self._making
                self._end_creations()
            self._tasks.popleft()
            self._finished += 1
        self._is_working = False

    def _end_creations(self) -> None:
        """Discard the files of logs that were not created, because the topic was deleted or assigned otherwise."""
        self._with_files = set()
        self._last_made = frozenset()
        self._logs.discard_files()

    def _do_step(self, task: Steps) -> bool:
        """Do one step of a task; return whether it was the last one. One that fails ends its own task only."""
        try:
            next(task)
        except StopIteration:
            return True
        except Exception:
            logger.exception("a metadata change was not applied completely on this broker; please report it")
            return True
        return False

    def _apply(self, name: str, topic_id: bytes) -> Steps:
        """Take the roles that the image gives this broker in a topic, partition by partition."""
        topic = self._find_topic(name, topic_id)
        if topic is None:
            # A newer topic of that name is applied when the logs of this one are deleted.
            return
        config, begun_with = self._configs.topic(name), topic
        known, known_config = self._applied.pop(name, (None, None))
        same = known.partitions if known is not None and known_config is config else ()
        index = 0
        while index < len(topic.partitions):
            metadata = topic.partitions[index]
            if index >= len(same) or same[index] is not metadata:
                for must_wait in (self._awaits_checkpoints, self._awaits_files):
                    if must_wait(topic, index):
                        yield
                        topic = self._find_topic(name, topic_id)
                        if topic is None:
                            return
                self._apply_one(topic, index, topic.partitions[index], config)
                yield
            elif index % _UNCHANGED_PER_STEP == 0:
                yield
            index += 1
            # The topic may have been changed, or deleted, since the last step.
            topic = self._find_topic(name, topic_id)
            if topic is None:
                return
        if topic is begun_with:
            # Else earlier partitions may have changed since their steps; the task of that publication follows.
            self._applied[name] = topic, config
        self._notify(name)

    def _find_topic(self, name: str, topic_id: bytes) -> TopicMetadata | None:
        """Return a topic of the image; None if it was deleted."""
        topic = self._image.topics.get(name)
        return topic if topic is not None and topic.topic_id == topic_id else None

    def _awaits_checkpoints(self, topic: TopicMetadata, index: int) -> bool:
        """Return whether the next step has to wait until checkpoints have no entry of an earlier log of this name."""
        if not self._is_new_here(topic, index):
            return False
        waiter = self.make_waiter()
        if not self._logs.prepare_creation(topic.name, index, lambda: waiter.callback(None)):
            return False
        self._waiter = waiter
        return True

    def _awaits_files(self, topic: TopicMetadata, index: int) -> bool:
        """Return whether the next step has to wait for a thread, which makes the files of this log and of others.

        While the logs of one call of a thread are created, the thread makes the files of the next call.
        """
        key = (topic.name, index)
        if self.make_waiter is _Done or not self._is_new_here(topic, index):
            return False
        if key not in self._with_files:
            self._make_files(topic, index)
        if key in self._last_made:
            if self._making is not None:
                self._waiter = self._making
                return True
            self._make_files(topic, self._make_next_from)
        return False

    def _make_files(self, topic: TopicMetadata, first: int) -> None:
        """Have a thread make the files of new logs from the partition `first` on, unless one does already."""
        if self._making is not None:
            return
        following = range(first, len(topic.partitions))
        new = list(islice((index for index in following if self._is_new_here(topic, index)), _LOGS_PER_THREAD_CALL))
        self._make_next_from = new[-1] + 1 if new else len(topic.partitions)
        self._last_made = frozenset([(topic.name, index) for index in new])
        self._with_files |= self._last_made
        waiter = self._making = self.make_waiter()

        def done() -> None:
            self._making = None
            waiter.callback(None)

        if not self._logs.make_files(topic.name, new, topic.topic_id, done):
            self._making = None

    def _is_new_here(self, topic: TopicMetadata, index: int) -> bool:
        """Return whether this broker has a replica of the partition, and is about to create it."""
        key = (topic.name, index)
        return (
            key not in self.partitions
            and self._broker_id in topic.partitions[index].replicas
            and key not in self._undeleted
            and not self._has_lost_log(topic, index)
        )

    def _apply_one(self, topic: TopicMetadata, index: int, metadata: PartitionMetadata, config: LogConfig) -> None:
        key = (topic.name, index)
        partition = self.partitions.get(key)
        if self._broker_id not in metadata.replicas:
            if partition is not None:
                self._remove(partition)
                self._delete_log(topic.name, index)
            return
        if partition is None:
            log = self._open_log(topic, index)
            partition = Partition(
                topic.name,
                topic.topic_id,
                index,
                self._broker_id,
                self._on_failure,
                self._request_sync,
                self._cluster,
                self.traffic.begin(topic.name),
            )
            self.partitions[key] = partition
            self.partitions_by_id[topic.topic_id, index] = partition
        else:
            log = partition.log
            if log is None and key in self.lost_logs and not self._has_lost_log(topic, index):
                log = self._open_log(topic, index)
        partition.apply(metadata, log)
        partition.configure(config)
        self._follow_leader(partition)

    def _follow_leader(self, partition: Partition) -> None:
        if partition.is_leader or partition.leader == NO_LEADER or partition.log is None:
            self.fetchers.unfollow(partition)
        else:
            self.fetchers.follow(partition)

    def _notify(self, name: str) -> None:
        for listener in self.listeners:
            listener(name)

    def _has_lost_log(self, topic: TopicMetadata, index: int) -> bool:
        """Return whether an empty log must not be created for a partition, because this replica is in sync.

        Its log was lost with a disk. As the leader it would have the others truncate their logs to nothing; as a member
        of the ISR it could become the leader. The controller counts it as offline: it removes it from the ISR, and
        elects another member if there is one. A topic from before Kafka 2.8 gets its id later.
        """
        key, partition = (topic.name, index), topic.partitions[index]
        return (
            self.lost_logs.get(key) in (topic.topic_id, ZERO_UUID)
            and key not in self._new
            and self._broker_id in partition.isr
            and len(partition.replicas) > 1
        )

    def _forget_lost_log(self, key: tuple[str, int]) -> None:
        """Regard a log as present, or as not needed; with the last one the directories have lost nothing any more."""
        if self.lost_logs.pop(key, None) is not None and not self.lost_logs:
            self._logs.forget_lost_logs()

    def _open_log(self, topic: TopicMetadata, index: int) -> PartitionLog | None:
        """Open or create the partition's log. Return None if it is offline or lost, or a resource is short.

        A partition of the first publication existed before this start, so its log may be in an offline directory. In a
        cluster the controller decides which partitions are new.
        """
        key = (topic.name, index)
        if self._has_lost_log(topic, index):
            logger.error(
                "the log of an in-sync replica is missing in a new log directory, and no empty one is created: others "
                "would be truncated; restart this broker when another replica leads, or elect one "
                "(docs/cluster.md, Replacement of a broker) topic=%s partition=%d",
                topic.name,
                index,
            )
            return None
        is_new = self._is_loaded if self._metadata is self._image else key in self._new
        create, now_ms = self._logs.create_log, self._now_ms()
        try:
            if key in self._undeleted:
                self._logs.delete_log(topic.name, index)
                self._undeleted.discard(key)
            try:
                is_missing = not is_new and self._logs.get(topic.name, index) is None
                log = create(topic.name, index, topic.topic_id, now_ms, is_new=is_new)
                if is_missing:
                    self._missing_logs.append(f"{topic.name}-{index}")
                self._new.discard(key)
                self._forget_lost_log(key)
                return log
            except KafkaError as error:
                if error.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                    raise
                # The log on the disk has this name but another topic id: it belongs to no topic of the image.
                self._logs.mark_stray(topic.name, index)
                log = create(topic.name, index, topic.topic_id, now_ms, is_new=True)
                self._new.discard(key)
                return log
        except ShortageError as error:
            logger.error("cannot create a log; retrying later topic=%s partition=%d: %s", topic.name, index, error)
            self._uncreated.add((topic.name, index))
            self._logs.schedule.once(SHORTAGE_RETRY_MS, lambda: self._retry_creation(topic, index))
        except KafkaError as error:
            logger.error("partition is offline topic=%s partition=%d: %s", topic.name, index, error)
        return None

    def _retry_creation(self, topic: TopicMetadata, index: int) -> None:
        """Retry the creation of a log for which a resource was short, unless the topic was deleted meanwhile."""
        partition = self.partitions.get((topic.name, index))
        current = self._image.topics.get(topic.name)
        if partition is None or current is None or not partition.topic_id == current.topic_id == topic.topic_id:
            return
        self._uncreated.discard((topic.name, index))
        if partition.log is not None:
            return
        log = self._open_log(current, index)
        if log is not None:
            partition.apply(current.partitions[index], log)
            self._follow_leader(partition)
            self._notify(topic.name)
        elif self.is_offline(topic.name, index):
            self.on_offline()

    def _delete_log(self, topic: str, index: int) -> None:
        """Delete a log, later if a resource is short. One in a directory that fails is a stray for the next start."""
        self._undeleted.discard((topic, index))
        self._forget_lost_log((topic, index))
        try:
            self._logs.delete_log(topic, index)
        except ShortageError as error:
            logger.error("cannot delete a log; retrying later topic=%s partition=%d: %s", topic, index, error)
            self._undeleted.add((topic, index))
            self._logs.schedule.once(SHORTAGE_RETRY_MS, lambda: self._retry_deletion(topic, index))
        except LogDirFailure as failure:
            logger.error("log not deleted topic=%s partition=%d: %s", topic, index, failure)

    def _retry_deletion(self, topic: str, index: int) -> None:
        """Retry a deletion for which a resource was short, unless the log was deleted to create another one."""
        if (topic, index) in self._undeleted:
            self._delete_log(topic, index)

    def _configure(self, name: str) -> Steps:
        """Apply a topic's changed properties to its partitions."""
        topic, index = self._image.topics.get(name), 0
        while topic is not None and index < len(topic.partitions):
            partition = self.partitions.get((name, index))
            if partition is not None:
                partition.configure(self._configs.topic(name))
                yield
            index += 1
            topic = self._image.topics.get(name)

    def _retire(self, topic: TopicMetadata) -> Steps:
        """Stop reads and writes of a deleted topic."""
        self._applied.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and partition.topic_id == topic.topic_id:
                self._remove(partition)
                yield
        self._notify(topic.name)

    def _delete_logs(self, topic: TopicMetadata) -> Steps:
        if topic.topic_id in self._kept_topics:
            self._kept_topics.discard(topic.topic_id)
            return
        for index, metadata in enumerate(topic.partitions):
            if self._broker_id in metadata.replicas:
                self._delete_log(topic.name, index)
                yield

    def _remove(self, partition: Partition) -> None:
        del self.partitions[partition.topic, partition.index]
        self.traffic.end(partition.topic)
        self.partitions_by_id.pop((partition.topic_id, partition.index), None)
        self._new.discard((partition.topic, partition.index))
        self._uncreated.discard((partition.topic, partition.index))
        self.fetchers.unfollow(partition)
        partition.retire()

    def _on_failure(self, failure: LogDirFailure | ShortageError) -> None:
        self._logs.fail_directory(failure.directory, failure)
        if isinstance(failure, LogDirFailure):
            self.directory_failed(failure.directory)

    def log_replaced(self, log: PartitionLog) -> None:
        """Use a log that was moved from another log directory."""
        partition = self.partitions.get((log.topic, log.partition))
        if partition is not None:
            partition.replace_log(log)

    def directory_failed(self, directory: str, partitions: Collection[tuple[str, int]] = ()) -> None:
        """Take all partitions of a failed log directory offline.

        Watchers are woken after all partitions are offline: one that reads another partition would fail again.
        """
        failed = [p for p in self.partitions.values() if p.log is not None and p.log.log_directory == directory]
        for partition in failed:
            self.fetchers.unfollow(partition)
            partition.release_log()
        for partition in failed:
            partition.wake_watchers()
        if failed:
            logger.error("log directory offline directory=%s partitions=%d", directory, len(failed))
