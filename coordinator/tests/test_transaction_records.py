"""Record bytes against those of Kafka 4.3's own TransactionLog (Java), as hex."""

from typing import Any

import pytest

from odradek.coordinator.transactions.records import (
    read_transaction_key,
    read_transaction_value,
    transaction_record,
    transaction_tombstone,
)
from odradek.coordinator.transactions.transaction import COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_COMMIT, Transaction
from odradek.protocol.types import DecodeError

NOW_MS = 1_700_000_000_000
KEY = "0000000c7472616e7361637469c3b36e"

VALUES: dict[str, tuple[dict[str, Any], int, int, str]] = {
    "empty, version 0": (
        {"state": EMPTY, "producer_epoch": 0, "start_ms": -1, "partitions": {}},
        -1,
        0,
        "00000000000000000fa000000000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
    ),
    "empty, version 1": (
        {"state": EMPTY, "producer_epoch": 0, "start_ms": -1, "partitions": {}},
        -1,
        1,
        "00010000000000000fa000000000ea6000000000018bcfe56800ffffffffffffffff00",
    ),
    "ongoing, version 0": (
        {"state": ONGOING, "producer_epoch": 0},
        4000,
        0,
        "00000000000000000fa000000000ea60010000000100017400000001000000000000018bcfe568000000018bcfe567fb",
    ),
    "ongoing, version 1": (
        {"state": ONGOING, "producer_epoch": 0, "client_version": 2},
        4000,
        1,
        "00010000000000000fa000000000ea60010202740200000000000000018bcfe568000000018bcfe567fb0200080000000000000fa0"
        "02020002",
    ),
    "decided at the last epoch": (
        {"state": PREPARE_COMMIT, "producer_epoch": 32767, "next_producer_id": 5000, "client_version": 2},
        4000,
        1,
        "00010000000000000fa07fff0000ea60020202740200000000000000018bcfe568000000018bcfe567fb0300080000000000000fa0"
        "0108000000000000138802020002",
    ),
    "complete under the next id": (
        {"state": COMPLETE_COMMIT, "producer_id": 5000, "producer_epoch": 0, "client_version": 2, "partitions": {}},
        4000,
        1,
        "0001000000000000138800000000ea6004010000018bcfe568000000018bcfe567fb0200080000000000000fa002020002",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_records_are_those_of_kafka(name):
    fields, previous, version, expected = VALUES[name]
    transaction = Transaction("t", 4000, 60_000, NOW_MS, EMPTY)
    defaults: dict[str, Any] = {"start_ms": NOW_MS - 5, "partitions": {("t", 0): None}}
    change = transaction.plan_change(why="", **(defaults | fields))
    transaction.producer_id = previous
    record = transaction_record("transactión", transaction.log_value(change), version)
    assert record.key.hex() == KEY
    assert record.value is not None
    assert record.value.hex() == expected
    assert read_transaction_key(record.key) == "transactión"

    value = read_transaction_value(record.value)
    read = Transaction.of_first_record("t", value)
    read.apply(value, None)
    assert (read.state, read.producer_id, read.producer_epoch) == (
        change.state,
        change.producer_id,
        change.producer_epoch,
    )
    assert (read.partitions, read.start_ms, read.last_update_ms, read.timeout_ms) == (
        change.partitions,
        change.start_ms,
        change.last_update_ms,
        change.timeout_ms,
    )
    if version:
        assert (read.previous_producer_id, read.next_producer_id, read.client_version) == (
            previous,
            change.next_producer_id,
            change.client_version,
        )
    assert (read.last_producer_epoch, read.is_pending, read.unmarked) == (-1, False, None)


def test_a_tombstone_has_no_value():
    record = transaction_tombstone("transactión")
    assert (record.key.hex(), record.value) == (KEY, None)


def test_foreign_and_malformed_records():
    assert read_transaction_key(bytes.fromhex("00010001")) == 1
    for key in (b"", b"\x00", b"\x00\x00\x00\x05t"):
        with pytest.raises(DecodeError):
            read_transaction_key(key)
    for value in (b"", b"\x00\x02" + bytes(40), b"\x00\x01\x00"):
        with pytest.raises(DecodeError):
            read_transaction_value(value)
