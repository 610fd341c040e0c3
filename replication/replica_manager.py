"""The replicas on this broker: found by topic name or id, created and retired as the metadata image says."""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from odradek.log.background import Schedule
from odradek.log.filesystem import LogDirFailure, ShortageError
from odradek.log.partition_log import PartitionLog
from odradek.properties import PropertySet
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.broker_configs import BrokerConfigs
from odradek.replication.cluster_metadata import ClusterMetadata, MetadataDelta, TopicMetadata
from odradek.replication.partition import Partition

logger = logging.getLogger(__name__)

_NO_ROOM_RETRY_MS = 5_000


class LogStore(Protocol):
    """What is needed of the log manager."""

    def create_log(
        self, topic: str, partition: int, topic_id: bytes | None, now_ms: int, *, is_new: bool = False
    ) -> PartitionLog: ...

    def delete_log(self, topic: str, partition: int, now_ms: int) -> None: ...

    def mark_stray(self, topic: str, partition: int) -> None: ...

    def fail_directory(self, path: str, error: Exception) -> None: ...

    @property
    def schedule(self) -> Schedule: ...


class ReplicaManager:
    """All replicas of this broker. It follows the image by itself.

    The logs must be open when the image is published for the first time. Wire `directory_failed` to the log manager.

    `request_sync` is for partitions with flush.before.acks, see `Partition`.

    partitions: by (topic name, index); partitions_by_id: by (topic id, index)
    """

    __slots__ = (
        "_broker_id", "_configs", "_image", "_is_loaded", "_logs", "_now_ms", "_request_sync", "_without_room",
        "partitions", "partitions_by_id",
    )  # fmt: skip

    def __init__(
        self,
        broker_id: int,
        image: ClusterMetadata,
        configs: BrokerConfigs,
        logs: LogStore,
        now_ms: Callable[[], int],
        request_sync: Callable[[Partition], None] = lambda partition: None,
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._configs = configs
        self._logs = logs
        self._now_ms = now_ms
        self._request_sync = request_sync
        self._without_room: set[tuple[str, int]] = set()
        self._is_loaded = False
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.partitions_by_id: dict[tuple[bytes, int], Partition] = {}
        image.listeners.append(self._on_metadata)
        configs.listeners.append(self._on_broker_configs)

    def get(self, topic: str, index: int) -> Partition:
        """A replica by topic name.

        Raises KafkaError: E3 if the cluster has no such partition, E6 if this broker has no replica of it.
        """
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise self._missing(self._image.topics.get(topic), index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        """A replica by topic id. Raises KafkaError: E100 for an unknown id, else as `get`."""
        partition = self.partitions_by_id.get((topic_id, index))
        if partition is None:
            raise self._missing(self._image.topics_by_id.get(topic_id), index, ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def _missing(self, topic: TopicMetadata | None, index: int, unknown: ErrorCode) -> KafkaError:
        if topic is None:
            return KafkaError(unknown)
        if not 0 <= index < len(topic.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic.name}-{index} has no replica here")

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self.partitions.values()))

    @property
    def offline(self) -> list[tuple[str, int]]:
        """The partitions whose log lies in a directory that failed."""
        waiting = self._without_room
        return [key for key, partition in self.partitions.items() if partition.log is None and key not in waiting]

    def topic_id(self, topic: str) -> bytes | None:
        """The id of a topic of which the cluster knows."""
        metadata = self._image.topics.get(topic)
        return None if metadata is None else metadata.topic_id

    def _on_metadata(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted_topics:
            self._retire(topic)
        for name in delta.topics:
            metadata = self._image.topics.get(name)
            if metadata is not None:
                self._apply(metadata)
        for name in delta.topic_configs - delta.topics.keys():
            metadata = self._image.topics.get(name)
            if metadata is not None:
                self._configure(metadata)
        self._is_loaded = True

    def _apply(self, topic: TopicMetadata) -> None:
        config = self._configs.topic(topic.name)
        for index, metadata in enumerate(topic.partitions):
            key = (topic.name, index)
            partition = self.partitions.get(key)
            if self._broker_id not in metadata.replicas:
                if partition is not None:
                    self._forget(partition)
                    self._delete_log(topic.name, index)
                continue
            if partition is None:
                partition = Partition(
                    topic.name, topic.topic_id, index, self._broker_id, self._on_failure, self._request_sync
                )
                self.partitions[key] = partition
                self.partitions_by_id[topic.topic_id, index] = partition
                log = self._open_log(topic, index)
            else:
                log = partition.log
            partition.apply(metadata, log)
            partition.configure(config)

    def _open_log(self, topic: TopicMetadata, index: int) -> PartitionLog | None:
        """The partition's log, None if it is offline.

        What the first publication names was there before, so that its log may lie in a directory that is offline.
        """
        is_new = self._is_loaded
        create, now_ms = self._logs.create_log, self._now_ms()
        try:
            try:
                return create(topic.name, index, topic.topic_id, now_ms, is_new=is_new)
            except KafkaError as error:
                if error.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                    raise
                # Found on the disk under a name that no topic had, and not what this topic was made of.
                self._logs.mark_stray(topic.name, index)
                return create(topic.name, index, topic.topic_id, now_ms, is_new=True)
        except ShortageError as error:
            logger.error("no room for a partition topic=%s partition=%d: %s", topic.name, index, error)
            self._without_room.add((topic.name, index))
            self._logs.schedule.once(now_ms + _NO_ROOM_RETRY_MS, lambda: self._make_up(topic, index))
        except KafkaError as error:
            logger.error("partition is offline topic=%s partition=%d: %s", topic.name, index, error)
        return None

    def _make_up(self, topic: TopicMetadata, index: int) -> None:
        """Try again to make a log for which a resource was short."""
        self._without_room.discard((topic.name, index))
        partition = self.partitions.get((topic.name, index))
        current = self._image.topics.get(topic.name)
        if partition is None or current is None or current.topic_id != topic.topic_id or partition.log is not None:
            return
        log = self._open_log(current, index)
        if log is not None:
            partition.apply(current.partitions[index], log)
            # Whoever follows what is led here hears of it as of a new topic.
            self._image.put_topic(current)
            self._image.publish()

    def _delete_log(self, topic: str, index: int) -> None:
        try:
            self._logs.delete_log(topic, index, self._now_ms())
        except (LogDirFailure, ShortageError) as failure:
            logger.error("log not deleted topic=%s partition=%d: %s", topic, index, failure)

    def _configure(self, topic: TopicMetadata) -> None:
        config = self._configs.topic(topic.name)
        for index in range(len(topic.partitions)):
            partition = self.partitions.get((topic.name, index))
            if partition is not None:
                partition.configure(config)

    def _on_broker_configs(self, old: PropertySet, new: PropertySet) -> None:
        for topic in self._image.topics.values():
            self._configure(topic)

    def _retire(self, topic: TopicMetadata) -> None:
        for index, metadata in enumerate(topic.partitions):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and partition.topic_id == topic.topic_id:
                self._forget(partition)
            if self._broker_id in metadata.replicas:
                self._delete_log(topic.name, index)

    def _forget(self, partition: Partition) -> None:
        del self.partitions[partition.topic, partition.index]
        self.partitions_by_id.pop((partition.topic_id, partition.index), None)
        partition.retire()

    def _on_failure(self, failure: LogDirFailure | ShortageError) -> None:
        self._logs.fail_directory(failure.directory, failure)
        if isinstance(failure, LogDirFailure):
            self.directory_failed(failure.directory)

    def directory_failed(self, directory: str, partitions: Collection[tuple[str, int]] = ()) -> None:
        """A log directory failed: its partitions go offline, whichever of them noticed it."""
        failed = [p for p in self.partitions.values() if p.log is not None and p.log.log_directory == directory]
        for partition in failed:
            partition.take_offline()
        if failed:
            logger.error("log directory offline directory=%s partitions=%d", directory, len(failed))
