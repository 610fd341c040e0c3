"""Keys and values of `__consumer_offsets`: Kafka 4.3's schemas for committed offsets and classic groups.

A key is an i16 record type and fields; a value is an i16 version and fields; a null value is a tombstone. All versions
are read. The versions written are those of Kafka 4.3: offsets in version 4, or 1 if the commit contains a retention
time; groups in version 3.
"""

from collections.abc import Iterable, Iterator
from struct import Struct as Layout
from typing import Final, NamedTuple, TypeVar

from odradek.coordinator.result import CoordinatorRecord
from odradek.protocol.codec import decode, encode
from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import DecodeError, Int32, Int64, Uuid

OFFSET_COMMIT_LEGACY: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

OFFSET_COMMIT_VERSION: Final = 4
_WITH_EXPIRY: Final = 1
GROUP_METADATA_VERSION: Final = 3


class OffsetCommitKey(Message):
    """Key of a committed offset, for record types 0 and 1."""

    group: str
    topic: str
    partition: Int32


class OffsetCommitValue(Message, versions="0-4", flexible=4):
    """A committed offset. Times are in ms since the epoch, -1 for none."""

    offset: Int64
    leader_epoch: Int32 = field(since=3, default=-1)
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Int64 = field(since=1, until=1, default=-1)
    topic_id: Uuid = field(since=4, tag=0)


class GroupMetadataKey(Message):
    """Key of a classic group."""

    group: str


class GroupMetadataValueMemberMetadata(Struct):
    """A member of a stable generation."""

    member_id: str
    group_instance_id: str | None = field(since=3, default=None)
    client_id: str
    client_host: str
    rebalance_timeout: Int32 = field(since=1, default=-1)
    session_timeout: Int32
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(Message, versions="0-4", flexible=4):
    """A generation of a classic group: an empty one, or one with its assignment."""

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Int64 = field(since=2, default=-1)
    members: list[GroupMetadataValueMemberMetadata]


RecordKey = OffsetCommitKey | GroupMetadataKey
V = TypeVar("V", OffsetCommitValue, GroupMetadataValue)

_KEYS: dict[int, type[OffsetCommitKey] | type[GroupMetadataKey]] = {
    OFFSET_COMMIT_LEGACY: OffsetCommitKey,
    OFFSET_COMMIT: OffsetCommitKey,
    GROUP_METADATA: GroupMetadataKey,
}


def _with_prefix(prefix: int, message: Message, version: int) -> bytes:
    return prefix.to_bytes(2, "big") + encode(message, version)


def _prefix(data: bytes) -> int:
    if len(data) < 2:
        raise DecodeError(f"record of {len(data)} bytes has no version")
    return int.from_bytes(data[:2], "big", signed=True)


class OffsetChange(NamedTuple):
    """A decoded record of a committed offset; a value of None deletes the offset."""

    group: str
    topic: str
    partition: int
    value: OffsetCommitValue | None


class GroupChange(NamedTuple):
    """A decoded record of a classic group; a value of None deletes the group."""

    group: str
    value: GroupMetadataValue | None


class OffsetRecords:
    """Encoder of the records of one group's offsets in one topic. Their common bytes are encoded once.

    A commit of fifty partitions has fifty records; with the codec, encoding would take half of the time of the commit.
    """

    __slots__ = ("_group", "_key_prefix", "_tail", "_tail_of", "_topic")

    def __init__(self, group_id: str, topic: str) -> None:
        self._group = group_id
        self._topic = topic
        key = OffsetCommitKey(group=group_id, topic=topic, partition=0)
        self._key_prefix = _with_prefix(OFFSET_COMMIT, key, 0)[: -_PARTITION.size]
        self._tail_of: tuple[int, bytes] | None = None
        self._tail = b""

    def commit(self, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
        """Return the record that stores a committed offset."""
        key = self._key_prefix + _PARTITION.pack(partition)
        if value.expire_timestamp != -1:
            # Without `change`, because this version omits fields: the applied value must equal the one that is loaded.
            return CoordinatorRecord(key, _with_prefix(_WITH_EXPIRY, value, _WITH_EXPIRY))
        change = OffsetChange(self._group, self._topic, partition, value)
        if value.metadata:
            return CoordinatorRecord(key, _with_prefix(OFFSET_COMMIT_VERSION, value, OFFSET_COMMIT_VERSION), change)
        tail_of = (value.commit_timestamp, value.topic_id)
        if tail_of != self._tail_of:
            self._tail_of, self._tail = tail_of, _tail_without_metadata(*tail_of)
        head = _VALUE_HEAD.pack(OFFSET_COMMIT_VERSION, value.offset, value.leader_epoch)
        return CoordinatorRecord(key, head + self._tail, change)

    def tombstone(self, partition: int) -> CoordinatorRecord:
        """Return the record that deletes a committed offset."""
        change = OffsetChange(self._group, self._topic, partition, None)
        return CoordinatorRecord(self._key_prefix + _PARTITION.pack(partition), None, change)


_PARTITION: Final = Layout(">i")
_VALUE_HEAD: Final = Layout(">hqi")


def _tail_without_metadata(commit_timestamp: int, topic_id: bytes) -> bytes:
    """Return the encoded fields after the leader epoch."""
    value = OffsetCommitValue(offset=0, metadata="", commit_timestamp=commit_timestamp, topic_id=topic_id)
    return _with_prefix(OFFSET_COMMIT_VERSION, value, OFFSET_COMMIT_VERSION)[_VALUE_HEAD.size :]


def offset_commit_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record that stores a committed offset."""
    return OffsetRecords(group_id, topic).commit(partition, value)


def offset_commit_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return OffsetRecords(group_id, topic).tombstone(partition)


def offset_tombstones(group_id: str, partitions: Iterable[tuple[str, int]]) -> Iterator[CoordinatorRecord]:
    """Yield the records that delete committed offsets of one group, given by topic and partition."""
    by_topic: dict[str, OffsetRecords] = {}
    for topic, partition in partitions:
        records = by_topic.get(topic)
        if records is None:
            records = by_topic[topic] = OffsetRecords(group_id, topic)
        yield records.tombstone(partition)


def group_metadata_record(group_id: str, value: GroupMetadataValue) -> CoordinatorRecord:
    """Return the record that stores a generation of a classic group."""
    key = _with_prefix(GROUP_METADATA, GroupMetadataKey(group=group_id), 0)
    encoded = _with_prefix(GROUP_METADATA_VERSION, value, GROUP_METADATA_VERSION)
    return CoordinatorRecord(key, encoded, GroupChange(group_id, value))


def group_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a classic group."""
    key = _with_prefix(GROUP_METADATA, GroupMetadataKey(group=group_id), 0)
    return CoordinatorRecord(key, None, GroupChange(group_id, None))


def read_key(data: bytes) -> RecordKey | int:
    """Decode a key. Return the record type alone if it is not one of these. Raises DecodeError."""
    record_type = _prefix(data)
    cls = _KEYS.get(record_type)
    return record_type if cls is None else decode(cls, 0, data, 2)


def read_offset_commit_value(data: bytes) -> OffsetCommitValue:
    """Decode a committed offset of any supported version. Raises DecodeError."""
    return _read_value(OffsetCommitValue, data)


def read_group_metadata_value(data: bytes) -> GroupMetadataValue:
    """Decode a group of any supported version. Raises DecodeError."""
    return _read_value(GroupMetadataValue, data)


def _read_value(cls: type[V], data: bytes) -> V:
    version = _prefix(data)
    if not 0 <= version <= cls.last_version:
        raise DecodeError(f"{cls.__name__} version {version} is not supported")
    return decode(cls, version, data, 2)
