"""Reader of Apache Kafka's metadata log (KRaft), for the adoption of a broker's metadata.

`__cluster_metadata-0` contains snapshots (`<end offset>-<epoch>.checkpoint`) and segments (`.log`), both made of record
batches. A record's value is a frame version, a record type and a version, each an unsigned varint, then the fields.
`KraftMetadata` replays record values; `read_kraft_metadata` finds them on the disk.

Sources: KIP-630 (snapshots), KIP-746 (record types), KIP-866 and KIP-868 (metadata transactions); record types and
versions as of Apache Kafka 4.3.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from odradek.log.storage.filesystem import FileSystem, write_atomically
from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.codec import decode
from odradek.protocol.codec_source import read_varint_tail
from odradek.protocol.records import (
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    InvalidRecordError,
    crc_is_valid,
    iter_records,
    read_header,
)
from odradek.protocol.schema import Message, field
from odradek.protocol.types import DecodeError, Int8, Int32, Int64, Uuid
from odradek.replication.metadata.kraft_security import SECURITY_RECORDS, KraftSecurity

K = TypeVar("K")

DIRECTORY: Final = "__cluster_metadata-0"
ADOPTED_FILE: Final = "odradek-adopted"
"""In the metadata log's directory: the end offset up to which it was adopted. Kafka ignores a file of this name."""

_FRAME_VERSION = 1
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT = re.compile(r"(\d{20})\.log")
_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_CLIENT_METRICS_RESOURCE = 16
_GROUP_RESOURCE = 32


class TopicRecord(Message, key=2, flexible=0):
    """A topic was created."""

    name: str
    topic_id: Uuid


class PartitionRecord(Message, key=3, versions="0-2", flexible=0):
    """A partition was created, or is described by a snapshot."""

    partition_id: Int32 = field(default=-1)
    topic_id: Uuid
    replicas: list[Int32]
    isr: list[Int32]
    removing_replicas: list[Int32]
    adding_replicas: list[Int32]
    leader: Int32 = field(default=-1)
    leader_recovery_state: Int8 = field(tag=0)
    leader_epoch: Int32 = field(default=-1)
    partition_epoch: Int32 = field(default=-1)
    directories: list[Uuid] = field(since=1)
    eligible_leader_replicas: list[Int32] | None = field(since=2, tag=1, default=None)
    last_known_elr: list[Int32] | None = field(since=2, tag=2, default=None)


class ConfigRecord(Message, key=4, flexible=0):
    """A configuration value was set; null deletes it."""

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


class PartitionChangeRecord(Message, key=5, versions="0-2", flexible=0):
    """A partition was changed. A leader of -2 and null replicas mean no change of these fields."""

    partition_id: Int32 = field(default=-1)
    topic_id: Uuid
    isr: list[Int32] | None = field(tag=0, default=None)
    leader: Int32 = field(tag=1, default=-2)
    replicas: list[Int32] | None = field(tag=2, default=None)
    removing_replicas: list[Int32] | None = field(tag=3, default=None)
    adding_replicas: list[Int32] | None = field(tag=4, default=None)
    leader_recovery_state: Int8 = field(tag=5, default=-1)
    directories: list[Uuid] | None = field(since=1, tag=8, default=None)
    eligible_leader_replicas: list[Int32] | None = field(since=2, tag=6, default=None)
    last_known_elr: list[Int32] | None = field(since=2, tag=7, default=None)


class RemoveTopicRecord(Message, key=9, flexible=0):
    """A topic was deleted, with its partitions and its configuration."""

    topic_id: Uuid


class ProducerIdsRecord(Message, key=15, flexible=0):
    """A block of producer ids was reserved; the next one begins at `next_producer_id`."""

    broker_id: Int32
    broker_epoch: Int64 = field(default=-1)
    next_producer_id: Int64


class BeginTransactionRecord(Message, key=23, flexible=0):
    """The records up to EndTransactionRecord take effect together."""

    name: str | None = field(tag=0, default=None)


class EndTransactionRecord(Message, key=24, flexible=0):
    """The records since BeginTransactionRecord take effect."""


class AbortTransactionRecord(Message, key=25, flexible=0):
    """The records since BeginTransactionRecord have no effect."""

    reason: str | None = field(tag=0, default=None)


_TOPIC_RECORDS: Final[tuple[type[Message], ...]] = (
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ProducerIdsRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
)
_RECORDS: Final = {record.api_key: record for record in _TOPIC_RECORDS + SECURITY_RECORDS}
"""The record types that an adoption needs; the others are skipped."""


class KraftMetadataError(Exception):
    """The metadata log cannot be read; the message contains its path."""


class KraftPartition(NamedTuple):
    """A partition's replicas (broker ids) and leader epoch."""

    replicas: tuple[int, ...]
    leader_epoch: int


class KraftTopic:
    """A topic: its name, its id, and its partitions by number."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, KraftPartition] = {}

    @property
    def partition_count(self) -> int:
        """The number of partitions, which are numbered from 0 without gaps."""
        return max(self.partitions, default=-1) + 1

    def has_replica_on(self, broker_id: int) -> bool:
        """Return whether the broker has a replica of any partition."""
        return any(broker_id in partition.replicas for partition in self.partitions.values())


class KraftMetadata:
    """The metadata that results from the replay of a metadata log.

    topics: topics by name, without deleted ones
    topic_configs: explicit configuration by topic, only of topics that have one
    broker_configs: dynamic configuration by broker id; None is the cluster-wide default
    client_metrics: subscriptions of client metrics by name
    group_configs: configurations of groups, which are not adopted
    next_producer_id: above all allocated producer ids
    security: ACLs, SCRAM credentials, quotas and delegation tokens
    end_offset: offset after the last record; 0 for a log without records
    """

    def __init__(self) -> None:
        self.topics: dict[str, KraftTopic] = {}
        self.topic_configs: dict[str, dict[str, str]] = {}
        self.broker_configs: dict[int | None, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.next_producer_id = 0
        self.security = KraftSecurity()
        self.end_offset = 0
        self._topics_by_id: dict[bytes, KraftTopic] = {}
        self._transaction: list[Message] | None = None

    def replay(self, value: bytes) -> None:
        """Apply one record. Raises DecodeError."""
        record = decode_record(value)
        if isinstance(record, BeginTransactionRecord):
            self._transaction = []
        elif isinstance(record, AbortTransactionRecord):
            self._transaction = None
        elif isinstance(record, EndTransactionRecord):
            records, self._transaction = self._transaction or [], None
            for held in records:
                self._apply(held)
        elif record is not None:
            if self._transaction is None:
                self._apply(record)
            else:
                self._transaction.append(record)

    def _apply(self, record: Message) -> None:
        if isinstance(record, TopicRecord):
            topic = KraftTopic(record.name, record.topic_id)
            self.topics[record.name] = self._topics_by_id[record.topic_id] = topic
        elif isinstance(record, PartitionRecord):
            partition = KraftPartition(tuple(record.replicas), record.leader_epoch)
            self._topic(record.topic_id).partitions[record.partition_id] = partition
        elif isinstance(record, PartitionChangeRecord):
            self._change_partition(record)
        elif isinstance(record, ConfigRecord):
            self._set_config(record)
        elif isinstance(record, RemoveTopicRecord):
            name = self._topic(record.topic_id).name
            del self._topics_by_id[record.topic_id], self.topics[name]
            self.topic_configs.pop(name, None)
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)
        else:
            self.security.apply(record)

    def _topic(self, topic_id: bytes) -> KraftTopic:
        try:
            return self._topics_by_id[topic_id]
        except KeyError:
            raise DecodeError(f"a record names a topic id that does not exist: {topic_id.hex()}") from None

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self._topic(record.topic_id).partitions
        try:
            partition = partitions[record.partition_id]
        except KeyError:
            raise DecodeError(f"a record changes a partition that does not exist: {record.partition_id}") from None
        # A change of leader begins a leader epoch, also one that elects the same leader again.
        epoch = partition.leader_epoch + (record.leader != -2)
        replicas = partition.replicas if record.replicas is None else tuple(record.replicas)
        partitions[record.partition_id] = KraftPartition(replicas, epoch)

    def _set_config(self, record: ConfigRecord) -> None:
        if record.resource_type == _TOPIC_RESOURCE:
            _set(self.topic_configs, record.resource_name, record)
        elif record.resource_type == _BROKER_RESOURCE:
            name = record.resource_name
            if name and not (name.isascii() and name.isdigit()):
                raise DecodeError(f"a configuration record names a broker that is no number: {name!r}")
            _set(self.broker_configs, int(name) if name else None, record)
        elif record.resource_type == _CLIENT_METRICS_RESOURCE:
            _set(self.client_metrics, record.resource_name, record)
        elif record.resource_type == _GROUP_RESOURCE:
            _set(self.group_configs, record.resource_name, record)


def _set(table: dict[K, dict[str, str]], key: K, record: ConfigRecord) -> None:
    configs = table.setdefault(key, {})
    if record.value is None:
        configs.pop(record.name, None)
    else:
        configs[record.name] = record.value
    if not configs:
        del table[key]


def decode_record(value: bytes) -> Message | None:
    """Decode a record's value. Return None for a type that an adoption does not need. Raises DecodeError."""
    try:
        frame_version, position = _read_varint(value, 0)
        record_type, position = _read_varint(value, position)
        version, position = _read_varint(value, position)
    except IndexError:
        raise DecodeError(f"metadata record of {len(value)} bytes has no header") from None
    if frame_version != _FRAME_VERSION:
        raise DecodeError(f"metadata record has frame version {frame_version}, expected {_FRAME_VERSION}")
    record = _RECORDS.get(record_type)
    if record is None:
        return None
    if version > record.last_version:
        raise DecodeError(f"{record.__name__} has version {version}, up to {record.last_version} can be read")
    return decode(record, version, value, position)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    first = data[position]
    return (first, position + 1) if first < 0x80 else read_varint_tail(data, position + 1, first)


def read_kraft_metadata(fs: FileSystem, log_directory: str) -> KraftMetadata | None:
    """Read the metadata from the newest snapshot and the segments after it. Return None if there are no records.

    Blocks while it reads; one batch at a time is in memory. Raises KraftMetadataError, OSError.
    """
    path = f"{log_directory}/{DIRECTORY}"
    try:
        names = fs.list_names(path)
    except FileNotFoundError:
        return None
    metadata = KraftMetadata()
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    if snapshots:
        _replay_snapshot(fs, f"{path}/{snapshots[-1]}", metadata)
        metadata.end_offset = int(snapshots[-1][:20])
    segments = sorted(name for name in names if _SEGMENT.fullmatch(name))
    for name, next_name in zip(segments, [*segments[1:], None], strict=True):
        if next_name is not None and int(next_name[:20]) <= metadata.end_offset:
            continue
        _replay_segment(fs, f"{path}/{name}", int(name[:20]), metadata, is_last=next_name is None)
    return metadata if metadata.end_offset > 0 else None


def _replay_snapshot(fs: FileSystem, path: str, metadata: KraftMetadata) -> None:
    """Replay all records of a snapshot; their offsets have no meaning. Kafka renames a snapshot when it is complete.

    The whole file is read into memory: some 100 bytes for each partition of the cluster.
    """
    content = fs.read_bytes(path)
    position = 0
    for header, batch in _batches(lambda start, size_bytes: content[start : start + size_bytes], len(content), 0):
        _replay_batch(path, header, batch, metadata, 0)
        position += header.size_bytes
    if position != len(content):
        raise KraftMetadataError(f"{path} is damaged at byte {position}")


def _replay_segment(
    fs: FileSystem, path: str, base_offset: int, metadata: KraftMetadata, *, is_last: bool
) -> None:
    if base_offset > metadata.end_offset:
        raise KraftMetadataError(
            f"{path} begins at offset {base_offset}, but offsets from {metadata.end_offset} on are missing"
        )
    file = fs.open(path)
    size_bytes = file.size_bytes()
    position = 0
    for header, batch in _batches(file.pread, size_bytes, metadata.end_offset):
        _replay_batch(path, header, batch, metadata, metadata.end_offset)
        metadata.end_offset = max(metadata.end_offset, header.next_offset)
        position += header.size_bytes
    # A crash may leave an incomplete batch at the very end, which was not acknowledged.
    if position != size_bytes and not is_last:
        raise KraftMetadataError(f"{path} is damaged at byte {position}")


def _batches(
    read: Callable[[int, int], bytes], end: int, first_offset: int
) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """Yield the batches up to the first that is incomplete or has a wrong checksum.

    Batches that end below `first_offset` are not read (None).
    """
    position = 0
    while position + RECORD_BATCH_OVERHEAD <= end:
        header = read_header(read(position, RECORD_BATCH_OVERHEAD))
        if not RECORD_BATCH_OVERHEAD <= header.size_bytes <= end - position:
            return
        batch = None
        if header.next_offset > first_offset:
            batch = read(position, header.size_bytes)
            if not crc_is_valid(batch):
                return
        yield header, batch
        position += header.size_bytes


def _replay_batch(
    path: str, header: BatchHeader, batch: bytes | None, metadata: KraftMetadata, first_offset: int
) -> None:
    if batch is None or header.is_control:
        return
    try:
        for record in iter_records(batch):
            if record.offset >= first_offset:
                metadata.replay(record.value or b"")
    except (InvalidRecordError, CompressionError, DecodeError) as error:
        raise KraftMetadataError(f"{path} cannot be read: {error}") from error


def adopted_offset(fs: FileSystem, log_directory: str) -> int:
    """Return the end offset up to which the metadata log was adopted; 0 if it was not. Raises OSError."""
    try:
        text = fs.read_bytes(f"{log_directory}/{DIRECTORY}/{ADOPTED_FILE}")
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def mark_adopted(fs: FileSystem, log_directory: str, end_offset: int) -> None:
    """Record durably that the metadata log was adopted and must not be adopted again up to `end_offset`. Blocks."""
    write_atomically(fs, f"{log_directory}/{DIRECTORY}/{ADOPTED_FILE}", b"%d" % end_offset)
