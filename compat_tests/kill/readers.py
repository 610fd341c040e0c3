"""Consumers that read continuously, and a watcher of committed offsets."""

import logging
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from compat_tests.kill.history import CommittedOffsets, Sightings
from compat_tests.kill.rdkafka_state import describe_ends, describe_statistics
from compat_tests.kill.stacks import describe_library_stacks, format_stack
from compat_tests.kill.writers import KAFKA_PYTHON, LIBRDKAFKA
from compat_tests.limits import ANSWERS_S

STATISTICS_MS = 5000


class Reader(ABC):
    """Reads in a thread until it is stopped."""

    def __init__(self, name: str, bootstrap: str, topic: str) -> None:
        self.name = name
        self.troubles: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    abandon = stop

    def join(self) -> None:
        self._thread.join(ANSWERS_S)
        if self._thread.is_alive():
            state = "\n".join([f"{self.name} did not end in {ANSWERS_S} s", *self._describe()])
            self.troubles.append(f"{state}\n{format_stack(self._thread)}")

    def _describe(self) -> list[str]:
        """Return lines about a reader that hangs."""
        return []

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.troubles.append(f"{self.name} ended with {error!r}")

    @abstractmethod
    def _run(self) -> None: ...


class GroupReader(Reader):
    """A group member with read_committed that commits the records it has read; several share their observations."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, group: str, seen: Sightings, committed: CommittedOffsets
    ) -> None:
        super().__init__(name, bootstrap, topic)
        self._group = group
        self._seen = seen
        self._committed = committed


class ConfluentGroupReader(GroupReader):
    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **LIBRDKAFKA,
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "partition.assignment.strategy": "range",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while not self._stopping.is_set():
                self._round(consumer)
        finally:
            consumer.close()

    def _round(self, consumer: Any) -> None:
        read: dict[int, int] = {}
        for message in consumer.consume(500, timeout=0.1):
            if message.error() is None:
                self._seen.add(self.name, message.partition(), message.offset(), message.value())
                read[message.partition()] = message.offset() + 1
        if not read:
            return
        try:
            wanted = [TopicPartition(self._topic, p, offset) for p, offset in read.items()]
            answers = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # a failed commit is repeated by the next one, or the records are read again
        self._committed.record_commit({a.partition: a.offset for a in answers if a.error is None})


class KafkaPythonGroupReader(GroupReader):
    def _run(self) -> None:
        consumer = KafkaConsumer(
            self._topic,
            **KAFKA_PYTHON,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=100,
        )
        try:
            while not self._stopping.is_set():
                self._round(consumer)
        finally:
            consumer.close()

    def _round(self, consumer: Any) -> None:
        read: dict[int, int] = {}
        try:
            polled = consumer.poll(timeout_ms=100, max_records=500)
        except KafkaError:
            return  # kafka-python raises lost connections here
        for partition, messages in polled.items():
            for message in messages:
                self._seen.add(self.name, partition.partition, message.offset, message.value)
                read[partition.partition] = message.offset + 1
        if not read:
            return
        wanted = {PythonTopicPartition(self._topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in read.items()}
        try:
            consumer.commit(wanted, timeout_ms=5000)
        except KafkaError:
            return
        self._committed.record_commit(read)


def _is_truncation(error: Any) -> bool:
    """Return whether librdkafka reports that the records that were read have been truncated, which may be wrong.

    It asks for the end of the leader epoch of its position, and compares the answer with the position that it has by
    then (rd_kafka_toppar_handle_OffsetForLeaderEpoch): if the application has read records of a later epoch meanwhile,
    the answer is lower. Java's consumer compares with the position of the request.
    """
    return bool(error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET and "truncation detected" in error.str())


class AssignedReader(Reader):
    """Reads every partition; offsets only increase.

    log_path: receives librdkafka's log, which has the reason if the consumer cannot be closed
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        seen: Sightings,
        *,
        isolation: str = "read_uncommitted",
        log_path: Path | None = None,
    ) -> None:
        super().__init__(name, bootstrap, topic)
        self._partitions = partitions
        self._seen = seen
        self._isolation = isolation
        self._log_path = log_path
        self._last: dict[int, int] = defaultdict(lambda: -1)
        self._is_closing = False
        self._statistics = ""

    def _run(self) -> None:
        consumer = self._make_consumer()
        consumer.assign([TopicPartition(self._topic, p, 0) for p in range(self._partitions)])
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(500, timeout=0.1):
                    self._take(consumer, message)
        finally:
            self._is_closing = True
            consumer.close()

    def _make_consumer(self) -> Any:
        config: dict[str, Any] = {
            **LIBRDKAFKA,
            "bootstrap.servers": self._bootstrap,
            "group.id": f"{self.name}-commits-nothing",
            "isolation.level": self._isolation,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": self._keep_statistics,
        }
        if self._log_path is None:
            return confluent_kafka.Consumer(config)
        logger = logging.Logger(self.name)
        handler = logging.FileHandler(self._log_path)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        return confluent_kafka.Consumer({**config, "log_level": 7, "debug": "broker,cgrp,topic"}, logger=logger)

    def _keep_statistics(self, statistics: str) -> None:
        """Keep librdkafka's statistics, of which there are more while it closes the consumer."""
        self._statistics = statistics

    def _describe(self) -> list[str]:
        state = "closing its consumer" if self._is_closing else "reading"
        return [
            f"it is {state}; last offsets read: {dict(self._last)}; librdkafka's log: {self._log_path}",
            *describe_ends(self._bootstrap, self._topic, self._partitions, self._isolation),
            *describe_statistics(self._statistics),
            *describe_library_stacks(self._thread),
        ]

    def _take(self, consumer: Any, message: Any) -> None:
        error, partition = message.error(), message.partition()
        if error is not None:
            if _is_truncation(error):
                # A true truncation is found nevertheless: other records come at these offsets, or fewer.
                consumer.seek(TopicPartition(self._topic, partition, self._last[partition] + 1))
            elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                self.troubles.append(f"{self.name}: {error}")
            return
        offset, last = message.offset(), self._last
        if offset <= last[partition]:
            self.troubles.append(f"{self.name}: offset {offset} of {partition} came after {last[partition]}")
        last[partition] = offset
        self._seen.add(self.name, partition, offset, message.value())


class OffsetWatcher(Reader):
    """Fetches a group's committed offsets repeatedly: none may decrease."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, partitions: int, group: str, committed: CommittedOffsets
    ) -> None:
        super().__init__(name, bootstrap, topic)
        self._partitions = partitions
        self._group = group
        self._committed = committed

    def _run(self) -> None:
        asker = confluent_kafka.Consumer(
            {**LIBRDKAFKA, "bootstrap.servers": self._bootstrap, "group.id": self._group, "enable.auto.commit": False}
        )
        try:
            while not self._stopping.is_set():
                self._look(asker)
                self._stopping.wait(0.05)
        finally:
            asker.close()

    def _look(self, asker: Any) -> None:
        least = self._committed.least()
        wanted = [TopicPartition(self._topic, p) for p in range(self._partitions)]
        try:
            answers = asker.committed(wanted, timeout=2)
        except KafkaException:
            return  # the broker is down, or a transaction's offsets are pending
        if any(answer.error for answer in answers):
            return
        self._committed.check_fetch(least, {a.partition: a.offset for a in answers if a.offset >= 0})
