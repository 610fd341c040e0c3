"""Numbered transactions of a transactional producer, and the check that each is read completely or not at all."""

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, Producer

from compat_tests.clients.common import wait_until

ABORT_EVERY = 5
OPERATION_S = 20
JOIN_S = 120


class TransactionalLoad:
    """A thread that writes number n to each partition of a topic in transaction n. Each fifth one is aborted.

    committed, aborted: numbers of the transactions with a known outcome
    unknown: numbers of transactions that ended with a fatal error of the producer
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, transactional_id: str) -> None:
        self._configuration = {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 500,
            "error_cb": lambda error: None,
            "log_level": 0,
        }
        self._topic = topic
        self._partitions = partitions
        self._transactional_id = transactional_id
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.unknown: set[int] = set()
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transactional-load", daemon=True)

    def wait_for_more(self, number: int = 10, timeout_s: float = 60) -> None:
        """Wait until that many more transactions are committed."""
        target = len(self.committed) + number
        wait_until(
            lambda: len(self.committed) >= target,
            timeout_s=timeout_s,
            what=lambda: f"{self._transactional_id}: {len(self.committed)} of {target}; {self.errors[-5:]}",
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive(), f"a transaction did not end: {self.errors[-5:]}"

    def _run(self) -> None:
        producer: Producer | None = None
        number = 0
        while not self._is_over.is_set():
            try:
                if producer is None:
                    producer = Producer(self._configuration)
                    self._repeat(producer.init_transactions)
                self._write(producer, number)
                number += 1
            except KafkaException as error:
                self.errors.append(str(error))
                if error.args[0].txn_requires_abort():
                    assert producer is not None
                    if self._abort(producer, number):
                        number += 1
                        continue
                self.unknown.add(number)
                number += 1
                producer = None

    def _write(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(self._partitions):
            producer.produce(self._topic, b"%d" % number, partition=partition)
        if number % ABORT_EVERY == 0:
            producer.flush(OPERATION_S)
            self._repeat(producer.abort_transaction)
            self.aborted.add(number)
        else:
            self._repeat(producer.commit_transaction)
            self.committed.add(number)

    def _abort(self, producer: Producer, number: int) -> bool:
        try:
            self._repeat(producer.abort_transaction)
        except KafkaException as error:
            self.errors.append(str(error))
            return False
        self.aborted.add(number)
        return True

    def _repeat(self, operation) -> None:
        while True:
            try:
                return operation(OPERATION_S)
            except KafkaException as error:
                self.errors.append(str(error))
                if not error.args[0].retriable():
                    raise


def check_transactions(load: TransactionalLoad, found: dict[int, list[tuple[int, int]]]) -> None:
    """Each partition has all committed numbers once, no aborted one, and the same numbers in order of writing."""
    numbers = {partition: [number for _, number in rows] for partition, rows in found.items()}
    for partition, read in numbers.items():
        assert read == sorted(set(read)), f"partition {partition}: out of order or repeated"
        assert not load.committed - set(read), f"partition {partition}: lost {sorted(load.committed - set(read))[:10]}"
        assert not load.aborted & set(read), f"partition {partition}: aborted {sorted(load.aborted & set(read))[:10]}"
    assert len({tuple(read) for read in numbers.values()}) == 1, "a transaction is visible in some partitions only"
