"""Transactions of librdkafka's producer, in a separate process: a comparison with a client in common use.

    python -m benchmarks.client_transactions <bootstrap> <topic> <records a transaction> <bytes a record> <seconds>

Prints the number of transactions committed within the time, and the duration.
"""

from __future__ import annotations

import sys
import time
import uuid

from confluent_kafka import Producer

WARM_UP_TRANSACTIONS = 20


def main() -> None:
    bootstrap, topic = sys.argv[1:3]
    records, size_bytes, seconds = map(int, sys.argv[3:6])
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"bench-{uuid.uuid4()}", "linger.ms": 0, "acks": "all"}
    )
    producer.init_transactions(30)
    value = b"x" * size_bytes

    def transact() -> None:
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(30)

    for _ in range(WARM_UP_TRANSACTIONS):
        transact()
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        transact()
        count += 1
    print(count, time.monotonic() - start)


if __name__ == "__main__":
    main()
