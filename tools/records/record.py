"""A record, and its decoded parts."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

CREATE_TIME: Final = "CreateTime"
APPEND_TIME: Final = "LogAppendTime"

Headers = Sequence[tuple[str, bytes | None]]


class Decoded(NamedTuple):
    """A decoded key or value: a value of JSON. It tells JSON's null from a null of Kafka."""

    value: Any


Part = bytes | Decoded | None
"""A key or value: bytes as stored if its format is text or it cannot be decoded, None for null."""


class Record(NamedTuple):
    """A consumed record.

    timestamp_ms: None if the record has none
    errors: the reasons why a key or value could not be decoded
    """

    topic: str
    partition: int
    offset: int
    timestamp_type: str
    timestamp_ms: int | None
    key: Part
    value: Part
    headers: Headers
    key_bytes: int = -1
    value_bytes: int = -1
    errors: tuple[str, ...] = ()


def read_record(message: Message) -> Record:
    """Return the record of a message, with the parts as stored."""
    kind, time_ms = message.timestamp()
    key, value = message.key(), message.value()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        APPEND_TIME if kind == TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME,
        None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms,
        key,
        value,
        message.headers() or (),  # type: ignore[arg-type]
        -1 if key is None else len(key),
        -1 if value is None else len(value),
    )
