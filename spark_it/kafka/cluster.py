"""Requests to a Kafka cluster with confluent-kafka: topics, their offsets, the offsets of groups."""

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
from odradek.spark_it.interfaces.kafka_types import TopicPartition as At
from odradek.spark_it.kafka.group import ClusterError, MissingTopicsError

T = TypeVar("T")

ConfigResource: Any = _ConfigResource
NewTopic: Any = _NewTopic
OffsetSpec: Any = _OffsetSpec
_TIMEOUT_S = 15.0
_BETWEEN_TRIES_S = 0.1
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""What a pattern does not match, for Kafka's own clients, which Spark asks, do not list it."""
_RETENTION = "offsets.retention.minutes"
_NONE = -1
_NO_ID = str(Uuid(0, 0))
"""Of brokers that have none."""
_NOT_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
)


class _UnknownTopicError(ClusterError):
    """A topic that does not exist."""


class Cluster:
    """A Kafka cluster, as a `Group`. Every method raises ClusterError."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._servers = ",".join(settings.bootstrap_servers)
        self._configuration: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "client.id": settings.name,
            # What goes wrong is said by what is asked, not in a log of the library's own.
            "log_level": 0,
            **settings.passed["admin.override."],
        }
        try:
            self._admin = AdminClient(self._configuration)
        except KafkaException as error:
            raise ClusterError(f"admin.override: {_reason(error)}") from None

    def partitions(self, source: TopicSource) -> list[At]:
        """The partitions of a source's topics, in order. Raises MissingTopicsError for those that are named."""
        topics = self._listed().topics
        if source.topics_regex is not None:
            pattern = re.compile(source.topics_regex)
            names = [name for name in topics if pattern.fullmatch(name) and name not in _INTERNAL]
        else:
            names = list(source.topics)
            missing = [name for name in names if name not in topics or topics[name].error is not None]
            if missing:
                raise MissingTopicsError(missing)
        return sorted((name, partition) for name in names for partition in topics[name].partitions)

    def _listed(self) -> Any:
        return self._asked("list topics", lambda: self._admin.list_topics(timeout=_TIMEOUT_S))

    def broker_count(self) -> int:
        """The brokers that are there."""
        return len(self._listed().brokers)

    def create_topic(self, topic: str, replication_factor: int) -> None:
        """Creates a topic of one partition; nothing happens if it is there by now. -1 is the brokers' own factor."""
        doing = f"create topic {topic}"
        new = NewTopic(topic, 1, replication_factor)
        futures = self._asked(doing, lambda: self._admin.create_topics([new], request_timeout=_TIMEOUT_S))
        try:
            futures[topic].result(timeout=_TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._error(doing, error) from None
        except TimeoutError:
            raise self._silent(doing) from None
        # Brokers hear of it one after the other.
        give_up_at = time.monotonic() + _TIMEOUT_S
        while topic not in self._listed().topics:
            if time.monotonic() > give_up_at:
                raise self._silent(doing)
            time.sleep(_BETWEEN_TRIES_S)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What tells topics from others of their names, before them or elsewhere; nothing of a topic without."""
        names = sorted(set(topics))
        if not names:
            return {}
        futures = self._asked(
            "look up topics",
            lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S),
        )
        found: dict[str, str] = {}
        for name, future in futures.items():
            try:
                found[name] = str(self._result(f"look up topic {name}", future).topic_id)
            except _UnknownTopicError:
                continue  # gone by now, or the broker has yet to hear of it
        return {name: id_ for name, id_ in found.items() if id_ != _NO_ID}

    def earliest(self, partitions: Partitions) -> Offsets:
        """The first offset of each partition."""
        return self._offsets({at: OffsetSpec.earliest() for at in partitions})

    def latest(self, partitions: Partitions) -> Offsets:
        """The high watermark of each partition, which is the end that Kafka's tools show."""
        return self._offsets({at: OffsetSpec.latest() for at in partitions})

    def stable_ends(self, partitions: Partitions) -> Offsets:
        """The end of each partition, before the first open transaction."""
        return self._offsets({at: OffsetSpec.latest() for at in partitions}, IsolationLevel.READ_COMMITTED)

    def at_time(self, partitions: Partitions, timestamp_ms: int) -> Offsets:
        """The offset of the first record at a time or later; the end where there is none."""
        wanted = list(partitions)
        found = self._offsets({at: OffsetSpec.for_timestamp(timestamp_ms) for at in wanted})
        missing = [at for at, offset in found.items() if offset == _NONE]
        return found | (self.latest(missing) if missing else {})

    def _offsets(self, asked: Mapping[At, Any], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> Offsets:
        if not asked:
            return {}
        specs = {TopicPartition(*at): spec for at, spec in asked.items()}
        futures = self._asked(
            "look up offsets",
            lambda: self._admin.list_offsets(specs, isolation_level=isolation, request_timeout=_TIMEOUT_S),
        )
        return {
            (at.topic, at.partition): self._result(f"look up the offset of {at.topic}-{at.partition}", future).offset
            for at, future in futures.items()
        }

    def committed(self, group: str, partitions: Partitions) -> Offsets:
        """The offsets that a group has committed; nothing for a partition without."""
        wanted = [TopicPartition(*at) for at in partitions]
        if not wanted:
            return {}
        doing = f"read the offsets of group {group}"
        found = self._asked_of_coordinator(group, doing, lambda consumer: consumer.committed(wanted, _TIMEOUT_S))
        return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def commit(self, group: str, offsets: Mapping[At, int], metadata: str = "") -> None:
        """Commits offsets for a group that has no members, each with the same metadata."""
        if not offsets:
            return
        doing = f"commit offsets of group {group}"
        wanted = [TopicPartition(*at, offset, metadata) for at, offset in offsets.items()]
        self._asked_of_coordinator(
            group, doing, lambda consumer: consumer.commit(offsets=wanted, asynchronous=False) or []
        )

    def offsets_retention_ms(self) -> int | None:
        """The shortest time for which a broker keeps the offsets of groups; None if not every broker reports it."""
        try:
            brokers = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
            # A broker reports its own configuration only, so each is asked by itself.
            futures = [
                future
                for broker in brokers
                for future in self._admin.describe_configs(
                    [ConfigResource(ConfigResource.Type.BROKER, str(broker))], request_timeout=_TIMEOUT_S
                ).values()
            ]
            found = [future.result(timeout=_TIMEOUT_S + 5) for future in futures]
            return min(int(entries[_RETENTION].value) for entries in found) * 60_000
        except (KafkaException, KeyError, TypeError, ValueError, TimeoutError):
            return None

    def _asked_of_coordinator(
        self, group: str, doing: str, ask: Callable[[Consumer], list[TopicPartition]]
    ) -> list[TopicPartition]:
        """What a group's coordinator answers; asks again while it is not ready, as in a cluster's first moments.

        A consumer asks, which joins no group: an admin client ends the whole process when a coordinator is not ready
        (librdkafka issue 5040).
        """
        configuration = self._configuration | {
            "group.id": group,
            "enable.auto.commit": False,
            # What a transaction has open is not waited for.
            "isolation.level": "read_uncommitted",
        }
        give_up_at = time.monotonic() + _TIMEOUT_S
        consumer: Consumer | None = None
        try:
            consumer = Consumer(configuration)
            while True:
                try:
                    found = ask(consumer)
                    break
                except KafkaException as error:
                    if error.args[0].code() not in _NOT_YET or time.monotonic() > give_up_at:
                        raise
                time.sleep(_BETWEEN_TRIES_S)
        except KafkaException as error:
            raise self._error(doing, error) from None
        finally:
            if consumer is not None:
                consumer.close()
        for at in found:
            if at.error is not None:
                raise ClusterError(f"cannot {doing}: {at.topic}-{at.partition}: {at.error.str()}")
        return found

    def _asked(self, doing: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as error:
            raise self._error(doing, error) from None

    def _result(self, doing: str, future: "Future[Any]") -> Any:
        try:
            return future.result(timeout=_TIMEOUT_S + 5)
        except KafkaException as error:
            is_unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            raise self._error(doing, error, _UnknownTopicError if is_unknown else ClusterError) from None
        except TimeoutError:
            raise self._silent(doing) from None

    def _silent(self, doing: str) -> ClusterError:
        return ClusterError(f"cannot {doing} at {self._servers}: no answer")

    def _error(self, doing: str, error: KafkaException, kind: type[ClusterError] = ClusterError) -> ClusterError:
        return kind(f"cannot {doing} at {self._servers}: {_reason(error)}")


def _reason(error: KafkaException) -> str:
    said = error.args[0] if error.args else error
    return said.str() if hasattr(said, "str") else str(said)
