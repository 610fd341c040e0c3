"""Topics of the examples, created, filled and read without Spark."""

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]

NewTopic: Any = _NewTopic
TIMEOUT_S = 30.0
_POLL_S = 0.1
_ABSENT = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART)


class ExampleError(Exception):
    """An example cannot be set up; `str()` has the reason and the remedy."""


class ExampleBroker:
    """Client of the brokers on which an example runs."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Connect to the brokers. Raises ExampleError if none responds."""
        self.bootstrap_servers = bootstrap_servers
        # An error is reported once, below; librdkafka would log it again and again.
        self._client: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(self._client)
        try:
            self._admin.list_topics(timeout=5)
        except KafkaException:
            message = f"no broker responds at {bootstrap_servers}; start one with `make start` or `odradek start`"
            raise ExampleError(message) from None

    def recreate_topics(self, topics: Mapping[str, int], groups: Iterable[str]) -> None:
        """Delete topics of these names, and create them with the given numbers of partitions."""
        self._wait_for_all(self._admin.delete_consumer_groups([*groups], request_timeout=TIMEOUT_S))
        self._wait_for_all(self._admin.delete_topics([*topics], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S))
        give_up_at = time.monotonic() + TIMEOUT_S
        while set(topics) & set(self.list_topic_names()) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        wanted = [NewTopic(name, partitions, 1) for name, partitions in topics.items()]
        self._wait_for_all(self._admin.create_topics(wanted, request_timeout=TIMEOUT_S))

    def list_topic_names(self) -> list[str]:
        return list(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def _wait_for_all(self, futures: Mapping[str, Future[Any]]) -> None:
        for future in futures.values():
            try:
                future.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in _ABSENT:
                    raise ExampleError(f"{self.bootstrap_servers}: {error.args[0].str()}") from None

    def produce(self, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Produce records; return when all are acknowledged. Raises ExampleError."""
        producer = Producer({**self._client, "enable.idempotence": True, "linger.ms": 20})
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error)

        for key, value in records:
            producer.produce(topic, value, key, on_delivery=delivered)
            producer.poll(0)
        left = producer.flush(TIMEOUT_S)
        if left or refused:
            why = refused[0].str() if refused else "they were not acknowledged in time"
            raise ExampleError(f"{left + len(refused)} records were not written to {topic}: {why}")

    def read_records(self, topic: str) -> Iterator[Message]:
        """Return the committed records of a topic. Waits for open transactions, because the markers of a committed one
        may not be written to every partition yet."""
        settings = {"group.id": "examples", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({**self._client, **settings, "isolation.level": "read_committed"})
        try:
            left = self._fetch_ends(topic)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
            while left:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise ExampleError(f"{topic}: no record within {TIMEOUT_S:g} s")
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    at, offset = message.partition(), message.offset()
                    if at is not None and offset is not None and offset >= left.get(at, offset):
                        left.pop(at, None)
                else:
                    raise ExampleError(f"{topic}: {error.str()}")
        finally:
            consumer.close()

    def _fetch_ends(self, topic: str) -> dict[int, int]:
        """Return the high watermark of each partition."""
        settings = {"group.id": "examples", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        consumer = Consumer({**self._client, **settings})
        try:
            ends = {}
            for partition in consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions:
                marks = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
                if marks is None:
                    raise ExampleError(f"{topic}: no end offset within {TIMEOUT_S:g} s")
                ends[partition] = marks[1]
            return ends
        finally:
            consumer.close()
