"""Metadata logs as Apache Kafka writes them, for tests."""

from odradek.protocol.codec import encode
from odradek.protocol.codec_source import write_varint
from odradek.protocol.records import build_batch
from odradek.replication.metadata.kraft_metadata import DIRECTORY, ConfigRecord, PartitionRecord, TopicRecord

TOPIC, BROKER, GROUP = 2, 4, 32


def framed(record, version=None, record_type=None, frame_version=1):
    """Return a record's value."""
    version = record.last_version if version is None else version
    out = bytearray()
    for number in (frame_version, record.api_key if record_type is None else record_type, version):
        write_varint(out, number)
    return bytes(out) + encode(record, min(version, record.last_version))


def batch_of(records, base_offset=0):
    values = [one if isinstance(one, bytes) else framed(one) for one in records]
    return build_batch([(0, None, value, ()) for value in values], base_offset=base_offset)


def topic(name, topic_id, partitions=1, replicas=(1,), leader_epoch=0):
    """Return the records that create a topic."""
    records: list[TopicRecord | PartitionRecord] = [TopicRecord(name=name, topic_id=topic_id)]
    for index in range(partitions):
        partition = PartitionRecord(
            partition_id=index, topic_id=topic_id, replicas=list(replicas), leader_epoch=leader_epoch
        )
        records.append(partition)
    return records


def config(kind, name, key, value):
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def put(fs, name, *batches, log_directory="/data"):
    """Write a file of the metadata log."""
    fs.make_directory(f"{log_directory}/{DIRECTORY}")
    data = b"".join(batches)
    fs.open(f"{log_directory}/{DIRECTORY}/{name}", create=True).write_pieces(0, [data], len(data))


def put_log(fs, records, **options):
    """Write a metadata log of one segment."""
    put(fs, f"{0:020d}.log", batch_of(records), **options)
