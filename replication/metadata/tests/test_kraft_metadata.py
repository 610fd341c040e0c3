import pytest

from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.batches.control_records import ControlType, build_control_batch
from odradek.protocol.types import DecodeError
from odradek.replication.metadata.kraft_metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    KraftMetadata,
    KraftMetadataError,
    KraftPartition,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    adopted_offset,
    decode_record,
    mark_adopted,
    read_kraft_metadata,
)
from odradek.replication.tests.kraft import BROKER, TOPIC, batch_of, config, framed, put, put_log, topic

A, B = bytes(15) + b"a", bytes(15) + b"b"


def replayed(*records):
    metadata = KraftMetadata()
    for record in records:
        metadata.replay(record if isinstance(record, bytes) else framed(record))
    return metadata


def read(fs):
    return read_kraft_metadata(fs, "/data")


# Records


ONES = b"\x11" * 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01020005746573741111111111111111111111111111111100", TopicRecord(name="test", topic_id=ONES)),
        ("0104000205746573740261026200", config(TOPIC, "test", "a", "b")),
        ("010400040102610000", config(BROKER, "", "a", None)),
        (
            "01030200000001111111111111111111111111111111110300000001000000020200000001010100000001000000050000000603"
            "11111111111111111111111111111111111111111111111111111111111111110200010101050200000002",
            PartitionRecord(
                partition_id=1, topic_id=ONES, replicas=[1, 2], isr=[1], leader=1, leader_epoch=5, partition_epoch=6,
                directories=[ONES, ONES], eligible_leader_replicas=[2], leader_recovery_state=1,
            ),
        ),
        (
            "0105020000000111111111111111111111111111111111040005020000000101040000000202050200000002081102"
            "11111111111111111111111111111111",
            PartitionChangeRecord(
                partition_id=1, topic_id=ONES, isr=[1], leader=2, replicas=[2], directories=[ONES]
            ),
        ),
        ("0109001111111111111111111111111111111100", RemoveTopicRecord(topic_id=ONES)),
        (
            "010f0000000001000000000000000200000000000003e800",
            ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000),
        ),
        ("011700010002026e", BeginTransactionRecord(name="n")),
        ("01180000", EndTransactionRecord()),
        ("0119000100020272", AbortTransactionRecord(reason="r")),
        ("01140000", None),
    ],
)  # fmt: skip
def test_records_as_apache_kafka_writes_them(text, expected):
    """Bytes from the serializer of Apache Kafka 4.3.0; the last record is a NoOpRecord."""
    data = bytes.fromhex(text)
    assert decode_record(data) == expected
    if expected is not None:
        assert framed(expected) == data


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_a_partition(version):
    metadata = replayed(
        TopicRecord(name="t", topic_id=A),
        framed(PartitionRecord(partition_id=0, topic_id=A, replicas=[1, 2], leader_epoch=4), version),
        framed(PartitionChangeRecord(partition_id=0, topic_id=A, isr=[1]), version),
        framed(PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1), version),
        framed(PartitionChangeRecord(partition_id=0, topic_id=A, leader=3, replicas=[3, 1]), version),
    )
    assert metadata.topics["t"].partitions == {0: KraftPartition((3, 1), 6)}


def test_topics_configurations_and_producer_ids():
    metadata = replayed(
        *topic("a", A, partitions=3),
        *topic("b", B, replicas=(2,)),
        config(TOPIC, "a", "retention.ms", "-1"),
        config(TOPIC, "a", "cleanup.policy", "compact"),
        config(TOPIC, "a", "cleanup.policy", None),
        config(TOPIC, "b", "retention.ms", "1"),
        config(TOPIC, "b", "retention.ms", None),
        config(BROKER, "", "log.retention.ms", "5"),
        config(BROKER, "2", "log.cleaner.threads", "2"),
        config(16, "metrics", "interval.ms", "5"),
        ProducerIdsRecord(broker_id=1, next_producer_id=1000),
        ProducerIdsRecord(broker_id=1, next_producer_id=2000),
    )
    assert {name: (t.topic_id, t.partition_count) for name, t in metadata.topics.items()} == {"a": (A, 3), "b": (B, 1)}
    assert (metadata.topics["a"].has_replica_on(1), metadata.topics["b"].has_replica_on(1)) == (True, False)
    assert metadata.topic_configs == {"a": {"retention.ms": "-1"}}
    assert metadata.broker_configs == {None: {"log.retention.ms": "5"}, 2: {"log.cleaner.threads": "2"}}
    assert metadata.client_metrics == {"metrics": {"interval.ms": "5"}}
    assert metadata.next_producer_id == 2000


def test_a_deleted_topic_goes_with_its_configuration_and_may_be_created_again():
    metadata = replayed(
        *topic("a", A, partitions=3),
        config(TOPIC, "a", "retention.ms", "-1"),
        RemoveTopicRecord(topic_id=A),
        *topic("a", B),
    )
    assert (metadata.topics["a"].topic_id, metadata.topics["a"].partition_count) == (B, 1)
    assert metadata.topic_configs == {}


def test_a_metadata_transaction_takes_effect_as_a_whole():
    first, second = topic("a", A), topic("b", B)
    begin, end = BeginTransactionRecord(name="some"), EndTransactionRecord()
    assert list(replayed(begin, *first, end, *second).topics) == ["a", "b"]
    assert list(replayed(begin, *first, AbortTransactionRecord(reason="x"), *second).topics) == ["b"]
    assert list(replayed(*second, begin, *first).topics) == ["b"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "has no header"),
        (framed(TopicRecord(name="t", topic_id=A), frame_version=2), "frame version 2"),
        (framed(TopicRecord(name="t", topic_id=A), version=1), "TopicRecord has version 1"),
        (framed(PartitionRecord(topic_id=A)), "a topic id that does not exist"),
        (framed(RemoveTopicRecord(topic_id=A)), "a topic id that does not exist"),
        (framed(config(BROKER, "one", "a", "b")), "no number: 'one'"),
        (framed(TopicRecord(name="t", topic_id=A))[:-3], "past the end"),
    ],
)
def test_a_record_that_cannot_be_applied(value, message):
    with pytest.raises(DecodeError, match=message):
        replayed(value)


def test_a_change_of_a_partition_that_does_not_exist():
    with pytest.raises(DecodeError, match="a partition that does not exist: 7"):
        replayed(*topic("a", A), PartitionChangeRecord(partition_id=7, topic_id=A))


# Files


def test_without_a_metadata_log_or_without_records_there_is_no_metadata():
    fs = MemoryFileSystem()
    assert read(fs) is None
    put(fs, f"{0:020d}.log")
    put(fs, f"{0:020d}-0000000000.checkpoint", batch_of([config(BROKER, "", "min.insync.replicas", "1")]))
    assert read(fs) is None


def test_the_newest_snapshot_and_later_records_are_read():
    fs = MemoryFileSystem()
    put(fs, f"{0:020d}.log", batch_of(topic("old", A)), batch_of([RemoveTopicRecord(topic_id=A)], 2))
    put(fs, f"{3:020d}-0000000001.checkpoint", b"damaged, and older than the other")
    control = build_control_batch(
        ControlType.COMMIT, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    put(fs, f"{5:020d}-0000000002.checkpoint", control, batch_of(topic("new", B)))
    put(fs, f"{9:020d}-0000000002.checkpoint.part", b"incomplete")
    put(fs, f"{3:020d}.log", batch_of([TopicRecord(name="lost", topic_id=A)] * 2 + topic("a", A), 3), control)
    metadata = read(fs)
    assert list(metadata.topics) == ["new", "a"]
    assert metadata.end_offset == 7


def test_an_incomplete_batch_at_the_end_was_never_written():
    whole = batch_of(topic("a", A))
    torn = batch_of(topic("b", B), 2)
    for tail in (torn[:20], torn[:-1], torn[:-1] + b"x", bytes(1000)):
        fs = MemoryFileSystem()
        put(fs, f"{0:020d}.log", whole, tail)
        metadata = read(fs)
        assert (list(metadata.topics), metadata.end_offset) == (["a"], 2)


def test_damage_before_the_end_is_reported():
    fs = MemoryFileSystem()
    put(fs, f"{0:020d}.log", batch_of(topic("a", A)), b"damage")
    put(fs, f"{2:020d}.log", batch_of(topic("b", B), 2))
    with pytest.raises(KraftMetadataError, match=r"/data/__cluster_metadata-0/0{20}.log is damaged at byte \d+"):
        read(fs)


def test_a_damaged_snapshot_is_reported():
    fs = MemoryFileSystem()
    put(fs, f"{9:020d}-0000000002.checkpoint", batch_of(topic("a", A))[:-1])
    with pytest.raises(KraftMetadataError, match=r"0000000002.checkpoint is damaged at byte 0"):
        read(fs)


def test_missing_segments_are_reported():
    fs = MemoryFileSystem()
    put(fs, f"{4:020d}-0000000002.checkpoint", batch_of(topic("a", A)))
    put(fs, f"{6:020d}.log", batch_of(topic("b", B), 6))
    with pytest.raises(KraftMetadataError, match="begins at offset 6, but offsets from 4 on are missing"):
        read(fs)


def test_a_record_of_a_newer_version_is_reported_with_its_file():
    fs = MemoryFileSystem()
    put_log(fs, [framed(TopicRecord(name="t", topic_id=A), version=3)])
    with pytest.raises(KraftMetadataError, match=r"0{20}.log cannot be read: TopicRecord has version 3"):
        read(fs)


def test_the_adopted_offset_is_recorded_in_the_directory():
    fs = MemoryFileSystem()
    put_log(fs, topic("a", A))
    assert adopted_offset(fs, "/data") == 0
    mark_adopted(fs, "/data", 2)
    assert adopted_offset(fs, "/data") == 2
    assert read(fs).end_offset == 2
