"""All writers and readers of a kill test, and the checks at its end."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import TopicPartition
from kafka.admin import TransactionState
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from compat_tests.clients import load
from compat_tests.clients.common import ClientError, wait_until
from compat_tests.kill.history import Log, Stored
from compat_tests.kill.writers import LIBRDKAFKA
from compat_tests.limits import READ_S

NOT_LOADED = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
DECIDED = [TransactionState.PREPARE_COMMIT.value, TransactionState.PREPARE_ABORT.value]

T = TypeVar("T")


@contextmanager
def running(workers: Iterable[Any]) -> Iterator[None]:
    """Start writers or readers; at the end stop them and wait for all their responses.

    After an error they are only stopped.
    """
    started: list[Any] = []
    try:
        for worker in workers:
            started.append(worker)
            worker.start()
        yield
    except BaseException:
        for worker in started:
            worker.abandon()
        raise
    for worker in started:
        worker.stop()
    for worker in started:
        worker.join()


def request_until_loaded(ask: Callable[..., T], *of: Any) -> T:
    """Return a coordinator's response once it has loaded."""

    def answer() -> list[T]:
        try:
            return [ask(*of)]
        except NOT_LOADED:
            return []
        except ClientError as error:
            if error.code not in [each.errno for each in NOT_LOADED]:
                raise
            return []

    answers: list[T] = wait_until(answer, READ_S, "coordinators to load")
    return answers[0]


def wait_for_markers(bootstrap: str) -> None:
    """Wait until decided transactions are visible: a commit is acknowledged before its markers are written."""
    with load("kafka_python").Admin(bootstrap) as admin:

        def under_way() -> list[Any]:
            listed = request_until_loaded(lambda: admin._admin.list_transactions(state_filters=DECIDED))
            return [each for of_broker in listed.values() for each in of_broker]

        wait_until(lambda: not under_way(), READ_S, lambda: f"the markers of {under_way()}")


def read_whole(bootstrap: str, topic: str, partitions: int, isolation: str, timeout_s: float = READ_S) -> Log:
    """Return all records of a topic, up to the end of each partition that the broker returns for the isolation level.

    With read_committed this includes transactions that have just been committed.
    """
    if isolation == "read_committed":
        wait_for_markers(bootstrap)
    consumer = confluent_kafka.Consumer(
        {
            **LIBRDKAFKA,
            "bootstrap.servers": bootstrap,
            "group.id": "reads-everything",
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    log: dict[int, list[Stored]] = {p: [] for p in range(partitions)}
    try:
        wanted = []
        ends = {}
        for partition in log:
            first, ends[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
            wanted.append(TopicPartition(topic, partition, first))
        consumer.assign(wanted)
        unfinished = set(log)
        give_up_at = time.monotonic() + timeout_s
        while unfinished:
            assert time.monotonic() < give_up_at, f"no end of partitions {unfinished} of {topic} in {timeout_s} s"
            for message in consumer.consume(1000, timeout=0.2):
                error, index, offset = message.error(), message.partition(), message.offset()
                if error is None:
                    value = message.value()
                    assert index is not None and offset is not None and value is not None
                    log[index].append(Stored(offset, value))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    # A new leader's high watermark may be behind the end that it lists.
                    assert index is not None and offset is not None
                    if offset >= ends[index]:
                        unfinished.discard(index)
                elif not error.retriable():
                    raise AssertionError(f"reading {topic}: {error}")
    finally:
        consumer.close()
    return log
