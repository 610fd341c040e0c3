"""Requests to a Kafka cluster with confluent-kafka: topics, their offsets, and the offsets of groups."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import ConfigResource as _ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]

from odradek.spark_it.definition.settings import PipelineSettings
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.interfaces.kafka_types import Offsets, Partitions
from odradek.spark_it.interfaces.kafka_types import TopicPartition as PartitionId
from odradek.spark_it.kafka.requests import ClusterError, MissingTopicsError

T = TypeVar("T")

ConfigResource: Any = _ConfigResource
NewTopic: Any = _NewTopic
OffsetSpec: Any = _OffsetSpec
_TIMEOUT_S = 15.0
_RETRY_PAUSE_S = 0.1
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Internal topics, which a pattern does not match, as in Spark and in Kafka's Java consumer."""
_RETENTION = "offsets.retention.minutes"
_NONE = -1
_NO_ID = str(Uuid(0, 0))
"""The topic id in responses of brokers without topic ids."""
_NOT_READY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
)
_REJECTIONS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.GROUP_AUTHORIZATION_FAILED)


class _UnknownTopicError(ClusterError):
    """A topic does not exist."""


class KafkaCluster:
    """A Kafka cluster, as `ClusterRequests`. Every method raises ClusterError."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._servers = ",".join(settings.bootstrap_servers)
        self._configuration: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "client.id": settings.name,
            # Failures are reported by the requests; librdkafka's own log lines would repeat them.
            "log_level": 0,
            **settings.passed["admin.override."],
        }
        self._rejection = ""
        try:
            self._admin = AdminClient(self._configuration | {"error_cb": self._note_rejection})
        except KafkaException as error:
            raise ClusterError(f"admin.override: {_describe_error(error)}") from None

    def _note_rejection(self, error: KafkaError) -> None:
        """Note the reason for which brokers reject a client. Its requests fail later, with a timeout."""
        if error.code() in _REJECTIONS:
            self._rejection = error.str()

    def list_partitions(self, source: TopicSource) -> list[PartitionId]:
        """Return the partitions of a source's topics, sorted. Raises MissingTopicsError if a topic of `topics` is
        missing."""
        topics = self._list_topics().topics
        if source.topics_regex is not None:
            pattern = re.compile(source.topics_regex)
            names = [name for name in topics if pattern.fullmatch(name) and name not in _INTERNAL]
        else:
            names = list(source.topics)
            missing = [name for name in names if name not in topics or topics[name].error is not None]
            if missing:
                raise MissingTopicsError(missing)
        return sorted((name, partition) for name in names for partition in topics[name].partitions)

    def _list_topics(self) -> Any:
        return self._call("list topics", lambda: self._admin.list_topics(timeout=_TIMEOUT_S))

    def count_brokers(self) -> int:
        """Return the number of live brokers."""
        return len(self._list_topics().brokers)

    def create_topic(self, topic: str, replication_factor: int) -> None:
        """Create a topic with one partition, unless it exists. Replication factor -1 is the brokers' default."""
        operation = f"create topic {topic}"
        new = NewTopic(topic, 1, replication_factor)
        futures = self._call(operation, lambda: self._admin.create_topics([new], request_timeout=_TIMEOUT_S))
        try:
            futures[topic].result(timeout=_TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._make_error(operation, error) from None
        except TimeoutError:
            raise self._make_timeout_error(operation) from None
        # Brokers receive the new metadata one after the other.
        give_up_at = time.monotonic() + _TIMEOUT_S
        while topic not in self._list_topics().topics:
            if time.monotonic() > give_up_at:
                raise self._make_timeout_error(operation)
            time.sleep(_RETRY_PAUSE_S)

    def fetch_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topic id of each topic that has one; it distinguishes topics of the same name."""
        names = sorted(set(topics))
        if not names:
            return {}
        futures = self._call(
            "look up topics",
            lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S),
        )
        topic_ids_by_name: dict[str, str] = {}
        for name, future in futures.items():
            try:
                topic_ids_by_name[name] = str(self._wait_for_result(f"look up topic {name}", future).topic_id)
            except _UnknownTopicError:
                continue  # deleted since, or not yet in the broker's metadata
        return {name: id_ for name, id_ in topic_ids_by_name.items() if id_ != _NO_ID}

    def fetch_earliest(self, partitions: Partitions) -> Offsets:
        """Return the log start offset of each partition."""
        return self._fetch_offsets({at: OffsetSpec.earliest() for at in partitions})

    def fetch_latest(self, partitions: Partitions) -> Offsets:
        """Return the high watermark of each partition, which Kafka's tools show as the end."""
        return self._fetch_offsets({at: OffsetSpec.latest() for at in partitions})

    def fetch_stable_ends(self, partitions: Partitions) -> Offsets:
        """Return the last stable offset of each partition."""
        return self._fetch_offsets({at: OffsetSpec.latest() for at in partitions}, IsolationLevel.READ_COMMITTED)

    def fetch_offsets_at(self, partitions: Partitions, timestamp_ms: int) -> Offsets:
        """Return the offset of the first record at a time or later; the high watermark if there is none."""
        partition_list = list(partitions)
        offsets = self._fetch_offsets({at: OffsetSpec.for_timestamp(timestamp_ms) for at in partition_list})
        missing = [at for at, offset in offsets.items() if offset == _NONE]
        return offsets | (self.fetch_latest(missing) if missing else {})

    def _fetch_offsets(
        self, specs_by_partition: Mapping[PartitionId, Any], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> Offsets:
        if not specs_by_partition:
            return {}
        specs = {TopicPartition(*at): spec for at, spec in specs_by_partition.items()}
        futures = self._call(
            "look up offsets",
            lambda: self._admin.list_offsets(specs, isolation_level=isolation, request_timeout=_TIMEOUT_S),
        )
        return {
            (at.topic, at.partition): self._wait_for_result(
                f"look up the offset of {at.topic}-{at.partition}", future
            ).offset
            for at, future in futures.items()
        }

    def fetch_committed(self, group: str, partitions: Partitions) -> Offsets:
        """Return the committed offsets of a group; partitions without one are omitted."""
        topic_partitions = [TopicPartition(*at) for at in partitions]
        if not topic_partitions:
            return {}
        operation = f"read the offsets of group {group}"
        committed_partitions = self._call_coordinator(
            group, operation, lambda consumer: consumer.committed(topic_partitions, _TIMEOUT_S)
        )
        return {(at.topic, at.partition): at.offset for at in committed_partitions if at.offset >= 0}

    def commit(self, group: str, offsets: Mapping[PartitionId, int], metadata: str = "") -> None:
        """Commit offsets of a group without members, each with the same metadata."""
        if not offsets:
            return
        operation = f"commit offsets of group {group}"
        topic_partitions = [TopicPartition(*at, offset, metadata) for at, offset in offsets.items()]
        self._call_coordinator(
            group, operation, lambda consumer: consumer.commit(offsets=topic_partitions, asynchronous=False) or []
        )

    def fetch_offsets_retention_ms(self) -> int | None:
        """Return the smallest offsets.retention.minutes of all brokers; None if not every broker reports it."""
        try:
            brokers = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
            # A broker reports only its own configuration, so each gets a request.
            futures = [
                future
                for broker in brokers
                for future in self._admin.describe_configs(
                    [ConfigResource(ConfigResource.Type.BROKER, str(broker))], request_timeout=_TIMEOUT_S
                ).values()
            ]
            configurations = [future.result(timeout=_TIMEOUT_S + 5) for future in futures]
            return min(int(entries[_RETENTION].value) for entries in configurations) * 60_000
        except (KafkaException, KeyError, TypeError, ValueError, TimeoutError):
            return None

    def _call_coordinator(
        self, group: str, operation: str, request: Callable[[Consumer], list[TopicPartition]]
    ) -> list[TopicPartition]:
        """Send a request to a group's coordinator; retry while the coordinator is not ready.

        It uses a consumer that joins no group, because AdminClient aborts the process if the coordinator is not ready
        (librdkafka issue 5040).
        """
        configuration = self._configuration | {
            "group.id": group,
            "enable.auto.commit": False,
            # With read_committed the request would wait for open transactions.
            "isolation.level": "read_uncommitted",
        }
        give_up_at = time.monotonic() + _TIMEOUT_S
        consumer: Consumer | None = None
        try:
            consumer = Consumer(configuration)
            while True:
                try:
                    result = request(consumer)
                    break
                except KafkaException as error:
                    if error.args[0].code() not in _NOT_READY or time.monotonic() > give_up_at:
                        raise
                time.sleep(_RETRY_PAUSE_S)
        except KafkaException as error:
            event = None if consumer is None else consumer.poll(0)
            if event is not None and (rejection := event.error()) is not None:
                self._note_rejection(rejection)
            raise self._make_error(operation, error) from None
        finally:
            if consumer is not None:
                consumer.close()
        for at in result:
            if at.error is not None:
                raise ClusterError(f"cannot {operation}: {at.topic}-{at.partition}: {at.error.str()}")
        return result

    def _call(self, operation: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except KafkaException as error:
            raise self._make_error(operation, error) from None

    def _wait_for_result(self, operation: str, future: "Future[Any]") -> Any:
        try:
            return future.result(timeout=_TIMEOUT_S + 5)
        except KafkaException as error:
            is_unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            raise self._make_error(operation, error, _UnknownTopicError if is_unknown else ClusterError) from None
        except TimeoutError:
            raise self._make_timeout_error(operation) from None

    def _make_timeout_error(self, operation: str) -> ClusterError:
        return ClusterError(f"cannot {operation} at {self._servers}: no response")

    def _make_error(
        self, operation: str, error: KafkaException, kind: type[ClusterError] = ClusterError
    ) -> ClusterError:
        self._admin.poll(0)  # calls `_note_rejection`
        reasons = filter(None, (_describe_error(error), self._rejection))
        return kind(f"cannot {operation} at {self._servers}: {': '.join(reasons)}")


def _describe_error(error: KafkaException) -> str:
    kafka_error = error.args[0] if error.args else error
    return kafka_error.str() if hasattr(kafka_error, "str") else str(kafka_error)
