"""Keys and values of `__transaction_state`: Kafka 4.3's schemas (KIP-98, KIP-890).

A key is an i16 record type and fields; a value is an i16 version and fields; a null value is a tombstone. All versions
are read; the finalized feature `transaction.version` determines the version that is written.
"""

from typing import Final, Protocol

from odradek.coordinator.result import CoordinatorRecord
from odradek.protocol.codec import decode, encode
from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import DecodeError, Int8, Int16, Int32, Int64

TRANSACTION_LOG: Final = 0


class TransactionLogKey(Message):
    """Key of a transactional id."""

    transactional_id: str


class TransactionLogValuePartitionsSchema(Struct):
    """Partitions of one topic."""

    topic: str
    partition_ids: list[Int32]


class TransactionLogValue(Message, versions="0-1", flexible=1):
    """A producer and its transaction. Times are in ms since the Unix epoch, -1 for none."""

    producer_id: Int64
    previous_producer_id: Int64 = field(since=1, tag=0, default=-1)
    next_producer_id: Int64 = field(since=1, tag=1, default=-1)
    producer_epoch: Int16
    next_producer_epoch: Int16 = field(since=1, tag=3, default=-1)
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: list[TransactionLogValuePartitionsSchema] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Int16 = field(since=1, tag=2, default=0)


def transaction_record(transactional_id: str, value: TransactionLogValue, version: int) -> CoordinatorRecord:
    """Return the record that stores a producer and its transaction; version 0 omits the tagged fields."""
    return CoordinatorRecord(_key(transactional_id), version.to_bytes(2, "big") + encode(value, version))


def transaction_tombstone(transactional_id: str) -> CoordinatorRecord:
    """Return the record that deletes a transactional id."""
    return CoordinatorRecord(_key(transactional_id), None)


def _key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return TRANSACTION_LOG.to_bytes(2, "big") + encode(key, 0)


def read_transaction_key(data: bytes) -> str | int:
    """Decode a key. Return the record type alone if it is not a transactional id. Raises DecodeError."""
    record_type = _prefix(data)
    if record_type != TRANSACTION_LOG:
        return record_type
    return decode(TransactionLogKey, 0, data, 2).transactional_id


def read_transaction_value(data: bytes) -> TransactionLogValue:
    """Decode a value of any supported version. Raises DecodeError."""
    version = _prefix(data)
    if not 0 <= version <= TransactionLogValue.last_version:
        raise DecodeError(f"TransactionLogValue version {version} is not supported")
    return decode(TransactionLogValue, version, data, 2)


class _HasProducerIds(Protocol):
    """A `TransactionLogValue` or a `Transaction`."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int


def largest_producer_id(transaction: _HasProducerIds) -> int:
    """Return the largest of a transactional id's producer ids; -1 for none."""
    return max(transaction.producer_id, transaction.previous_producer_id, transaction.next_producer_id)


def _prefix(data: bytes) -> int:
    if len(data) < 2:
        raise DecodeError(f"record of {len(data)} bytes has no version")
    return int.from_bytes(data[:2], "big", signed=True)
