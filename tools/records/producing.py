"""Records to a topic, with the errors of single ones."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from odradek.tools.kafka.cluster import RequestError
from odradek.tools.records.input import BadLine, Input

_PAUSE_S: Final = 0.05
_FLUSH_S: Final = 0.5
_ABORT_S: Final = 5.0
_TRANSACTION_TIMEOUT_MS: Final = 300_000
"""The time that an input may take, and that readers wait for a transaction of a process that was killed."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "log_level": 0,
    # Kafka's partitioner, so that a key is in the partition in which other producers put it.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 64 << 10,
    # The broker and the topic decide what is too large.
    "message.max.bytes": 1_000_000_000,
    "message.timeout.ms": 120_000,
    "delivery.report.only.error": True,
}

_INIT_TIMEOUT_S: Final = 60.0

ReportError = Callable[[str], None]


class RecordProducer:
    """Sends records to one topic and counts them; each error is reported, and the others are sent nevertheless."""

    def __init__(self, settings: Mapping[str, Any], topic: str, report: ReportError) -> None:
        self._topic = topic
        self._report = report
        self._sent = 0
        self.failed = 0
        self._is_transactional = "transactional.id" in settings
        timeout = {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS} if self._is_transactional else {}
        self._producer = Producer({**_DEFAULTS, **timeout, **settings})

    @property
    def produced(self) -> int:
        """Return the number of records that the broker has acknowledged, after `finish`."""
        return self._sent - self.failed

    def begin(self) -> None:
        """Begin a transaction if there is a transactional id. Raises RequestError."""
        if self._is_transactional:
            self._call(partial(self._producer.init_transactions, _INIT_TIMEOUT_S))
            self._call(self._producer.begin_transaction)

    def send_values(self, chunks: Iterable[list[bytes]], progress: Callable[[int], None]) -> None:
        """Send lines as values without keys and headers: the usual command, with the least work for each record."""
        produce, topic = self._producer.produce, self._topic
        first = 1
        for lines in chunks:
            report = _LineErrors(self._fail, first, lines)
            for index, line in enumerate(lines):
                try:
                    produce(topic, line, None, -1, report)  # positions cost less than names
                except BufferError:
                    self._repeat(f"line {first + index}", partial(produce, topic, line, None, -1, report))
                except KafkaException as error:
                    self._fail(f"line {first + index}", error.args[0])
            first += len(lines)
            self._sent += len(lines)
            self._producer.poll(0)
            progress(sum(map(len, lines)) + len(lines))

    def send(self, records: Iterable[Input]) -> None:
        """Send records."""
        for record in records:
            self._sent += 1
            if isinstance(record, BadLine):
                self._count_failure(record.source, record.reason)
                continue

            produce = partial(
                self._producer.produce,
                self._topic,
                record.value,
                record.key,
                record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=partial(self._fail_delivery, record.source),
            )

            try:
                produce()
            except BufferError:
                self._repeat(record.source, produce)
            except KafkaException as error:
                self._fail(record.source, error.args[0])
            except OverflowError:
                self._count_failure(record.source, f"there is no partition {record.partition}")
            if not self._sent & 0xFF:
                self._producer.poll(0)

    def finish(self) -> None:
        """Wait for all acknowledgements; commit a transaction, or abort it if a record failed. Raises RequestError."""
        while self._producer.flush(_FLUSH_S):
            pass
        if self._is_transactional:
            if self.failed:
                self._sent = self.failed
                self._call(self._producer.abort_transaction)
            else:
                self._call(self._producer.commit_transaction)

    def abandon(self) -> None:
        """Drop what is not sent yet, and abort a transaction, after an interruption."""
        self._producer.purge()
        self._producer.flush(_FLUSH_S)
        if self._is_transactional:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)

    def _repeat(self, source: str, produce: Callable[[], None]) -> None:
        """Wait until the queue has room for a record."""
        while True:
            self._producer.poll(_PAUSE_S)
            try:
                produce()
            except BufferError:
                continue
            except KafkaException as error:
                self._fail(source, error.args[0])
            return

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except KafkaException as error:
            raise describe_failure(error, "transaction") from None

    def _fail_delivery(self, source: str, error: KafkaError | None, message: Message) -> None:
        self._fail(source, error)

    def _fail(self, source: str, error: KafkaError | None) -> None:
        if error is not None:
            self._count_failure(source, describe_error(error))

    def _count_failure(self, source: str, reason: str) -> None:
        self.failed += 1
        self._report(f"{source}: {reason}")


class _LineErrors:
    """Reports errors of the lines of a chunk, and finds a line's number only then."""

    def __init__(self, fail: Callable[[str, KafkaError | None], None], first: int, lines: list[bytes]) -> None:
        self._fail = fail
        self._first = first
        self._lines = lines
        self._positions: dict[bytes, Iterator[int]] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Report an error."""
        value = message.value() or b""
        if value not in self._positions:
            self._positions[value] = iter([at for at, line in enumerate(self._lines) if line == value])
        self._fail(f"line {self._first + next(self._positions[value], 0)}", error)


def describe_error(error: KafkaError) -> str:
    """Return Kafka's name of an error, and its message."""
    return f"{error.name().lstrip('_')}: {error.str()}"


def describe_failure(error: KafkaException, subject: str) -> RequestError:
    """Return the error of a client."""
    found = error.args[0]
    if not isinstance(found, KafkaError):
        return RequestError("", f"{subject}: {found}")
    return RequestError(found.name().lstrip("_"), f"{subject}: {describe_error(found)}")
