"""Producers that write continuously, each in its own thread or process, and record their acknowledgements."""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
from kafka import KafkaProducer

from compat_tests.apache_kafka import tools
from compat_tests.kill.history import Entry, Fate, Ledger
from compat_tests.kill.stacks import format_stack
from compat_tests.limits import ANSWERS_S, CLIENT_START_S

# Clients reconnect at once; their waits for a dead broker are not tested.
LIBRDKAFKA = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "error_cb": lambda _: None,
    "log_level": 0,
}
KAFKA_PYTHON: dict[str, Any] = {
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
    "retry_backoff_ms": 20,
    "request_timeout_ms": 10_000,
}
JAVA = {
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "200",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "200",
    "linger.ms": "5",
    "delivery.timeout.ms": "120000",
}
DELIVERY_TIMEOUT_MS = 120_000


def known(offset: int | None) -> int | None:
    """Return an offset; None if the client library does not have it."""
    return offset if offset is not None and offset >= 0 else None


class Writer(ABC):
    """Writes until it is stopped, then waits for all responses.

    Violations are added to the ledger's `troubles`, errors that a producer must expect to `failures`.
    """

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, *, once: bool, seed: str) -> None:
        self.ledger = Ledger(name, once)
        self.failures: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._random = Random(f"{seed} {name}")
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end; `join` waits for it."""
        self._stopping.set()

    def abandon(self) -> None:
        """Stop without waiting for responses: the test has already failed, perhaps because there is no broker."""
        self._abandoned.set()
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(ANSWERS_S)
        if self._thread.is_alive():
            self.ledger.troubles.append(f"did not end in {ANSWERS_S} s\n{format_stack(self._thread)}")

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            # First: the end destroys the producer, which then fails all of its records.
            self.ledger.troubles.insert(0, f"ended with {error!r}")

    @abstractmethod
    def _run(self) -> None: ...

    def _pause(self, most_s: float) -> None:
        self._stopping.wait(self._random.uniform(0, most_s))

    def _key(self) -> bytes:
        return b"k" * self._random.randrange(200)

    def _partition(self) -> int:
        return self._random.randrange(self._partitions)


class ConfluentWriter(Writer):
    """librdkafka with acks=all; idempotent with `once`, otherwise with one request at a time.

    A refused request of a producer that is not idempotent loses the order nevertheless: each of its messages waits for
    a different time before it is sent again.
    """

    def _run(self) -> None:
        self.ledger.in_order = self.ledger.once
        producer = confluent_kafka.Producer(
            {
                **LIBRDKAFKA,
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "enable.idempotence": self.ledger.once,
                "max.in.flight": 5 if self.ledger.once else 1,
                "compression.type": "lz4" if self.ledger.once else "none",
                "linger.ms": 2,
                "batch.num.messages": 20,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )
        while not self._stopping.is_set():
            for _ in range(self._random.randrange(1, 30)):
                number, value = self.ledger.add()
                producer.produce(
                    self._topic, value, self._key(), self._partition(), self._answer(self.ledger.entries[number])
                )
            producer.poll(0)
            self._pause(0.2)
            while len(producer) > 2000:
                producer.poll(0.05)
        give_up_at = time.monotonic() + ANSWERS_S
        while left := producer.flush(0.5):
            if self._abandoned.is_set() or time.monotonic() > give_up_at:
                self.ledger.troubles.append(f"{left} records got no response")
                producer.purge()

    def _answer(self, entry: Entry) -> Callable[[Any, Any], None]:
        def answer(error: Any, message: Any) -> None:
            if error is not None:
                self.ledger.troubles.append(f"delivery failed: {error}")
                return
            entry.fate = Fate.ACKNOWLEDGED
            entry.partition = message.partition()
            # A duplicate that was written before may be acknowledged without its offset.
            entry.offset = known(message.offset())

        return answer


class KafkaPythonWriter(Writer):
    """kafka-python with acks=all, idempotent or with one request at a time."""

    def _run(self) -> None:
        how: dict[str, Any] = {"enable_idempotence": True}
        if not self.ledger.once:
            how = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
        producer = KafkaProducer(
            **KAFKA_PYTHON,
            **how,
            bootstrap_servers=self._bootstrap,
            acks="all",
            linger_ms=2,
            max_block_ms=DELIVERY_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        answers: deque[tuple[int, Any]] = deque()
        while not self._stopping.is_set():
            for _ in range(self._random.randrange(1, 10)):
                number, value = self.ledger.add()
                answers.append((number, producer.send(self._topic, value, self._key(), partition=self._partition())))
            self._pause(0.4)
            self._take(answers)
            while len(answers) > 500 and not self._stopping.wait(0.02):
                self._take(answers)
        give_up_at = time.monotonic() + ANSWERS_S
        while answers and not all(future.is_done for _, future in answers) and not self._abandoned.is_set():
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.05)
        for number, future in answers:
            self._note(number, future)
        producer.close(0 if self._abandoned.is_set() else 5)

    def _take(self, answers: deque[tuple[int, Any]]) -> None:
        while answers and answers[0][1].is_done:
            self._note(*answers.popleft())

    def _note(self, number: int, future: Any) -> None:
        if not future.is_done or not future.succeeded():
            self.ledger.troubles.append(f"delivery of {number} failed: {future.exception!r}")
            return
        entry = self.ledger.entries[number]
        entry.fate = Fate.ACKNOWLEDGED
        entry.partition = future.value.partition
        entry.offset = known(future.value.offset)


class VerifiableProducerWriter:
    """Kafka's VerifiableProducer, a Java process; its prefix is a number, which is the writer's name."""

    def __init__(self, name: str, bootstrap: str, topic: str, work: Path, *, once: bool, throughput: int = 50) -> None:
        self.ledger = Ledger(name, once)
        self.failures: list[str] = []
        self._output = work / f"verifiable-producer-{name}.out"
        settings = {**JAVA, "enable.idempotence": str(once).lower(), "retries": "2147483647"}
        settings["max.in.flight.requests.per.connection"] = "5" if once else "1"
        config = work / f"verifiable-producer-{name}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._tool = tools.RunningTool(
            self._output,
            tools.VERIFIABLE_PRODUCER,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--acks", "-1"),
            *("--value-prefix", name, "--throughput", str(throughput), "--command-config", str(config)),
        )
        self._started = False

    def start(self) -> None:
        self._tool.__enter__()
        self._started = True
        self._tool.wait_for("producer_send_success", CLIENT_START_S)

    def stop(self) -> None:
        self._tool.process.terminate()

    def abandon(self) -> None:
        if self._started:
            self._tool.__exit__(None, None, None)

    def join(self) -> None:
        """Wait for its end and record its acknowledgements."""
        try:
            self._tool.wait_for("shutdown_complete", ANSWERS_S)
        except tools.ToolError as error:
            self.ledger.troubles.append(str(error)[-2000:])
        finally:
            self.abandon()
        for line in self._output.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        if event["name"] == "producer_send_success":
            entry = self.ledger.entry(int(event["value"].rpartition(".")[2]))
            entry.fate = Fate.ACKNOWLEDGED
            entry.partition = event["partition"]
            entry.offset = known(event["offset"])
        elif event["name"] == "producer_send_error" and "Producer closed" not in event["message"]:
            self.ledger.troubles.append(f"delivery failed: {event}")


def wait_for_answers(writers: list[Any], timeout_s: float = ANSWERS_S) -> None:
    """Return when each writer has the outcome of all records sent so far. Raises AssertionError at a timeout.

    Not for writers of transactions, whose outcome may remain unknown.
    """
    give_up_at = time.monotonic() + timeout_s
    for ledger in [writer.ledger for writer in writers]:
        for entry in ledger.entries[:]:
            while entry.fate is Fate.UNKNOWN and not ledger.troubles:
                assert time.monotonic() < give_up_at, f"{ledger.writer} got no answer"
                time.sleep(0.02)


def wait_for_first_answers(writers: list[Any], timeout_s: float = CLIENT_START_S) -> None:
    """Return when every writer has an acknowledged record. Raises AssertionError at a timeout."""
    give_up_at = time.monotonic() + timeout_s
    for writer in writers:
        if isinstance(writer, Writer):
            while not writer.ledger.entries and not writer.ledger.troubles:
                assert time.monotonic() < give_up_at, f"{writer.ledger.writer} wrote nothing"
                time.sleep(0.02)
