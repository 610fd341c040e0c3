"""Groups, their members and their lag, as values."""

from typing import Final, NamedTuple

from odradek.tools.kafka.topics.offsets import TopicPartition

SHARE: Final = "share"
STREAMS: Final = "streams"


class ListedGroup(NamedTuple):
    """A group in a list. `type` is empty if the broker is older than Kafka 3.8."""

    group: str
    state: str
    type: str
    protocol_type: str
    coordinator: int


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[TopicPartition]


class Group(NamedTuple):
    """A group with its members. `assignor` is the strategy that distributes the partitions."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: list[Member]


class PartitionLag(NamedTuple):
    """A partition that a group has committed or a member has; None for offsets that do not exist.

    committed: the start offset, if it is a share group
    member: None in a share group, where several members may have a partition
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    lag: int | None
    member: Member | None
