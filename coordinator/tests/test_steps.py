"""Searches and deadlines that concern much of a shard: they run in steps, each of which uses the current state."""

from typing import Any

import pytest

from odradek.coordinator.groups import offset_expiry, topic_deletion
from odradek.coordinator.groups.classic.group import EMPTY
from odradek.coordinator.groups.offsets import OffsetStore
from odradek.coordinator.groups.records import OffsetCommitValue, offset_commit_record
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard_state import DeletedTopic
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.steps import pieces
from odradek.coordinator.tests.driver import GroupDriver, ShardDriver, subscription
from odradek.coordinator.tests.transaction_driver import TransactionDriver
from odradek.coordinator.timers import DEADLINES_PER_TICK
from odradek.coordinator.transactions import expiry as transaction_expiry
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

RETENTION_MS, CHECK_MS, SESSION_MS = 100_000, 50_000, 10_000
STEP = 10
OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch):
    for module in (offset_expiry, topic_deletion):
        monkeypatch.setattr(module, "OFFSETS_PER_STEP", STEP)
    monkeypatch.setattr(transaction_expiry, "TRANSACTIONS_PER_STEP", STEP)


@pytest.fixture
def driver() -> GroupDriver:
    settings = GroupSettings(offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=CHECK_MS)
    driver = GroupDriver(settings)
    driver.load()
    return driver


def commit(driver: GroupDriver, group: str, partitions: int = 1, topic_id: bytes = OLD_ID) -> None:
    items = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(partitions)]
    topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=items)
    request = OffsetCommitRequest(group_id=group, topics=[topic])
    driver.call("commit_offsets", f"commit {len(driver.asked)}", request, 10)


def is_due(driver: ShardDriver[Any]) -> bool:
    deadline_ms = driver.shard.next_deadline_ms()
    return deadline_ms is not None and deadline_ms <= driver.monotonic_ms


def tick(driver: ShardDriver[Any]) -> int:
    """Run one tick that is due. Return the number of records that it writes."""
    before = len(driver.log)
    assert is_due(driver)
    driver.take(driver.shard.tick(driver.now_ms))
    return len(driver.log) - before


def let_pass(driver: ShardDriver[Any], duration_ms: int) -> None:
    """Advance the clocks without a tick: deadlines that become due wait for `tick`."""
    driver.now_ms += duration_ms
    driver.monotonic_ms += duration_ms


def ticks(driver: ShardDriver[Any]) -> list[int]:
    """Run ticks until nothing is due. Return the number of records of each."""
    written = []
    while is_due(driver):
        written.append(tick(driver))
        assert len(written) < 1_000
    return written


def committed(driver: GroupDriver) -> dict[str, int]:
    return {group: len(topics["t"]) for group, topics in driver.shard._state.offsets.visible.groups.items()}


def test_pieces_are_a_copy():
    items = dict.fromkeys(range(5))
    found = []
    for piece in pieces(items, 2):
        found.append(piece)
        items.pop(piece[-1])
    assert found == [[0, 1], [2, 3], [4]]


# -- expiry of offsets -------------------------------------------------------------------------------------------------


def test_offsets_expire_in_steps(driver: GroupDriver):
    for number in range(50):
        commit(driver, f"g{number}")
    let_pass(driver, RETENTION_MS)
    written = ticks(driver)
    assert len(written) >= 50 * 2 // STEP
    assert max(written) <= 2 * STEP
    assert sum(written) == 2 * 50, "an offset and a group each"
    assert not driver.shard._state.groups
    assert driver.shard.next_deadline_ms() == driver.monotonic_ms + CHECK_MS


def test_an_offset_committed_between_two_steps_does_not_expire(driver: GroupDriver):
    for number in range(50):
        commit(driver, f"g{number}")
    let_pass(driver, RETENTION_MS)
    tick(driver)
    commit(driver, "g49", 3)
    commit(driver, "new")
    ticks(driver)
    assert committed(driver) == {"g49": 3, "new": 1}
    assert set(driver.shard._state.groups) == {"g49", "new"}


def test_a_group_with_many_offsets_expires_in_pieces(driver: GroupDriver):
    commit(driver, "g", 35)
    let_pass(driver, RETENTION_MS)
    assert ticks(driver) == [10, 10, 10, 6]
    assert not driver.shard._state.groups


def test_a_step_examines_few_offsets_of_a_large_group(driver: GroupDriver, monkeypatch: pytest.MonkeyPatch):
    commit(driver, "g", 95)
    let_pass(driver, RETENTION_MS)
    examined = []
    is_pending = OffsetStore.is_pending

    def count(store, *key):
        examined.append(key)
        return is_pending(store, *key)

    monkeypatch.setattr(OffsetStore, "is_pending", count)
    while is_due(driver):
        tick(driver)
        assert len(examined) <= STEP
        examined.clear()
    assert committed(driver) == {}


def test_a_group_that_gets_an_offset_while_its_offsets_expire_stays(driver: GroupDriver):
    commit(driver, "g", 35)
    let_pass(driver, RETENTION_MS)
    tick(driver)
    commit(driver, "g", 1)
    ticks(driver)
    assert committed(driver) == {"g": 1}
    assert list(driver.shard._state.groups) == ["g"]


def test_a_group_that_is_joined_while_its_offsets_expire_keeps_the_rest(driver: GroupDriver):
    members = join_all(driver, 1)
    commit_as_member = OffsetCommitRequest(
        group_id="g0", generation_id_or_member_epoch=-1, topics=[OffsetCommitRequestTopic(
            name="u", topic_id=OLD_ID,
            partitions=[OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(35)],
        )],
    )  # fmt: skip
    let_pass(driver, SESSION_MS)
    ticks(driver)
    assert members and driver.shard._state.groups["g0"].state is EMPTY
    driver.call("commit_offsets", "commit", commit_as_member, 10)
    let_pass(driver, RETENTION_MS)
    assert tick(driver) == STEP
    request = JoinGroupRequest(
        group_id="g0", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="r", metadata=subscription(["u"]))],
    )  # fmt: skip
    driver.call("join_group", "again", request, 3)
    ticks(driver)
    assert len(driver.shard._state.offsets.visible.of_group("g0")["u"]) == 25


def test_a_search_ends_although_its_records_are_refused(driver: GroupDriver):
    commit(driver, "g", 35)
    let_pass(driver, RETENTION_MS)
    for _ in range(20):
        if not is_due(driver):
            break
        driver.refused = ErrorCode.NOT_ENOUGH_REPLICAS
        assert tick(driver) == 0
    driver.refused = None
    assert driver.shard.next_deadline_ms() == driver.monotonic_ms + CHECK_MS
    assert committed(driver) == {"g": 35}
    driver.wait(CHECK_MS)
    assert committed(driver) == {}


# -- deletion of topics ------------------------------------------------------------------------------------------------


def delete_topic(driver: GroupDriver) -> None:
    driver.take(driver.shard.topics_deleted([DeletedTopic("t", OLD_ID)], driver.now_ms))


def test_the_offsets_of_a_topic_are_deleted_in_steps(driver: GroupDriver):
    for number in range(50):
        commit(driver, f"g{number}")
    before = len(driver.log)
    delete_topic(driver)
    assert len(driver.log) - before <= STEP
    assert driver.shard.topics_being_deleted() == [DeletedTopic("t", OLD_ID)]
    commit(driver, "g49", 2, NEW_ID)
    commit(driver, "late", 2, NEW_ID)
    written = ticks(driver)
    assert max(written) <= STEP
    assert committed(driver) == {"g49": 2, "late": 2}
    assert driver.shard.topics_being_deleted() == []


def test_a_deletion_restarts_after_a_refused_step(driver: GroupDriver):
    for number in range(50):
        commit(driver, f"g{number}")
    delete_topic(driver)
    driver.refused = ErrorCode.NOT_ENOUGH_REPLICAS
    ticks(driver)
    assert driver.shard.topics_being_deleted() == [DeletedTopic("t", OLD_ID)]
    driver.wait(topic_deletion.RETRY_PAUSE_MS)
    assert committed(driver) == {}
    assert driver.shard.topics_being_deleted() == []


def test_the_offsets_of_one_group_are_deleted_in_steps(driver: GroupDriver):
    commit(driver, "g", 35)
    before = len(driver.log)
    delete_topic(driver)
    assert len(driver.log) - before <= STEP
    commit(driver, "g", 2, NEW_ID)
    assert max(ticks(driver)) <= STEP
    assert committed(driver) == {"g": 2}
    assert driver.shard.topics_being_deleted() == []


def test_an_offset_whose_transaction_ends_between_two_steps_is_deleted(driver: GroupDriver):
    commit(driver, "g", 25)
    pending = OffsetCommitValue(offset=5, metadata="", commit_timestamp=0, topic_id=OLD_ID)
    producer_ids = range(7, 32)
    for producer_id in producer_ids:
        record = offset_commit_record("g", "t", 100 + producer_id, pending)
        driver.shard.replay(record.key, record.value, 0, producer_id)
    delete_topic(driver)
    for producer_id in producer_ids:
        driver.mark(producer_id, True)
    ticks(driver)
    assert committed(driver) == {}


def test_a_deletion_that_is_refused_for_long_is_repeated_less_often(driver: GroupDriver):
    commit(driver, "g")
    driver.refused = ErrorCode.MESSAGE_TOO_LARGE
    delete_topic(driver)
    for _ in range(100):
        driver.refused = ErrorCode.MESSAGE_TOO_LARGE
        driver.wait(1_000)
    assert 5 <= driver.refusals <= 8
    driver.refused = None
    driver.wait(topic_deletion.MAX_RETRY_PAUSE_MS)
    assert committed(driver) == {}


# -- members -----------------------------------------------------------------------------------------------------------


def join_all(driver: GroupDriver, count: int) -> dict[str, str]:
    """Create groups of one member each, whose sessions end at the same time. Return the member ids by group."""
    for number in range(count):
        request = JoinGroupRequest(
            group_id=f"g{number}", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="r", metadata=subscription(["t"]))],
        )  # fmt: skip
        driver.call("join_group", f"g{number}", request, 3)
    driver.wait(3_000)
    return {group: driver.answered[group].member_id for group in (f"g{number}" for number in range(count))}


def test_sessions_that_end_together_end_a_few_at_a_time(driver: GroupDriver):
    members = join_all(driver, 50)
    let_pass(driver, SESSION_MS)
    tick(driver)
    groups = driver.shard._state.groups
    empty = [group for group in members if groups[group].state is EMPTY]
    assert 0 < len(empty) <= DEADLINES_PER_TICK
    beat = HeartbeatRequest(group_id="g49", member_id=members["g49"], generation_id=1)
    driver.call("heartbeat", "beat", beat, 4)
    assert driver.answered["beat"].error_code == ErrorCode.NONE
    ticks(driver)
    assert [group for group in members if groups[group].state is not EMPTY] == ["g49"], "its heartbeat came in between"


def test_a_shard_is_loaded_in_steps(driver: GroupDriver):
    for number in range(1_000):
        commit(driver, f"g{number}")
    shard = driver.new_shard()
    driver.replay_into(shard)
    steps = shard.finish_loading(driver.now_ms)
    assert len(list(steps)) == 5
    assert shard.describe_groups(["g0"], RequestContext(api_version=5))[0].error_code == ErrorCode.NONE


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def transactions() -> TransactionDriver:
    driver = TransactionDriver(TransactionSettings(transaction_version=2))
    driver.load()
    for number in range(50):
        request = InitProducerIdRequest(transactional_id=f"x{number}", transaction_timeout_ms=SESSION_MS)
        driver.call("init_producer_id", f"init {number}", request, 5)
    return driver


def begin(driver: TransactionDriver, number: int) -> None:
    answer = driver.answered[f"init {number}"]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=f"x{number}",
        v3_and_below_producer_id=answer.producer_id,
        v3_and_below_producer_epoch=answer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    driver.call("add_partitions", f"begin {number} {len(driver.asked)}", request, 3)


def states(driver: TransactionDriver) -> set[str]:
    return {state.transaction_state for state in driver.shard.describe([f"x{number}" for number in range(50)])}


def test_each_step_aborts_one_transaction(transactions: TransactionDriver):
    for number in range(50):
        begin(transactions, number)
    assert states(transactions) == {"Ongoing"}
    let_pass(transactions, SESSION_MS + transactions.settings.abort_timed_out_interval_ms)
    written = ticks(transactions)
    assert max(written) == 2, "the decision and, since its marker is written at once, the end"
    assert states(transactions) == {"CompleteAbort"}


def test_transactional_ids_expire_in_steps(transactions: TransactionDriver):
    settings = transactions.settings
    let_pass(transactions, settings.transactional_id_expiration_ms + settings.remove_expired_interval_ms)
    while tick(transactions) == 0:
        pass
    begin(transactions, 49)
    written = ticks(transactions)
    assert max(written) <= STEP
    assert list(transactions.shard._state.transactions) == ["x49"], "it was used in between"


def join(driver: GroupDriver, token: str, group: str) -> None:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription(["t"]))]
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    driver.call("join_group", token, request, 3)


def test_replies_do_not_wait_for_the_record_of_another_group(driver: GroupDriver):
    """The members of one group waited for the replication of the record by which another one becomes empty."""
    join(driver, "expires", "g2")
    driver.wait(3_000)
    member_id = driver.answered["expires"].member_id
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"x")]
    driver.call(
        "sync_group",
        "sync",
        SyncGroupRequest(group_id="g2", generation_id=1, member_id=member_id, assignments=assignments),
        3,
    )
    driver.wait(SESSION_MS - 3_100)
    join(driver, "joins", "g1")
    driver.is_holding = True
    let_pass(driver, 5_000)
    ticks(driver)
    assert driver.answered["joins"].error_code == 0
    assert driver.shard._state.groups["g2"].state is EMPTY
