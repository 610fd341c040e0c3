"""Adapter of aiokafka: its event loop runs in a thread, and each call waits for its coroutine."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiokafka
import aiokafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from compat_tests.clients import common
from compat_tests.clients.common import ClientError, Message, Partition, Received, Sent

# No cooperative assignor; its admin client neither deletes groups nor lists offsets nor alters incrementally.
FEATURES = frozenset({"static", "null_headers", "partitioner"})
ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
TIMEOUT_S = 30


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aiokafka", daemon=True).start()
    return loop


def _run(coroutine: Coroutine[Any, Any, Any], timeout_s: float = TIMEOUT_S) -> Any:
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        with _translate_errors():
            return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except aiokafka.errors.KafkaError as error:
        raise ClientError(getattr(error, "errno", None) or -1, error) from error


def _check(code: int, text: object = "") -> None:
    if code:
        raise ClientError(code, text)


class Producer(common.Producer):
    def __init__(self, bootstrap: str, options: common.ProducerOptions) -> None:
        more: dict[str, Any] = {}
        if options.partitioner:
            choose = options.partitioner
            more["partitioner"] = lambda key, every, available: choose(key, sorted(every))
        if options.transactional_id is not None:
            more["transactional_id"] = options.transactional_id
            more["transaction_timeout_ms"] = options.transaction_timeout_ms

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=options.acks,
                compression_type=options.compression,
                enable_idempotence=options.idempotent or options.transactional_id is not None,
                linger_ms=options.linger_ms,
                max_request_size=options.max_request_bytes,
                request_timeout_ms=options.timeout_ms,
                **more,
            )
            await producer.start()
            return producer

        self._producer = _run(start())

    def produce(self, topic: str, messages: Iterable[Message]) -> list[Sent]:
        async def produce() -> list[Sent]:
            futures = [
                await self._producer.send(
                    topic,
                    value=m.value,
                    key=m.key,
                    headers=list(m.headers),
                    partition=m.partition,
                    timestamp_ms=m.timestamp_ms,
                )
                for m in messages
            ]
            answers = await asyncio.gather(*futures)
            return [Sent(a.partition, -1 if a.offset is None else a.offset) if a else Sent(-1, -1) for a in answers]

        return _run(produce())

    def begin(self) -> None:
        _run(self._producer.begin_transaction())

    def commit(self) -> None:
        _run(self._producer.commit_transaction())

    def abort(self) -> None:
        _run(self._producer.abort_transaction())

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        positions = {TopicPartition(*p): OffsetAndMetadata(offset, "") for p, offset in offsets.items()}
        _run(self._producer.send_offsets_to_transaction(positions, consumer.group))

    def close(self) -> None:
        _run(self._producer.stop())


class _Listener(ConsumerRebalanceListener):
    def __init__(self, listener: Callable[[str, list[Partition]], None]) -> None:
        self._listener = listener

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._listener("revoked", sorted((p.topic, p.partition) for p in revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._listener("assigned", sorted((p.topic, p.partition) for p in assigned))


class Consumer(common.Consumer):
    def __init__(self, bootstrap: str, options: common.ConsumerOptions) -> None:
        self.group = options.group

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                client_id=options.client_id,
                group_id=options.group,
                group_instance_id=options.instance_id,
                partition_assignment_strategy=[ASSIGNORS[options.assignor]],
                session_timeout_ms=options.session_timeout_ms,
                heartbeat_interval_ms=options.heartbeat_ms,
                auto_offset_reset=options.reset,
                enable_auto_commit=False,
                max_partition_fetch_bytes=options.max_partition_bytes,
                fetch_max_wait_ms=options.fetch_wait_ms,
                isolation_level="read_committed" if options.committed_only else "read_uncommitted",
            )
            await consumer.start()
            return consumer

        self._consumer = _run(start())

    def subscribe(self, topics: Sequence[str], listener: Callable[[str, list[Partition]], None] | None) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics), listener=_Listener(listener) if listener else None)

        _run(subscribe())

    def assign(self, partitions: Sequence[Partition]) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*p) for p in partitions])

        _run(assign())

    def poll(self, timeout_s: float) -> list[Received]:
        polled = _run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [
            Received(
                r.topic,
                r.partition,
                r.offset,
                r.timestamp,
                r.timestamp_type,
                r.key,
                r.value,
                tuple(map(tuple, r.headers)),
            )
            for records in polled.values()
            for r in records
        ]

    def seek(self, partition: Partition, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(TopicPartition(*partition), offset)

        _run(seek())

    def position(self, partition: Partition) -> int:
        return _run(self._consumer.position(TopicPartition(*partition)))

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        wanted = {TopicPartition(*p): OffsetAndMetadata(offset, text) for p, (offset, text) in offsets.items()}
        _run(self._consumer.commit(wanted))

    def committed(self, partition: Partition) -> int | None:
        return _run(self._consumer.committed(TopicPartition(*partition)))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        answer = _run(self._consumer.offsets_for_times({TopicPartition(*p): t for p, t in times.items()}))
        return {(p.topic, p.partition): found.offset if found else None for p, found in answer.items()}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        p = TopicPartition(*partition)
        return _run(self._consumer.beginning_offsets([p]))[p], _run(self._consumer.end_offsets([p]))[p]

    def close(self) -> None:
        _run(self._consumer.stop())


class Admin(common.Admin):
    def __init__(self, bootstrap: str) -> None:
        async def start() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self._admin = _run(start())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs or {}))
        answer = _run(self._admin.create_topics([topic], validate_only=validate_only))
        for _, code, *text in answer.topic_errors:
            _check(code, text)

    def delete_topic(self, name: str) -> None:
        for _, code, *text in _run(self._admin.delete_topics([name])).topic_error_codes:
            _check(code, text)

    def create_partitions(self, topic: str, total: int) -> None:
        answer = _run(self._admin.create_partitions({topic: NewPartitions(total)}))
        for _, code, *text in answer.topic_errors:
            _check(code, text)

    def topics(self) -> set[str]:
        return set(_run(self._admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        (described,) = _run(self._admin.describe_topics([topic]))
        _check(described["error_code"], topic)
        return len(described["partitions"])

    def describe_configs(self, topic: str) -> dict[str, common.TopicConfig]:
        (answer,) = _run(self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        ((code, text, _, _, entries),) = answer.resources
        _check(code, text)
        return {name: common.TopicConfig(value, source == 5) for name, value, _, source, *_ in entries}

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (answer,) = _run(self._admin.alter_configs([resource]))
        for code, text, *_ in answer.resources:
            _check(code, text)

    def groups(self) -> set[str]:
        return {group for group, *_ in _run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> common.Group:
        (answer,) = _run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, protocol, members, *_),) = answer.groups
        _check(code, group)
        # Up to version 3 of the request a response has no instance ids.
        return common.Group(state, protocol, tuple(common.GroupMember(m[0], m[1], None) for m in members))

    def group_offsets(self, group: str) -> dict[Partition, int]:
        answer = _run(self._admin.list_consumer_group_offsets(group))
        return {(p.topic, p.partition): found.offset for p, found in answer.items()}

    def delete_records(self, partition: Partition, before: int) -> int:
        p = TopicPartition(*partition)
        return _run(self._admin.delete_records({p: RecordsToDelete(before)}))[p]

    def describe_cluster(self) -> common.Cluster:
        answer = _run(self._admin.describe_cluster())
        brokers = tuple((b["node_id"], b["host"], b["port"]) for b in answer["brokers"])
        return common.Cluster(answer.get("cluster_id"), answer.get("controller_id"), brokers)

    def close(self) -> None:
        _run(self._admin.close())
