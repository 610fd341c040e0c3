"""Adapter of kafka-python 3."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kafka.errors
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.partitioner.abc import Partitioner
from kafka.structs import OffsetAndMetadata

from compat_tests.clients import common
from compat_tests.clients.common import ClientError, Message, Partition, Received, Sent

# The producer accepts neither a null header value nor a record without key and value; the consumer does.
FEATURES = frozenset(
    {
        "cooperative",
        "static",
        "delete_groups",
        "delete_offsets",
        "list_offsets",
        "incremental_configs",
        "partitioner",
    }
)
AWAY_S = 30
"""Time limit for an absent broker. kafka-python raises an error if it has no broker while it looks up the coordinator;
programs then retry, as other clients do internally."""
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative": CooperativeStickyAssignor,
}


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except kafka.errors.KafkaError as error:
        raise ClientError(getattr(error, "errno", None) or -1, error) from error


def _check(answer: object) -> None:
    """Raise an exception for an error that kafka-python returns as a class, a text or a name."""
    if isinstance(answer, type) and issubclass(answer, kafka.errors.KafkaError):
        if answer is not kafka.errors.NoError:
            raise ClientError(getattr(answer, "errno", -1), answer.__name__)
    elif isinstance(answer, str) and answer != "OK":
        numbered = re.match(r"\[Error (-?\d+)\]", answer)
        named = getattr(kafka.errors, answer.split(":")[0].strip(), None)
        raise ClientError(int(numbered[1]) if numbered else getattr(named, "errno", -1), answer)


class _Partitioner(Partitioner):
    def __init__(self, choose: Callable[[bytes | None, Sequence[int]], int]) -> None:
        self._choose = choose

    def partition(
        self,
        topic: str,
        key: object,
        serialized_key: bytes | None,
        value: object,
        serialized_value: object,
        cluster: Any,
    ) -> int:
        return self._choose(serialized_key, sorted(cluster.partitions_for_topic(topic)))


class Producer(common.Producer):
    def __init__(self, bootstrap: str, options: common.ProducerOptions) -> None:
        more: dict[str, Any] = {}
        if options.partitioner:
            more["partitioner"] = _Partitioner(options.partitioner)
        if options.transactional_id is not None:
            more["transactional_id"] = options.transactional_id
            more["transaction_timeout_ms"] = options.transaction_timeout_ms
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=options.acks,
            compression_type=options.compression,
            enable_idempotence=options.idempotent or options.transactional_id is not None,
            linger_ms=options.linger_ms,
            max_request_size=options.max_request_bytes,
            max_block_ms=options.timeout_ms,
            request_timeout_ms=options.timeout_ms,
            delivery_timeout_ms=options.timeout_ms + options.linger_ms,
            **more,
        )
        if options.transactional_id is not None:
            with _translate_errors():
                self._producer.init_transactions()

    def produce(self, topic: str, messages: Iterable[Message]) -> list[Sent]:
        with _translate_errors():
            futures = [
                self._producer.send(
                    topic,
                    value=m.value,
                    key=m.key,
                    headers=list(m.headers),
                    partition=m.partition,
                    timestamp_ms=m.timestamp_ms,
                )
                for m in messages
            ]
            self._producer.flush()
            answers = [future.get(20) for future in futures]
        return [Sent(answer.partition, -1 if answer.offset is None else answer.offset) for answer in answers]

    def begin(self) -> None:
        with _translate_errors():
            self._producer.begin_transaction()

    def commit(self) -> None:
        with _translate_errors():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _translate_errors():
            self._producer.abort_transaction()

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: Any) -> None:
        positions = {TopicPartition(*p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        with _translate_errors():
            self._producer.send_offsets_to_transaction(positions, consumer.group_metadata())

    def close(self) -> None:
        self._producer.close(timeout=5)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, listener: Callable[[str, list[Partition]], None]) -> None:
        self._listener = listener

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._listener("revoked", sorted((p.topic, p.partition) for p in revoked))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._listener("assigned", sorted((p.topic, p.partition) for p in assigned))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._listener("lost", sorted((p.topic, p.partition) for p in lost))


class Consumer(common.Consumer):
    def __init__(self, bootstrap: str, options: common.ConsumerOptions) -> None:
        self._consumer = KafkaConsumer(
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

    def subscribe(self, topics: Sequence[str], listener: Callable[[str, list[Partition]], None] | None) -> None:
        # A leader that assigns before its first metadata has arrived assigns nothing, possibly permanently.
        for topic in topics:
            self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(topics, listener=_Listener(listener) if listener else None)

    def assign(self, partitions: Sequence[Partition]) -> None:
        self._consumer.assign([TopicPartition(*p) for p in partitions])

    def poll(self, timeout_s: float) -> list[Received]:
        with _translate_errors():
            try:
                polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
            except kafka.errors.KafkaConnectionError:
                return []  # see AWAY_S
        self._join_again_if_assignment_was_dropped()
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

    def _join_again_if_assignment_was_dropped(self) -> None:
        """Work around kafka-python 3.0.12, which drops an assignment that arrives when a poll times out.

        The join has ended and no other is requested, but the consumer remains in the rejoining state.
        """
        coordinator = self._consumer._coordinator
        if coordinator is not None and coordinator.rejoining and not coordinator.rejoin_needed:
            task = coordinator._join_task
            if task is not None and task.is_done:
                coordinator.request_rejoin()

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    def seek(self, partition: Partition, offset: int) -> None:
        self._consumer.seek(TopicPartition(*partition), offset)

    def position(self, partition: Partition) -> int:
        with _translate_errors():
            return self._consumer.position(TopicPartition(*partition))

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        wanted = {TopicPartition(*p): OffsetAndMetadata(offset, text, -1) for p, (offset, text) in offsets.items()}
        with _translate_errors():
            common.repeat(
                lambda: self._consumer.commit(wanted),
                lambda error: isinstance(error, kafka.errors.KafkaConnectionError),
                AWAY_S,
            )

    def committed(self, partition: Partition) -> int | None:
        with _translate_errors():
            return self._consumer.committed(TopicPartition(*partition))

    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        with _translate_errors():
            answer = self._consumer.offsets_for_times({TopicPartition(*p): t for p, t in times.items()})
        return {(p.topic, p.partition): found.offset if found else None for p, found in answer.items()}

    def bounds(self, partition: Partition) -> tuple[int, int]:
        p = TopicPartition(*partition)
        with _translate_errors():
            return self._consumer.beginning_offsets([p])[p], self._consumer.end_offsets([p])[p]

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=5000)


class Admin(common.Admin):
    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        topic = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(configs or {}),
        }
        with _translate_errors():
            self._admin.create_topics({name: topic}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with _translate_errors():
            self._admin.delete_topics([name])

    def create_partitions(self, topic: str, total: int) -> None:
        with _translate_errors():
            self._admin.create_partitions({topic: total})

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partition_count(self, topic: str) -> int:
        (described,) = self._admin.describe_topics([topic])
        if described["error_code"]:
            raise ClientError(described["error_code"], topic)
        return len(described["partitions"])

    def describe_configs(self, topic: str) -> dict[str, common.TopicConfig]:
        with _translate_errors():
            answer = self._admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        return {
            name: common.TopicConfig(entry["value"], entry["config_source"] == "DEFAULT_CONFIG")
            for name, entry in answer["topic"][topic].items()
        }

    def set_config(self, topic: str, name: str, value: str) -> None:
        self.alter_config(topic, name, "SET", value)

    def alter_config(self, topic: str, name: str, operation: str, value: str | None) -> None:
        resource = ConfigResource("TOPIC", topic, {name: (operation, value)})
        with _translate_errors():
            answer = self._admin.alter_configs([resource], raise_on_unknown=False)
        _check(answer["topic"][topic])

    def groups(self) -> set[str]:
        with _translate_errors():
            return {group["group_id"] for group in self._admin.list_groups()}

    def describe_group(self, group: str) -> common.Group:
        with _translate_errors():
            described = self._admin.describe_groups([group])[group]
        members = tuple(
            common.GroupMember(m["member_id"], m["client_id"], m["group_instance_id"]) for m in described["members"]
        )
        return common.Group(described["group_state"], described["protocol_data"], members)

    def group_offsets(self, group: str) -> dict[Partition, int]:
        with _translate_errors():
            offsets = self._admin.list_group_offsets({group: None})[group]
        return {(p.topic, p.partition): found.offset for p, found in offsets.items()}

    def delete_group(self, group: str) -> None:
        with _translate_errors():
            _check(self._admin.delete_groups([group])[group])

    def delete_group_offsets(self, group: str, partition: Partition) -> None:
        p = TopicPartition(*partition)
        with _translate_errors():
            _check(self._admin.delete_group_offsets(group, [p])[p])

    def delete_records(self, partition: Partition, before: int) -> int:
        p = TopicPartition(*partition)
        with _translate_errors():
            return self._admin.delete_records({p: before})[p]["low_watermark"]

    def list_offset(self, partition: Partition, which: str) -> int:
        p = TopicPartition(*partition)
        with _translate_errors():
            return self._admin.list_partition_offsets({p: OffsetSpec[which.upper()]})[p].offset

    def describe_cluster(self) -> common.Cluster:
        answer = self._admin.describe_cluster()
        brokers = tuple((b["broker_id"], b["host"], b["port"]) for b in answer["brokers"])
        return common.Cluster(answer["cluster_id"], answer["controller_id"], brokers)

    def close(self) -> None:
        self._admin.close()
