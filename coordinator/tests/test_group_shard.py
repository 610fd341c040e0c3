"""Rules that no scenario covers: loading, transactional offsets, foreign and malformed records, topic ids."""

import pytest

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups.records import (
    GroupMetadataValue,
    GroupMetadataValueMemberMetadata,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
    offset_commit_tombstone,
)
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.groups.shard_state import DeletedTopic
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.tests.driver import GroupDriver, run_at_once, subscription
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from odradek.protocol.messages.sync_group import SyncGroupRequest

CONTEXT = RequestContext(api_version=3)
TOPIC_ID, OTHER_ID = b"1" * 16, b"2" * 16


def new_shard() -> GroupShard:
    return GroupShard(GroupSettings(), lambda: "id", int)


def commit(offset: int, topic_id: bytes = TOPIC_ID) -> tuple[bytes, bytes | None]:
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1, topic_id=topic_id)
    record = offset_commit_record("g", "t", 0, value)
    return record.key, record.value


def fetched(
    shard: GroupShard, *, require_stable: bool = False, topic_id: bytes = bytes(16)
) -> int | tuple[int, int]:
    """Return the group's error, or the offset and the error of the partition."""
    topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])]
    response = shard.fetch_offsets(
        OffsetFetchRequestGroup(group_id="g", topics=topics), CONTEXT, require_stable=require_stable
    )
    if response.error_code:
        return response.error_code
    item = response.topics[0].partitions[0]
    return item.committed_offset, item.error_code


def test_while_loading_only_heartbeats_succeed():
    shard = new_shard()
    assert shard.coordinator_state is CoordinatorState.LOADING
    beat = shard.heartbeat(HeartbeatRequest(group_id="g"), CONTEXT, "A", 0)
    assert beat.replies[0].response.error_code == ErrorCode.NONE
    nameless = shard.heartbeat(HeartbeatRequest(group_id=""), CONTEXT, "A", 0)
    assert nameless.replies[0].response.error_code == ErrorCode.INVALID_GROUP_ID
    join = shard.join_group(JoinGroupRequest(group_id="g", session_timeout_ms=10_000), CONTEXT, "B", 0)
    assert join.replies[0].response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    early = shard.join_group(JoinGroupRequest(group_id="g", session_timeout_ms=1), CONTEXT, "B", 0)
    assert early.replies[0].response.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    sync = shard.sync_group(SyncGroupRequest(group_id="g"), CONTEXT, "C", 0)
    assert sync.replies[0].response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert fetched(shard) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError) as raised:
        run_at_once(shard.list_groups([], []))
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shard.next_deadline_ms() is None


def test_version_1_reports_a_group_error_for_every_partition():
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    response = GroupShard.absent(GroupSettings()).fetch_offsets(
        OffsetFetchRequestGroup(group_id="g", topics=topics), RequestContext(api_version=1), require_stable=False
    )
    assert response.error_code == 0
    assert [item.error_code for item in response.topics[0].partitions] == [ErrorCode.NOT_COORDINATOR] * 2


def test_transactional_offsets_are_visible_after_the_end_of_their_transaction():
    shard = new_shard()
    shard.replay(*commit(1), offset=0)
    shard.replay(*commit(2), offset=1, producer_id=7)
    run_at_once(shard.finish_loading(0))
    assert fetched(shard) == (1, ErrorCode.NONE)
    assert fetched(shard, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    shard.replay_end_of_transaction(7, is_commit=True)
    assert fetched(shard, require_stable=True) == (2, ErrorCode.NONE)


def test_aborted_overtaken_and_deleted_transactional_offsets_are_never_visible():
    shard = new_shard()
    shard.replay(*commit(1), offset=0, producer_id=7)
    shard.replay_end_of_transaction(7, is_commit=False)
    shard.replay(*commit(2), offset=2, producer_id=8)
    shard.replay(*commit(3), offset=3)
    shard.replay_end_of_transaction(8, is_commit=True)
    run_at_once(shard.finish_loading(0))
    assert fetched(shard, require_stable=True) == (3, ErrorCode.NONE)
    shard.replay(*commit(4), offset=5, producer_id=9)
    shard.replay(offset_commit_tombstone("g", "t", 0).key, None, offset=6)
    shard.replay_end_of_transaction(9, is_commit=True)
    assert fetched(shard, require_stable=True) == (-1, ErrorCode.NONE)


def test_pending_offsets_prevent_expiry_and_are_deleted_with_their_group():
    driver = GroupDriver(GroupSettings(offsets_retention_ms=0))
    driver.load()
    driver.shard.replay(*commit(2), offset=0, producer_id=7)
    driver.wait(600_000)
    assert driver.log == []
    driver.call("delete_groups", "A", ["g"], 2)
    assert [record.value for record in driver.log] == [None, None]
    assert run_at_once(driver.shard.list_groups([], [])) == []
    driver.shard.replay_end_of_transaction(7, is_commit=True)
    assert fetched(driver.shard) == (-1, ErrorCode.NONE)


def test_offsets_of_an_earlier_topic_of_the_same_name_are_not_visible():
    shard = new_shard()
    shard.replay(*commit(1), offset=0)
    run_at_once(shard.finish_loading(0))
    assert fetched(shard, topic_id=OTHER_ID) == (-1, ErrorCode.NONE)
    assert fetched(shard, topic_id=TOPIC_ID) == (1, ErrorCode.NONE)
    assert fetched(shard) == (1, ErrorCode.NONE)


def test_deleting_a_topic_keeps_offsets_of_its_successor():
    driver = GroupDriver()
    driver.load()
    for token, topic_id in (("A", TOPIC_ID), ("B", OTHER_ID)):
        topic = OffsetCommitRequestTopic(
            name="t", topic_id=topic_id, partitions=[OffsetCommitRequestPartition(committed_offset=1)]
        )
        driver.call("commit_offsets", token, OffsetCommitRequest(group_id="g", topics=[topic]), 10)
    driver.take(driver.shard.topics_deleted([DeletedTopic("t", TOPIC_ID)], 0))
    assert fetched(driver.shard) == (1, ErrorCode.NONE)
    result = driver.shard.topics_deleted([DeletedTopic("t", OTHER_ID)], 0)
    assert not result.is_atomic
    driver.take(result)
    assert fetched(driver.shard) == (-1, ErrorCode.NONE)


@pytest.mark.parametrize("member_ids", [["m1"], []])
def test_a_group_whose_leader_is_not_a_member_can_rebalance(member_ids):
    members = [
        GroupMetadataValueMemberMetadata(
            member_id=member_id, client_id="c", client_host="/h", rebalance_timeout=5_000, session_timeout=10_000,
            subscription=subscription(["a"]), assignment=b"",
        )
        for member_id in member_ids
    ]  # fmt: skip
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="gone", members=members)
    driver = GroupDriver()
    driver.log.append(group_metadata_record("g", value))
    driver.load()
    protocol = JoinGroupRequestProtocol(name="range", metadata=subscription(["a"]))
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=5_000, protocol_type="consumer",
        protocols=[protocol],
    )  # fmt: skip
    driver.call("join_group", "j", request, 3)
    driver.wait(6_000)
    answer = driver.answered["j"]
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 2, answer.member_id)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "00"),
        ("0003000167", "0000"),
        ("0002000167", "00630000"),
        ("0002000167", "0003"),
        ("000100016700017400000000", "0004"),
        ("0001", "0004"),
    ],
)
def test_foreign_and_malformed_records_are_skipped(key, value):
    shard = new_shard()
    shard.replay(bytes.fromhex(key), bytes.fromhex(value), 0)
    shard.replay(*commit(1), offset=1)
    run_at_once(shard.finish_loading(0))
    assert fetched(shard) == (1, ErrorCode.NONE)


def test_the_length_of_metadata_is_in_utf16_units():
    driver = GroupDriver(GroupSettings(offset_metadata_max_length=4))
    driver.load()
    for token, text, error in (("A", "😀😀", ErrorCode.NONE), ("B", "😀😀x", ErrorCode.OFFSET_METADATA_TOO_LARGE)):
        topic = OffsetCommitRequestTopic(
            name="t", partitions=[OffsetCommitRequestPartition(committed_offset=1, committed_metadata=text)]
        )
        driver.call("commit_offsets", token, OffsetCommitRequest(group_id="g", topics=[topic]), 9)
        assert driver.answered[token].topics[0].partitions[0].error_code == error
