"""CreatePartitions (key 37)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32


class CreatePartitionsRequestCreatePartitionsAssignment(Struct):
    broker_ids: list[Int32]


class CreatePartitionsRequestCreatePartitionsTopic(Struct):
    name: str
    count: Int32
    assignments: list[CreatePartitionsRequestCreatePartitionsAssignment] | None


class CreatePartitionsRequest(Message, key=37, versions="0-3", flexible=2):
    """Add partitions to topics (KIP-195)."""

    topics: list[CreatePartitionsRequestCreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: bool


class CreatePartitionsResponseCreatePartitionsTopicResult(Struct):
    name: str
    error_code: Int16
    error_message: str | None = None


class CreatePartitionsResponse(Message, key=37, versions="0-3", flexible=2):
    """Result for each topic."""

    throttle_time_ms: Int32
    results: list[CreatePartitionsResponseCreatePartitionsTopicResult]
