"""Transactional producers that commit, abort, and are replaced in the middle of a transaction."""

import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from compat_tests.kill.history import Entry, Fate
from compat_tests.kill.writers import DELIVERY_TIMEOUT_MS, KAFKA_PYTHON, LIBRDKAFKA, Writer, known
from compat_tests.limits import ANSWERS_S

REPLACED_SHARE = 0.04
ABORTED_SHARE = 0.25
TRANSACTION_TIMEOUT_MS = 30_000
CALL_TIMEOUT_SECONDS = 4


class TransactionalWriter(Writer):
    """Writes transactions of a few records each over several partitions.

    Sometimes a second producer takes over the transactional id while the first has an open transaction: the first must
    then fail to commit it. A producer whose transaction ended in an error is replaced as well; the outcome of that
    transaction is unknown.
    """

    def _run(self) -> None:
        producer = self._new_producer()
        transaction = 0
        while not self._stopping.is_set():
            numbers: list[int] = []
            chance = self._random.random()
            try:
                self._send_all(producer, transaction, numbers)
                if chance < REPLACED_SHARE:
                    zombie, producer = producer, self._new_producer()
                    self._set(numbers, Fate.ABORTED)
                    self._try_as_zombie(zombie, numbers)
                elif chance < REPLACED_SHARE + ABORTED_SHARE:
                    self._abort(producer)
                    self._set(numbers, Fate.ABORTED)
                else:
                    self._set(numbers, self._commit(producer))
            except (KafkaException, KafkaError) as error:
                self.failures.append(repr(error))
                self._close(producer)
                producer = self._new_producer()
            transaction += 1
            self._pause(0.2)
        self._close(producer)

    def _send_all(self, producer: Any, transaction: int, numbers: list[int]) -> None:
        self._begin(producer)
        for _ in range(self._random.randrange(1, 20)):
            number, value = self.ledger.add(transaction)
            numbers.append(number)
            self._send(producer, value, self.ledger.entries[number])
        if self._random.random() < 0.5:
            self._flush(producer)  # otherwise the records are sent just before the transaction's end

    def _try_as_zombie(self, producer: Any, numbers: list[int]) -> None:
        try:
            if self._commit(producer) is Fate.ACKNOWLEDGED:
                self.ledger.troubles.append(f"a producer that had been replaced committed {numbers}")
        except (KafkaException, KafkaError):
            pass
        finally:
            self._close(producer)

    def _set(self, numbers: list[int], fate: Fate) -> None:
        for number in numbers:
            self.ledger.entries[number].fate = fate

    def _new_producer(self) -> Any:
        give_up_at = time.monotonic() + ANSWERS_S
        while True:
            try:
                return self._create_producer()
            except (KafkaException, KafkaError) as error:
                if self._abandoned.is_set() or time.monotonic() > give_up_at:
                    raise
                self.failures.append(f"at start: {error!r}")

    @abstractmethod
    def _create_producer(self) -> Any:
        """Return a new producer of the transactional id."""

    @abstractmethod
    def _begin(self, producer: Any) -> None: ...
    @abstractmethod
    def _send(self, producer: Any, value: bytes, entry: Entry) -> None: ...
    @abstractmethod
    def _flush(self, producer: Any) -> None: ...
    @abstractmethod
    def _commit(self, producer: Any) -> Fate:
        """Commit; return ABORTED if that was not possible and the transaction was aborted instead."""

    @abstractmethod
    def _abort(self, producer: Any) -> None: ...
    @abstractmethod
    def _close(self, producer: Any) -> None: ...


class ConfluentTransactionalWriter(TransactionalWriter):
    def _create_producer(self) -> Any:
        producer = confluent_kafka.Producer(
            {
                **LIBRDKAFKA,
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.ledger.writer,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
                "batch.num.messages": 5,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )
        self._retry(lambda: producer.init_transactions(5))
        return producer

    def _retry(self, call: Callable[[], None]) -> None:
        """Repeat a call as long as the library returns a retriable error."""
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() or self._abandoned.is_set():
                    raise

    def _begin(self, producer: Any) -> None:
        producer.begin_transaction()

    def _send(self, producer: Any, value: bytes, entry: Entry) -> None:
        def answer(error: Any, message: Any) -> None:
            if error is None:
                entry.partition, entry.offset = message.partition(), known(message.offset())

        producer.produce(self._topic, value, self._key(), self._partition(), answer)

    def _flush(self, producer: Any) -> None:
        give_up_at = time.monotonic() + ANSWERS_S
        while producer.flush(0.5) and not self._abandoned.is_set() and time.monotonic() < give_up_at:
            pass

    def _commit(self, producer: Any) -> Fate:
        try:
            self._retry(lambda: producer.commit_transaction(5))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(producer)
            return Fate.ABORTED
        return Fate.ACKNOWLEDGED

    def _abort(self, producer: Any) -> None:
        self._retry(lambda: producer.abort_transaction(5))

    def _close(self, producer: Any) -> None:
        producer.purge()
        with contextlib.suppress(KafkaException):  # the flush of a fenced producer fails
            producer.flush(0)


class KafkaPythonTransactionalWriter(TransactionalWriter):
    """kafka-python sometimes waits forever after a lost connection, also to Apache Kafka; then it is replaced.

    `commit_transaction` of kafka-python 3.0.12 may succeed without a request: after a refused batch it requests a new
    epoch and has no transaction, and it loses that request together with the connection to the coordinator.
    """

    def _create_producer(self) -> Any:
        producer = KafkaProducer(
            **KAFKA_PYTHON,
            bootstrap_servers=self._bootstrap,
            transactional_id=self.ledger.writer,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=2,
            max_block_ms=CALL_TIMEOUT_SECONDS * 1000,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        try:
            producer.init_transactions()
        except KafkaError:
            self._close(producer)
            raise
        return producer

    def _begin(self, producer: Any) -> None:
        self._unsent: list[KafkaError] = []
        producer.begin_transaction()

    def _send(self, producer: Any, value: bytes, entry: Entry) -> None:
        def answer(sent: Any) -> None:
            entry.partition, entry.offset = sent.partition, known(sent.offset)

        sending = producer.send(self._topic, value, self._key(), partition=self._partition())
        sending.add_callback(answer).add_errback(self._unsent.append)

    def _flush(self, producer: Any) -> None:
        producer.flush(CALL_TIMEOUT_SECONDS)

    def _commit(self, producer: Any) -> Fate:
        self._in_time(producer.commit_transaction)
        if self._unsent:
            raise self._unsent[0]
        return Fate.ACKNOWLEDGED

    def _abort(self, producer: Any) -> None:
        self._in_time(producer.abort_transaction)

    def _in_time(self, call: Callable[[], None]) -> None:
        """Make a call that has no timeout. Raises KafkaTimeoutError after CALL_TIMEOUT_SECONDS."""
        answers: list[KafkaError | None] = []

        def run() -> None:
            try:
                call()
                answers.append(None)
            except KafkaError as error:
                answers.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(CALL_TIMEOUT_SECONDS)
        if not answers:
            raise KafkaTimeoutError("neither a response nor an error")
        if answers[0] is not None:
            raise answers[0]

    def _close(self, producer: Any) -> None:
        try:
            producer.close(0)
        except KafkaError:
            # close() returns at its flush; the thread that remains is busy.
            producer._sender.force_close()
            producer._closed = True
