"""All writers and readers of a kill test together, and what is asked of them at the end."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka import TopicPartition

from compat_tests.kill.history import Log, Stored
from compat_tests.kill.writers import LIBRDKAFKA

READ_SECONDS = 60


@contextmanager
def running(workers: Iterable[Any]) -> Iterator[None]:
    """Starts writers or readers, stops them on leaving and waits until they have all their answers.

    Where an error leaves, they are only told to end.
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


def read_whole(bootstrap: str, topic: str, partitions: int, isolation: str, timeout_s: float = READ_SECONDS) -> Log:
    """All records of a topic, up to the end of each partition that the broker answers for that isolation level."""
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
        for partition in log:
            first, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
            wanted.append(TopicPartition(topic, partition, first))
        consumer.assign(wanted)
        unfinished = set(log)
        give_up_at = time.monotonic() + timeout_s
        while unfinished:
            assert time.monotonic() < give_up_at, f"no end of partitions {unfinished} of {topic} in {timeout_s} s"
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    log[message.partition()].append(Stored(message.offset(), message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                elif not error.retriable():
                    raise AssertionError(f"reading {topic}: {error}")
    finally:
        consumer.close()
    return log
