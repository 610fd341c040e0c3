"""DeleteTopics (key 20)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Uuid


class DeleteTopicsRequestDeleteTopicState(Struct):
    name: str | None = None
    topic_id: Uuid


class DeleteTopicsRequest(Message, key=20, versions="1-6", flexible=4):
    """Delete topics by name or by id (KIP-516)."""

    topics: list[DeleteTopicsRequestDeleteTopicState] = field(since=6)
    topic_names: list[str] = field(until=5)
    timeout_ms: Int32


class DeleteTopicsResponseDeletableTopicResult(Struct):
    name: str | None = field(nullable_since=6)
    topic_id: Uuid = field(since=6)
    error_code: Int16
    error_message: str | None = field(since=5, default=None)


class DeleteTopicsResponse(Message, key=20, versions="1-6", flexible=4):
    """Result for each topic."""

    throttle_time_ms: Int32
    responses: list[DeleteTopicsResponseDeletableTopicResult]
