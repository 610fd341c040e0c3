"""Copies a partition with librdkafka, records and offsets in one transaction; the process may be killed.

Its exit code is 0 at the offset that was the partition's end when it began, and 1 if its producer cannot continue.
SIGALRM ends it if a transaction takes too long: after a lost connection send_offsets_to_transaction may wait forever.
It corresponds to Kafka's TransactionalMessageCopier, which uses the Java client.
"""

import argparse
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

from compat_tests.kill.writers import LIBRDKAFKA

ABORTED_SHARE = 0.3
TIMEOUT_SECONDS = 5


def retry(call: Callable[[], Any]) -> Any:
    """Repeat a call as long as the library returns a retriable error."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


class Copier:
    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._input = TopicPartition(asked.input_topic, asked.input_partition)
        self._producer = confluent_kafka.Producer(
            {
                **LIBRDKAFKA,
                "bootstrap.servers": asked.broker_list,
                "transactional.id": asked.transactional_id,
                "transaction.timeout.ms": 20_000,
                "batch.num.messages": 3,
                "linger.ms": 1,
            }
        )
        self._consumer = confluent_kafka.Consumer(
            {
                **LIBRDKAFKA,
                "bootstrap.servers": asked.broker_list,
                "group.id": asked.consumer_group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
            }
        )

    def run(self) -> None:
        retry(lambda: self._producer.init_transactions(5))
        print("initialised", flush=True)
        _, end = self._until_answered(lambda: self._consumer.get_watermark_offsets(self._input, timeout=2))
        position = self._back_to_committed()
        while position < end:
            signal.alarm(TIMEOUT_SECONDS)
            messages = [m for m in self._consumer.consume(self._asked.transaction_size, 0.2) if m.error() is None]
            if messages:
                position = self._copy(messages)

    def _until_answered(self, ask: Callable[[], Any]) -> Any:
        """Repeat a request until there is a response: the broker may be down at any moment."""
        while True:
            try:
                return ask()
            except KafkaException:
                pass

    def _back_to_committed(self) -> int:
        (committed,) = self._until_answered(lambda: self._consumer.committed([self._input], timeout=2))
        position = max(committed.offset, 0)
        self._consumer.assign([TopicPartition(self._input.topic, self._input.partition, position)])
        return position

    def _copy(self, messages: list[Any]) -> int:
        """Copy messages in one transaction; return the position afterwards."""
        position = messages[-1].offset() + 1
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._producer.produce(self._asked.output_topic, message.value(), message.key(), message.partition())
            offset = TopicPartition(self._input.topic, self._input.partition, position)
            metadata = self._consumer.consumer_group_metadata()
            retry(lambda: self._producer.send_offsets_to_transaction([offset], metadata, 5))
            if random.random() < ABORTED_SHARE:
                retry(lambda: self._producer.abort_transaction(5))
                return self._back_to_committed()
            retry(lambda: self._producer.commit_transaction(5))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            retry(lambda: self._producer.abort_transaction(5))
            return self._back_to_committed()
        return position


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--broker-list", "--input-topic", "--output-topic", "--consumer-group", "--transactional-id"):
        parser.add_argument(name, required=True)
    parser.add_argument("--input-partition", type=int, required=True)
    parser.add_argument("--transaction-size", type=int, default=200)
    try:
        Copier(parser.parse_args()).run()
    except KafkaException as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
