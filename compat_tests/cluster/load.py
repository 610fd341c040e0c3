"""Numbered records of an idempotent producer, and the check that each acknowledged one is read once and in order."""

import itertools
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from compat_tests.clients.common import wait_until

MAX_WAITING = 2000
READ_TIMEOUT_S = 60
PACE_S = 0.005
"""Pause between two records of a partition: the load leaves the processors to the brokers."""
UNKNOWN_OFFSET = -1


class NumberedLoad:
    """A thread that writes records 0, 1, 2, ... to each partition of a topic, with acks=all and idempotence.

    requests_in_flight: requests that the producer sends to a broker before it has the responses
    acknowledged: per partition, the offset of each acknowledged number; UNKNOWN_OFFSET if librdkafka concludes the
        acknowledgement from that of a later record, after a timeout
    failures: errors that the producer reported; it retries for `delivery_timeout_ms`
    longest_pause_s: longest time between two acknowledgements of a partition
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        *,
        delivery_timeout_ms: int = 120_000,
        requests_in_flight: int = 5,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "max.in.flight.requests.per.connection": requests_in_flight,
                "linger.ms": 2,
                "message.timeout.ms": delivery_timeout_ms,
                "reconnect.backoff.max.ms": 500,
                "error_cb": lambda error: None,
                "log_level": 0,
            }
        )
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        self.failures: list[str] = []
        self.longest_pause_s = 0.0
        self._last_acknowledged: dict[int, float] = {}
        self._is_over = threading.Event()
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="numbered-load", daemon=True)

    @property
    def count(self) -> int:
        """Number of acknowledged records."""
        return sum(len(numbers) for numbers in self.acknowledged.values())

    def wait_for_more(self, number: int = 200, timeout_s: float = 60) -> None:
        """Wait until that many more records are acknowledged."""
        target = self.count + number
        wait_until(lambda: self.count >= target, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            for partition in range(self._partitions):
                self._producer.produce(
                    self._topic, b"%d" % number, partition=partition, on_delivery=self._make_callback(number)
                )
                self._waiting += 1
            number += 1
            self._producer.poll(0)
            self._is_over.wait(PACE_S)
            while self._waiting > MAX_WAITING and not self._is_over.is_set():
                self._producer.poll(0.05)
        self._producer.flush(READ_TIMEOUT_S)

    def _make_callback(self, number: int):
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._waiting -= 1
            if error is not None:
                self.failures.append(str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - self._last_acknowledged.get(partition, now))
            self._last_acknowledged[partition] = now
            self.acknowledged[partition][number] = UNKNOWN_OFFSET if offset is None else offset

        return delivered


def read_numbers(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of all records in each partition, without those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(partitions)}
    try:
        ends = {}
        for index in range(partitions):
            ends[index] = _end(consumer, topic, index)
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        waiting = {index for index, end in ends.items() if end > 0}
        silent_s = 0.0
        while waiting:
            messages = consumer.consume(1000, timeout=1.0)
            silent_s = 0.0 if messages else silent_s + 1
            assert silent_s < READ_TIMEOUT_S, f"no record for {silent_s} s; partitions not at their ends: {waiting}"
            for message in messages:
                partition, offset, value, error = (
                    message.partition(),
                    message.offset(),
                    message.value(),
                    message.error(),
                )
                assert partition is not None
                assert offset is not None
                if error is None:
                    assert value is not None
                    found[partition].append((offset, int(value)))
                # While records are written all the time, librdkafka reports no end.
                is_record_at_end = error is None and offset >= ends[partition] - 1
                is_end = error is not None and error.code() == KafkaError._PARTITION_EOF and offset >= ends[partition]
                if is_record_at_end or is_end:
                    waiting.discard(partition)
    finally:
        consumer.close()
    return found


def _end(consumer: Consumer, topic: str, index: int) -> int:
    """Return the end of a partition, once it has a leader."""
    ends: list[int] = []

    def has_end() -> bool:
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=5)
        except KafkaException:
            return False
        ends.append(end)
        return True

    wait_until(has_end, timeout_s=READ_TIMEOUT_S)
    return ends[-1]


def check_numbers(load: NumberedLoad, found: dict[int, list[tuple[int, int]]]) -> None:
    """Each acknowledged record is in its partition once, at its offset, and all records are in the order of writing."""
    for partition, rows in found.items():
        disorder = [pair for pair in itertools.pairwise(rows) if pair[0] >= pair[1] or pair[0][1] >= pair[1][1]]
        assert not disorder, f"partition {partition}: out of order or repeated (offset, number): {disorder[:5]}"
        offsets = {number: offset for offset, number in rows}
        acknowledged = load.acknowledged[partition]
        lost = sorted(number for number in acknowledged if number not in offsets)
        assert not lost, f"partition {partition}: lost {len(lost)} acknowledged records: {lost[:10]}"
        moved = [number for number, offset in acknowledged.items() if offset not in (UNKNOWN_OFFSET, offsets[number])]
        assert not moved, f"partition {partition}: at another offset than acknowledged: {moved[:10]}"
