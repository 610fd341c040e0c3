"""Record bytes against those of Kafka 4.3's own GroupCoordinatorRecordSerde and generated classes (Java), as hex."""

import pytest

from odradek.coordinator.groups.classic.generation_records import creation_record, group_from_record
from odradek.coordinator.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetRecords,
    group_metadata_record,
    group_metadata_tombstone,
    offset_commit_record,
    offset_commit_tombstone,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from odradek.protocol.codec import encode
from odradek.protocol.types import ZERO_UUID, DecodeError

TOPIC_ID = bytes(range(1, 17))
NOW_MS = 1_700_000_000_000

COMMIT = OffsetCommitValue(
    offset=123456789012, leader_epoch=5, metadata="méta", commit_timestamp=NOW_MS, topic_id=TOPIC_ID
)
COMMIT_WITHOUT_METADATA = OffsetCommitValue(
    offset=-1, leader_epoch=-1, metadata="", commit_timestamp=NOW_MS, topic_id=TOPIC_ID
)
COMMIT_WITHOUT_ID = OffsetCommitValue(offset=1, metadata="", commit_timestamp=NOW_MS)
COMMIT_WITH_EXPIRY = OffsetCommitValue(
    offset=1,
    leader_epoch=3,
    metadata="m",
    commit_timestamp=NOW_MS,
    expire_timestamp=NOW_MS + 60_000,
    topic_id=TOPIC_ID,
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=1,
    protocol="range",
    leader="c-1",
    current_state_timestamp=NOW_MS,
    members=[
        GroupMetadataValueMemberMetadata(
            member_id="c-1",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout=60_000,
            session_timeout=10_000,
            subscription=b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff",
            assignment=b"\x09\x08",
        ),
        GroupMetadataValueMemberMetadata(
            member_id="s-2",
            group_instance_id="s",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout=60_000,
            session_timeout=10_000,
            subscription=b"\x01\x02",
            assignment=b"",
        ),
    ],
)

WRITTEN = {
    "commit": (
        offset_commit_record("groupé", "topic", 7, COMMIT),
        "0001000767726f7570c3a90005746f70696300000007",
        "00040000001cbe991a1400000005066dc3a974610000018bcfe568000100100102030405060708090a0b0c0d0e0f10",
    ),
    "commit without topic id": (
        offset_commit_record("g", "t", 0, COMMIT_WITHOUT_ID),
        "000100016700017400000000",
        "00040000000000000001ffffffff010000018bcfe5680000",
    ),
    "commit with expiry": (
        offset_commit_record("g", "t", 0, COMMIT_WITH_EXPIRY),
        "000100016700017400000000",
        "0001000000000000000100016d0000018bcfe568000000018bcfe65260",
    ),
    "commit tombstone": (offset_commit_tombstone("g", "t", 3), "000100016700017400000003", None),
    "group tombstone": (group_metadata_tombstone("g"), "0002000167", None),
    "group created": (
        creation_record("g", NOW_MS),
        "0002000167",
        "0003000000000000ffffffff0000018bcfe5680000000000",
    ),
    "group": (
        group_metadata_record("g", GROUP),
        "0002000167",
        "00030008636f6e73756d657200000001000572616e67650003632d310000018bcfe56800000000020003632d31ffff000163000a2f313237"
        "2e302e302e310000ea60000027100000000d000100000001000174ffffffff0000000209080003732d32000173000163000a2f3132372e30"
        "2e302e310000ea600000271000000002010200000000",
    ),
}

METADATA_VERSIONS = [
    "00000008636f6e73756d657200000004000572616e67650003632d31000000010003632d3100016300022f68000027100000000201020000000103",
    "00010008636f6e73756d657200000004000572616e67650003632d31000000010003632d3100016300022f680000ea6000002710000000020102"
    "0000000103",
    "00020008636f6e73756d657200000004000572616e67650003632d310000018bcfe56800000000010003632d3100016300022f680000ea600000"
    "27100000000201020000000103",
    "00030008636f6e73756d657200000004000572616e67650003632d310000018bcfe56800000000010003632d3100016900016300022f680000ea"
    "60000027100000000201020000000103",
    "000409636f6e73756d6572000000040672616e676504632d310000018bcfe568000204632d3102690263032f680000ea60000027100301020203"
    "0000",
]
EMPTY_VERSIONS = [
    "0000000000000009ffffffff00000000",
    "0001000000000009ffffffff00000000",
    "0002000000000009ffffffffffffffffffffffff00000000",
    "0003000000000009ffffffffffffffffffffffff00000000",
    "000401000000090000ffffffffffffffff0100",
]
OFFSET_VERSIONS = [
    "0000000000000000002a00016d0000018bcfe56800",
    "0001000000000000002a00016d0000018bcfe568000000018bcfe65260",
    "0002000000000000002a00016d0000018bcfe56800",
    "0003000000000000002a0000000600016d0000018bcfe56800",
    "0004000000000000002a00000006026d0000018bcfe568000100100102030405060708090a0b0c0d0e0f10",
]


@pytest.mark.parametrize("name", WRITTEN)
def test_records_are_those_of_kafka(name):
    record, key, value = WRITTEN[name]
    assert record.key.hex() == key
    assert (None if record.value is None else record.value.hex()) == value


@pytest.mark.parametrize("value", [COMMIT, COMMIT_WITHOUT_ID, COMMIT_WITH_EXPIRY, COMMIT_WITHOUT_METADATA])
def test_an_offset_is_encoded_as_by_the_codec_and_applied_as_it_is_read(value):
    records = OffsetRecords("grüppe", "t")
    for partition in (0, 1, 2**31 - 1):
        for record in (records.commit(partition, value), records.tombstone(partition)):
            key = OffsetCommitKey(group="grüppe", topic="t", partition=partition)
            assert record.key == b"\0\1" + encode(key, 0)
            if record.value is None:
                assert record.change == ("grüppe", "t", partition, None)
                continue
            version = int.from_bytes(record.value[:2])
            assert record.value[2:] == encode(value, version)
            if record.change is not None:
                assert record.change == ("grüppe", "t", partition, read_offset_commit_value(record.value))


def test_the_shared_part_of_records_depends_on_timestamp_and_topic_id():
    records = OffsetRecords("g", "t")
    for timestamp, topic_id in ((1, TOPIC_ID), (2, TOPIC_ID), (2, ZERO_UUID), (1, TOPIC_ID)):
        value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=timestamp, topic_id=topic_id)
        record = records.commit(0, value)
        assert record.value is not None
        assert read_offset_commit_value(record.value) == value


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version):
    value = read_group_metadata_value(bytes.fromhex(METADATA_VERSIONS[version]))
    (member,) = value.members
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("consumer", 4, "range", "c-1")
    assert value.current_state_timestamp == (NOW_MS if version >= 2 else -1)
    assert member.group_instance_id == ("i" if version >= 3 else None)
    assert member.rebalance_timeout == (60_000 if version >= 1 else -1)
    assert (member.session_timeout, member.subscription, member.assignment) == (10_000, b"\x01\x02", b"\x03")
    assert encode(value, version) == bytes.fromhex(METADATA_VERSIONS[version])[2:]
    group = group_from_record("g", value)
    assert group.members["c-1"].rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_empty_group_is_read(version):
    value = read_group_metadata_value(bytes.fromhex(EMPTY_VERSIONS[version]))
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("", 9, None, None)
    assert value.members == []
    group = group_from_record("g", value)
    assert (group.state.value, group.generation_id) == ("Empty", 9)
    assert (group.protocol_type, group.state_since_ms) == (None, None)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version):
    value = read_offset_commit_value(bytes.fromhex(OFFSET_VERSIONS[version]))
    assert (value.offset, value.metadata, value.commit_timestamp) == (42, "m", NOW_MS)
    assert value.leader_epoch == (6 if version >= 3 else -1)
    assert value.expire_timestamp == (NOW_MS + 60_000 if version == 1 else -1)
    assert value.topic_id == (TOPIC_ID if version == 4 else ZERO_UUID)


def test_keys_are_read():
    legacy = read_key(bytes.fromhex("000000016700017400000001"))
    assert legacy == OffsetCommitKey(group="g", topic="t", partition=1)
    assert read_key(bytes.fromhex("000100016700017400000001")) == legacy
    assert read_key(bytes.fromhex("0002000167")) == GroupMetadataKey(group="g")
    assert read_key(bytes.fromhex("0003000167")) == 3


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x02\x00\x05g", b"\x00\x01\x00\x01g"])
def test_malformed_keys_are_refused(data):
    with pytest.raises(DecodeError):
        read_key(data)


def test_unknown_versions_are_refused():
    with pytest.raises(DecodeError):
        read_offset_commit_value(b"\x00\x05" + bytes(40))
    with pytest.raises(DecodeError):
        read_group_metadata_value(b"\xff\xff" + bytes(40))
