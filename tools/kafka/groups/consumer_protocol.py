"""Subscriptions and assignments of consumers: the embedded protocol "consumer" of classic groups.

A value is an i16 version and fields. A newer version is read as the newest known one, because versions only add fields.
Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment in Kafka's message definitions.
"""

from typing import Final, TypeVar

from odradek.protocol.codec import MALFORMED, decoder
from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import DecodeError, Int32

PROTOCOL_TYPE: Final = "consumer"

M = TypeVar("M", bound=Message)


class ConsumerTopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str
    partitions: list[Int32]


class ConsumerSubscription(Message, versions="0-3"):
    """The topics that a member subscribes to, and the partitions that it had."""

    topics: list[str]
    user_data: bytes | None = field(default=None)
    owned_partitions: list[ConsumerTopicPartitions] = field(since=1)
    generation_id: Int32 = field(since=2, default=-1)
    rack_id: str | None = field(since=3, default=None)


class ConsumerAssignment(Message, versions="0-3"):
    """The partitions that a member consumes."""

    assigned_partitions: list[ConsumerTopicPartitions]
    user_data: bytes | None = field(default=None)


def read_subscription(data: bytes) -> ConsumerSubscription | None:
    """Decode a subscription; None for empty bytes. Raises DecodeError."""
    return _read(ConsumerSubscription, data)


def read_assignment(data: bytes) -> ConsumerAssignment | None:
    """Decode an assignment; None for empty bytes, which a member without partitions may have. Raises DecodeError."""
    return _read(ConsumerAssignment, data)


def _read(cls: type[M], data: bytes) -> M | None:
    if not data:
        return None
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 0:
        raise DecodeError(f"{cls.__name__} of {len(data)} bytes has no valid version")
    try:
        message: M = decoder(cls, min(version, cls.last_version))(data, 2, len(data))[0]
    except MALFORMED as error:
        raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
    return message
