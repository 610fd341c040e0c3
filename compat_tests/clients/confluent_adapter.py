"""Adapter of confluent-kafka (librdkafka)."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # none is exported explicitly
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat_tests import limits
from compat_tests.clients import common
from compat_tests.clients.common import ClientError, Message, Partition, Received, Sent

# librdkafka's Python binding has no user-defined partitioner and no deletion of single committed offsets.
FEATURES = frozenset(
    {
        "cooperative",
        "static",
        "delete_groups",
        "list_offsets",
        "incremental_configs",
        "null_headers",
        "null_records",
    }
)
ASSIGNORS = {"range": "range", "roundrobin": "roundrobin", "cooperative": "cooperative-sticky"}
TIMEOUT_S = 20


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ClientError(error.args[0].code(), error.args[0]) from error
    except SystemError as error:
        # A fatal error raised while delivery reports are processed.
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise ClientError(error.__cause__.args[0].code(), error.__cause__.args[0]) from error


def _is_loading(error: Exception) -> bool:
    return isinstance(error, ClientError) and error.code == confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS


def _note(answers: dict[int, tuple[Any, Any]], number: int, error: Any, message: Any) -> None:
    answers[number] = (error, message)


def _ignore(_: object) -> None:
    """Ignore connection errors: they show in the results of the scenarios, and need no log lines."""


class Producer(common.Producer):
    def __init__(self, bootstrap: str, options: common.ProducerOptions) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "acks": options.acks,
            "compression.type": options.compression or "none",
            "enable.idempotence": options.idempotent,
            "linger.ms": options.linger_ms,
            "message.max.bytes": options.max_request_bytes,
            "message.timeout.ms": options.timeout_ms,
            "error_cb": _ignore,
        }
        if options.transactional_id is not None:
            settings["enable.idempotence"] = True
            settings["transactional.id"] = options.transactional_id
            settings["transaction.timeout.ms"] = options.transaction_timeout_ms
            settings["message.timeout.ms"] = min(options.timeout_ms, options.transaction_timeout_ms)
        self._producer = confluent_kafka.Producer(settings)
        if options.transactional_id is not None:
            with _translate_errors():
                self._producer.init_transactions(TIMEOUT_S)

    def produce(self, topic: str, messages: Iterable[Message]) -> list[Sent]:
        answers: dict[int, tuple[Any, Any]] = {}
        count = 0
        with _translate_errors():
            for m in messages:
                self._produce_one(topic, m, partial(_note, answers, count))
                count += 1
            self._producer.flush(TIMEOUT_S)
        assert len(answers) == count, f"{count - len(answers)} of {count} records got no answer"
        for error, _ in answers.values():
            if error is not None:
                raise ClientError(error.code(), error)
        reported = [answers[n][1] for n in range(count)]
        return [Sent(t.partition(), -1 if t.offset() is None or t.offset() < 0 else t.offset()) for t in reported]

    def _produce_one(self, topic: str, m: Message, answer: Callable[[Any, Any], None]) -> None:
        more: dict[str, Any] = {}
        if m.partition is not None:
            more["partition"] = m.partition
        if m.timestamp_ms is not None:
            more["timestamp"] = m.timestamp_ms
        while True:
            try:
                self._producer.produce(
                    topic, value=m.value, key=m.key, headers=list(m.headers), on_delivery=answer, **more
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def begin(self) -> None:
        with _translate_errors():
            self._producer.begin_transaction()

    def commit(self) -> None:
        with _translate_errors():
            self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        with _translate_errors():
            self._producer.abort_transaction(TIMEOUT_S)

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        positions = [TopicPartition(*p, offset) for p, offset in offsets.items()]
        with _translate_errors():
            self._producer.send_offsets_to_transaction(positions, consumer.group_metadata(), TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()
        # A fenced producer raises the error again.
        with suppress(KafkaException):
            self._producer.flush(5)


class Consumer(common.Consumer):
    def __init__(self, bootstrap: str, options: common.ConsumerOptions) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": options.client_id,
            "group.id": options.group or "compat-without-a-group",
            "partition.assignment.strategy": ASSIGNORS[options.assignor],
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": options.heartbeat_ms,
            "auto.offset.reset": "error" if options.reset == "none" else options.reset,
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "max.partition.fetch.bytes": options.max_partition_bytes,
            "fetch.error.backoff.ms": 50,
            "fetch.wait.max.ms": options.fetch_wait_ms,
            "isolation.level": "read_committed" if options.committed_only else "read_uncommitted",
            "error_cb": _ignore,
        }
        if options.instance_id:
            settings["group.instance.id"] = options.instance_id
        self._reset = options.reset
        self._consumer = confluent_kafka.Consumer(settings)

    def subscribe(self, topics: Sequence[str], listener: Callable[[str, list[Partition]], None] | None) -> None:
        if listener is None:
            self._consumer.subscribe(list(topics))
            return

        def report(what: str) -> Callable[[Any, list[TopicPartition]], None]:
            return lambda _, partitions: listener(what, sorted((p.topic, p.partition) for p in partitions))

        self._consumer.subscribe(
            list(topics), on_assign=report("assigned"), on_revoke=report("revoked"), on_lost=report("lost")
        )

    def assign(self, partitions: Sequence[Partition]) -> None:
        start = confluent_kafka.OFFSET_END if self._reset == "latest" else confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([TopicPartition(*p, start) for p in partitions])

    def poll(self, timeout_s: float) -> list[Received]:
        records = []
        for m in self._consumer.consume(500, timeout=timeout_s):
            error = m.error()
            if error is None:
                records.append(_received(m))
            elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                raise ClientError(common.Code.OFFSET_OUT_OF_RANGE, error)
            elif not error.retriable():
                raise ClientError(error.code(), error)
        return records

    def seek(self, partition: Partition, offset: int) -> None:
        # A seek in an assigned partition is possible only once its fetching has started.
        give_up_at = time.monotonic() + limits.CONDITION_S
        while True:
            try:
                return self._consumer.seek(TopicPartition(*partition, offset))
            except KafkaException as error:
                if time.monotonic() > give_up_at:
                    raise ClientError(error.args[0].code(), error) from error
                self._consumer.poll(0.05)

    def position(self, partition: Partition) -> int:
        (answer,) = self._consumer.position([TopicPartition(*partition)])
        return answer.offset if answer.offset >= 0 else self.committed(partition) or 0

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        wanted = [TopicPartition(*p, offset, text) for p, (offset, text) in offsets.items()]

        def commit() -> Any:
            with _translate_errors():
                return self._consumer.commit(offsets=wanted, asynchronous=False)

        # Java's consumer repeats this until its timeout, librdkafka only for a moment: a new __consumer_offsets of
        # Apache Kafka takes longer on a busy machine.
        for answer in common.repeat(commit, _is_loading, TIMEOUT_S):
            if answer.error:
                raise ClientError(answer.error.code(), answer.error)

    def committed(self, partition: Partition) -> int | None:
        with _translate_errors():
            (answer,) = self._consumer.committed([TopicPartition(*partition)], timeout=TIMEOUT_S)
        return answer.offset if answer.offset >= 0 else None

    def group_metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        asked = [TopicPartition(*p, t) for p, t in times.items()]
        with _translate_errors():
            answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
        return {(a.topic, a.partition): a.offset if a.offset >= 0 else None for a in answers}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        with _translate_errors():
            return self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=TIMEOUT_S)

    def close(self) -> None:
        self._consumer.close()


def _received(m: Any) -> Received:
    kind, timestamp = m.timestamp()
    headers = tuple((name, value) for name, value in m.headers() or ())
    # librdkafka counts CreateTime as 1 and LogAppendTime as 2.
    return Received(m.topic(), m.partition(), m.offset(), timestamp, kind - 1, m.key(), m.value(), headers)


class Admin(common.Admin):
    def __init__(self, bootstrap: str) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "error_cb": _ignore}
        self._admin = AdminClient(settings)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication_factor, config=dict(configs or {}))
        self._wait(self._admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        self._wait(self._admin.delete_topics([name]))

    def create_partitions(self, topic: str, total: int) -> None:
        self._wait(self._admin.create_partitions([NewPartitions(topic, total)]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def partition_count(self, topic: str) -> int:
        described = self._wait(self._admin.describe_topics(confluent_kafka.TopicCollection([topic])))
        return len(described.partitions)

    def describe_configs(self, topic: str) -> dict[str, common.TopicConfig]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._wait(self._admin.describe_configs([resource]))
        return {name: common.TopicConfig(entry.value, entry.is_default) for name, entry in answer.items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        self.alter_config(topic, name, "SET", value)

    def alter_config(self, topic: str, name: str, operation: str, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._wait(self._admin.incremental_alter_configs([resource]))

    def groups(self) -> set[str]:
        with _translate_errors():
            answer = self._admin.list_consumer_groups().result(TIMEOUT_S)
        return {group.group_id for group in answer.valid}

    def describe_group(self, group: str) -> common.Group:
        described = self._wait(self._admin.describe_consumer_groups([group]))
        members = tuple(
            common.GroupMember(m.member_id, m.client_id, m.group_instance_id or None) for m in described.members
        )
        state = "".join(word.capitalize() for word in described.state.name.split("_"))
        return common.Group(state, described.partition_assignor, members)

    def group_offsets(self, group: str) -> dict[Partition, int]:
        answer = self._wait(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}

    def delete_group(self, group: str) -> None:
        self._wait(self._admin.delete_consumer_groups([group]))

    def delete_records(self, partition: Partition, before: int) -> int:
        return self._wait(self._admin.delete_records([TopicPartition(*partition, before)])).low_watermark

    def list_offset(self, partition: Partition, which: str) -> int:
        spec = getattr(OffsetSpec, which)()
        return self._wait(self._admin.list_offsets({TopicPartition(*partition): spec})).offset

    def describe_cluster(self) -> common.Cluster:
        with _translate_errors():
            answer = self._admin.describe_cluster().result(TIMEOUT_S)
        brokers = tuple((node.id, node.host, node.port) for node in answer.nodes)
        return common.Cluster(answer.cluster_id, answer.controller.id if answer.controller else None, brokers)

    def close(self) -> None:
        del self._admin

    def _wait(self, futures: Mapping[Any, Any]) -> Any:
        (future,) = futures.values()
        with _translate_errors():
            return future.result(TIMEOUT_S)
