"""Members of consumer groups to which no error may be reported: confluent-kafka, kafka-python and Java.

Each is the only member of its group, reads a topic with read_committed, and commits what it has read.
"""

import json
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer

from compat_tests.apache_kafka import tools
from compat_tests.clients.common import wait_until
from compat_tests.kill.history import Log, Stored, split
from compat_tests.limits import ANSWERS_S, READ_S

COMMIT_TIMEOUT_MS = 30_000
WARNING = re.compile(rb"\[.*\] WARN ")
READ_COMMITTED = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.auto.commit": False}


class StrictReader(ABC):
    """A group member that keeps its records by partition, in the order of their receipt, and its errors.

    counts: number of records by writer
    errors: errors that the client reported to the application
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._records: dict[int, list[Stored]] = defaultdict(list)

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Request the end; `join` waits for it."""

    @abstractmethod
    def join(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Stop without waiting for the end."""

    @abstractmethod
    def update(self) -> None:
        """Bring records and errors up to date."""

    def _add(self, partition: int, offset: int, value: bytes) -> None:
        self._records[partition].append(Stored(offset, value))
        self.counts[split(value)[0]] += 1

    def wait_until_read(self, log: Log) -> None:
        """Wait for as many records as there are in a log."""
        expected = sum(map(len, log.values()))
        self._wait_until(lambda: self.counts.total() >= expected)

    def wait_for_more(self, before: Mapping[str, int], number: int) -> None:
        """Wait until the number of records of each writer has increased by `number`."""
        self._wait_until(lambda: all(self.counts[name] >= count + number for name, count in before.items()))
        assert not self.errors, f"{self.name}: {self.errors}"

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition or an error."""

        def is_over() -> bool:
            self.update()
            return bool(self.errors) or condition()

        wait_until(is_over, READ_S, lambda: f"{self.name} has read {dict(self.counts)}")

    def check(self, log: Log) -> list[str]:
        """Return the errors, and the differences from a log, which has to be read completely, once and in order."""
        self.update()
        found = self._records
        wrong = [partition for partition, records in log.items() if found.get(partition, []) != records]
        rows = {partition: (len(found.get(partition, [])), len(log[partition])) for partition in wrong}
        complaints = [f"{self.name}: records of partitions differ (read, written): {rows}"] if rows else []
        return complaints + [f"{self.name}: {error}" for error in self.errors]


class ThreadedReader(StrictReader):
    """A member in a thread, which ends at the first error."""

    def __init__(self, name: str, bootstrap_servers: str, topic: str) -> None:
        super().__init__(name)
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    abandon = stop

    def join(self) -> None:
        self._thread.join(ANSWERS_S)
        assert not self._thread.is_alive(), f"{self.name} did not end in {ANSWERS_S} s"

    def update(self) -> None:
        """Do nothing: the thread adds what it receives."""

    def _run(self) -> None:
        try:
            with closing(self._make_consumer()) as consumer:
                while not self._stopping.is_set():
                    self._read_and_commit(consumer)
        except Exception as error:
            self.errors.append(repr(error))

    @abstractmethod
    def _make_consumer(self) -> Any: ...

    @abstractmethod
    def _read_and_commit(self, consumer: Any) -> None: ...


class ConfluentReader(ThreadedReader):
    """confluent-kafka, with its default settings for retries."""

    def _make_consumer(self) -> Any:
        servers = {"bootstrap.servers": self._bootstrap_servers, "group.id": self.name, "log_level": 0}
        consumer = Consumer({**servers, **READ_COMMITTED})
        consumer.subscribe([self._topic])
        return consumer

    def _read_and_commit(self, consumer: Any) -> None:
        messages = consumer.consume(500, timeout=0.1)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            self._add(message.partition(), message.offset(), message.value())
        if messages:
            for committed in consumer.commit(asynchronous=False):
                if committed.error is not None:
                    raise KafkaException(committed.error)


class KafkaPythonReader(ThreadedReader):
    """kafka-python, with its default settings for retries."""

    def _make_consumer(self) -> Any:
        options = {name.replace(".", "_"): value for name, value in READ_COMMITTED.items()}
        servers = self._bootstrap_servers.split(",")
        return KafkaConsumer(self._topic, bootstrap_servers=servers, group_id=self.name, **options)

    def _read_and_commit(self, consumer: Any) -> None:
        polled = consumer.poll(timeout_ms=100)
        for partition, messages in polled.items():
            for message in messages:
                self._add(partition.partition, message.offset, message.value)
        if polled:
            consumer.commit(timeout_ms=COMMIT_TIMEOUT_MS)


class JavaReader(StrictReader):
    """Kafka's VerifiableConsumer, with its default settings for retries."""

    def __init__(self, name: str, bootstrap_servers: str, topic: str, directory: Path) -> None:
        super().__init__(name)
        self._output = directory / f"{name}.out"
        self._position = 0
        config = directory / f"{name}.properties"
        config.write_text("isolation.level=read_committed\n")
        self._tool = tools.RunningTool(
            self._output,
            tools.VERIFIABLE_CONSUMER,
            *("--bootstrap-server", bootstrap_servers, "--topic", topic, "--group-id", name),
            *("--reset-policy", "earliest", "--verbose", "--command-config", str(config)),
        )

    def start(self) -> None:
        self._tool.__enter__()

    def stop(self) -> None:
        self._tool.process.terminate()

    def join(self) -> None:
        try:
            self._tool.wait_for("shutdown_complete", ANSWERS_S)
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._tool.__exit__(None, None, None)

    def update(self) -> None:
        """Parse the lines that have been completed since the last call.

        Commits that failed are errors, and so are lines that are neither events nor warnings in the log.
        """
        with open(self._output, "rb") as output:
            output.seek(self._position)
            for line in output:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                if line.startswith(b"{"):
                    self._take(json.loads(line))
                elif not WARNING.match(line):
                    self.errors.append(line.decode())

    def _take(self, event: dict[str, Any]) -> None:
        if event["name"] == "record_data":
            self._add(event["partition"], event["offset"], event["value"].encode())
        elif event["name"] == "offsets_committed" and not event["success"]:
            self.errors.append(str(event))


def wait_for_more(writers: Mapping[StrictReader, Collection[str]], number: int = 10) -> None:
    """Wait until each reader has received that many more records of each of its writers."""
    before = {reader: {name: reader.counts[name] for name in names} for reader, names in writers.items()}
    for reader in writers:
        reader.wait_for_more(before[reader], number)
