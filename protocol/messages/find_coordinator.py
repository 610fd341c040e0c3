"""FindCoordinator (key 10)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class FindCoordinatorRequest(Message, key=10, versions="0-6", flexible=3):
    """Find the coordinator of groups, transactional ids or share groups (batched: KIP-699)."""

    key: str = field(until=3)
    key_type: Int8 = field(since=1)
    coordinator_keys: list[str] = field(since=4)


class FindCoordinatorResponseCoordinator(Struct):
    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None


class FindCoordinatorResponse(Message, key=10, versions="0-6", flexible=3):
    """The coordinators."""

    throttle_time_ms: Int32 = field(since=1)
    error_code: Int16 = field(until=3)
    error_message: str | None = field(since=1, until=3)
    node_id: Int32 = field(until=3)
    host: str = field(until=3)
    port: Int32 = field(until=3)
    coordinators: list[FindCoordinatorResponseCoordinator] = field(since=4)
