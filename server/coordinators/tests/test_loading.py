"""Loading of coordinators: an unreadable partition affects no other, and transient failures are retried."""

import logging
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.groups.records import OffsetCommitValue, offset_commit_record
from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.partitioning import partition_for
from odradek.log.background.tasks import run_inline
from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.filesystem import LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.record_batch import RECORD_BATCH_OVERHEAD
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.describe_transactions import DescribeTransactionsRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.list_transactions import ListTransactionsRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.protocol.records import Codec, build_batch
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators.groups import GroupCoordinatorRuntime
from odradek.server.coordinators.loading import MAX_RETRY_PAUSE_S
from odradek.server.coordinators.tests.test_writes import World
from odradek.server.handlers.coordinators.groups import list_groups
from odradek.server.request import RequestContext
from odradek.server.tests.faults.test_group_restart import await_coordinator
from odradek.server.tests.wire import Wire, until
from odradek.server.work.slices import Slices
from odradek.testing import OdradekBroker

PARTITIONS = 3
PROPERTIES = {
    "offsets.topic.num.partitions": PARTITIONS,
    "transaction.state.log.num.partitions": PARTITIONS,
    "num.partitions": 1,
}
NAMES = {partition_for(name, PARTITIONS): name for name in "abcdefgh"}
"""A group, and a transactional id, for each partition."""


def commit(wire, group):
    item = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[item])])
    [topic] = wire.ask(request, 8).topics
    return topic.partitions[0].error_code


def initialize(wire, transactional_id):
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    return wire.ask(request, 4).error_code


def damage(broker, topic, index):
    """Set an impossible length in a partition's first record."""
    [segment] = sorted((broker.data_dir / f"{topic}-{index}").glob("*.log"))[:1]
    data = bytearray(segment.read_bytes())
    assert len(data) > RECORD_BATCH_OVERHEAD
    data[RECORD_BATCH_OVERHEAD] = 1
    segment.write_bytes(data)


def test_one_unreadable_batch_affects_its_partition_only():
    assert len(NAMES) == PARTITIONS
    with OdradekBroker({name: str(value) for name, value in PROPERTIES.items()}) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t")
            wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["a"]), 4)
            for name in NAMES.values():
                await_coordinator(wire, name)
                until(lambda name=name: commit(wire, name) == 0)
                until(lambda name=name: initialize(wire, name) == 0)
        broker.stop()
        damage(broker, "__consumer_offsets", 1)
        damage(broker, "__transaction_state", 2)
        broker.start()
        with Wire(broker.port) as wire:
            groups = until(lambda: no_error(wire.ask(ListGroupsRequest())), what="groups to be listed").groups
            assert {group.group_id for group in groups} == {NAMES[0], NAMES[2]}
            listed = until(lambda: no_error(wire.ask(ListTransactionsRequest())), what="transactions to be listed")
            assert {one.transactional_id for one in listed.transaction_states} == {NAMES[0], NAMES[1]}

            described = wire.ask(DescribeGroupsRequest(groups=[NAMES[index] for index in range(PARTITIONS)]), 5)
            assert [group.error_code for group in described.groups] == [0, ErrorCode.NOT_COORDINATOR, 0]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name) for name in NAMES.values()])
            for group in request.groups:
                group.topics = None
            codes = {group.group_id: group.error_code for group in wire.ask(request, 8).groups}
            assert codes == {NAMES[0]: 0, NAMES[1]: ErrorCode.NOT_COORDINATOR, NAMES[2]: 0}
            assert [commit(wire, NAMES[index]) for index in range(PARTITIONS)] == [0, ErrorCode.NOT_COORDINATOR, 0]

            ids = [NAMES[index] for index in range(PARTITIONS)]
            states = wire.ask(DescribeTransactionsRequest(transactional_ids=ids)).transaction_states
            assert [state.error_code for state in states] == [0, 0, ErrorCode.NOT_COORDINATOR]
            assert [initialize(wire, name) for name in ids] == [0, 0, ErrorCode.NOT_COORDINATOR]
        for name in ("__consumer_offsets-1", "__transaction_state-2"):
            lines = [line for line in broker.log_text().splitlines() if "coordinator not loaded" in line]
            [line] = [line for line in lines if name in line]
            assert "offset=0" in line and str(broker.data_dir / name) in line and "restore" in line


def no_error(response):
    return None if response.error_code else response


# -- transient failures ------------------------------------------------------------------------------------------------


@pytest.fixture
def world():
    world = World()
    world.commit(1)
    world.follow()
    world.groups.resign(0)
    world.transactions.stop()
    return world


def raises(error):
    def read(*_, **__):
        raise error

    return read


TRANSIENT = [MemoryError(), OSError(5, "input/output error"), LogDirFailure("/d", "broken")]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
def test_a_load_with_a_transient_failure_is_retried(world, monkeypatch, error, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(world.offsets.log, "read", raises(error))
        world.groups.lead(world.offsets)
        for _ in range(8):
            assert world.groups.shard(0).coordinator_state is CoordinatorState.CLOSED
            [listed] = world.ask(list_groups, ListGroupsRequest(), 5)
            assert listed.groups == []
            world.clock.advance(MAX_RETRY_PAUSE_S)
    failures = [record for record in caplog.records if "coordinator not loaded" in record.message]
    assert len(failures) == 9
    assert all("__consumer_offsets-0" in record.message and "offset=0" in record.message for record in failures)
    world.clock.advance(MAX_RETRY_PAUSE_S)
    world.clock.advance(0)
    assert world.fetch() == 1


def test_pauses_between_attempts_grow(world, monkeypatch):
    attempts = []

    def read(*_, **__):
        attempts.append(world.clock.seconds())
        raise MemoryError

    monkeypatch.setattr(world.offsets.log, "read", read)
    world.groups.lead(world.offsets)
    for _ in range(300):
        world.clock.advance(1)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_retries_end_with_leadership(world, monkeypatch):
    monkeypatch.setattr(world.offsets.log, "read", raises(MemoryError()))
    world.groups.lead(world.offsets)
    world.groups.stop()
    assert world.clock.getDelayedCalls() == []


def test_offsets_of_a_topic_that_is_deleted_between_attempts_are_deleted(world, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(world.offsets.log, "read", raises(MemoryError()))
        world.groups.lead(world.offsets)
    world.recreate_topic()
    world.clock.advance(1)
    world.clock.advance(0)
    world.follow()
    assert world.fetch() == -1


@pytest.mark.parametrize(
    "chunk",
    [b"\0" * 100, bytes(8) + b"\0\0\1\0" + bytes(90)],
    ids=["length too small", "no whole batch"],
)
def test_bytes_without_a_complete_batch_end_the_load(world, monkeypatch, caplog, chunk):
    """A load that went on would read the same bytes again."""
    monkeypatch.setattr(world.offsets.log, "read", lambda *_, **__: SimpleNamespace(read=lambda: chunk))
    world.groups.lead(world.offsets)
    for _ in range(10):
        world.clock.advance(MAX_RETRY_PAUSE_S)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.CLOSED
    attempts = [call for call in world.clock.getDelayedCalls() if call.func == world.groups._retry_load]
    assert attempts == [], "the load is not retried"
    [record] = [record for record in caplog.records if "coordinator not loaded" in record.message]
    assert record.levelno == logging.ERROR


def test_groups_are_not_listed_while_a_shard_loads(world):
    """As in Apache Kafka: the list would be incomplete."""
    world.groups.lead(world.offsets)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.LOADING
    failures: list[Any] = []
    list_groups(world, context(), ListGroupsRequest()).addErrback(failures.append)
    assert failures[0].value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# -- many shards at once -----------------------------------------------------------------------------------------------

SHARDS, BATCHES, RECORD_S, SLICE_S = 8, 150, 0.0001, 0.004


class Shards:
    """Group coordinators of partitions with equally many commits; the replay of a record takes `RECORD_S`."""

    def __init__(self, monkeypatch, codec=Codec.NONE, records_per_batch=1, batches=BATCHES):
        self.clock = Clock()
        self.replayed = Counter()
        self.threads = 0
        original = GroupShard.replay

        def replay(shard, key, value, offset=-1, producer_id=-1):
            self.replayed[shard] += 1
            original(shard, key, value, offset, producer_id)

        monkeypatch.setattr(GroupShard, "replay", replay)
        self.groups = GroupCoordinatorRuntime(
            GroupSettings(), reactor=self.clock, now_ms=lambda: 0, monotonic_ms=lambda: 0, random_uuid=lambda: "id",
            partition_count=lambda: SHARDS, load_buffer_bytes=1 << 20, run_in_thread=self.run_in_thread,
            slices=Slices(self.clock, lambda: self.replayed.total() * RECORD_S, SLICE_S),
        )  # fmt: skip
        self.partitions = []
        for index in range(SHARDS):
            log = open_partition_log(
                MemoryFileSystem(), f"/d/o-{index}", "o", index, LogConfig({}), now_ms=0, is_clean=True
            )
            partition = Partition("__consumer_offsets", b"i" * 16, index, 1)
            partition.apply(PartitionMetadata(1, 5, (1,), (1,)), log)
            self.partitions.append(partition)
            for number in range(batches):
                value = OffsetCommitValue(offset=number, metadata="", commit_timestamp=0)
                record = offset_commit_record("g", "t", 0, value)
                batch = build_batch([(0, record.key, record.value, ())] * records_per_batch, codec=codec)
                partition.append_as_leader(memoryview(batch), required_acks=-1, now_ms=0, origin=Origin.COORDINATOR)

    def run_in_thread(self, work, done):
        self.threads += 1
        self.clock.callLater(0, run_inline, work, done)

    def iterate(self):
        """Run one reactor iteration. Return the number of records that it replayed."""
        before = self.replayed.total()
        calls, self.clock.calls = self.clock.calls, []
        for call in calls:
            call.called = 1
            call.func(*call.args, **call.kw)
        return self.replayed.total() - before

    def states(self):
        return {shard.coordinator_state for shard in self.groups.shards()}


def context():
    made = RequestContext("h", "PLAINTEXT")
    made.api_version = 9
    return made


def test_all_loading_shards_share_the_slices(monkeypatch):
    shards = Shards(monkeypatch)
    shards.groups.lead_only(shards.partitions)
    most, fewest_when_first_is_loaded = 0, None
    for _ in range(1_000):
        most = max(most, shards.iterate())
        if fewest_when_first_is_loaded is None and CoordinatorState.ACTIVE in shards.states():
            fewest_when_first_is_loaded = min(shards.replayed[shard] for shard in shards.groups.shards())
        if shards.states() == {CoordinatorState.ACTIVE}:
            break
    assert set(shards.replayed.values()) == {BATCHES}
    assert most * RECORD_S < SLICE_S + 32 * RECORD_S, "a step has 32 records"
    assert len(shards.replayed) == SHARDS
    assert fewest_when_first_is_loaded is not None
    assert fewest_when_first_is_loaded > BATCHES / 2, "no shard waits until others are loaded"


def test_requests_are_refused_only_while_their_shard_loads(monkeypatch):
    shards = Shards(monkeypatch)
    shards.groups.lead(shards.partitions[0])
    for _ in range(100):
        if shards.states() == {CoordinatorState.ACTIVE}:
            break
        fetched = shards.groups.shard(0).fetch_offsets(
            OffsetFetchRequestGroup(group_id="g", topics=None), context(), require_stable=False
        )
        assert fetched.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shards.iterate()
    fetched = shards.groups.shard(0).fetch_offsets(
        OffsetFetchRequestGroup(group_id="g", topics=None), context(), require_stable=False
    )
    assert fetched.error_code == 0
    assert shards.replayed.total() == BATCHES


def test_the_load_of_a_resigned_shard_ends(monkeypatch):
    shards = Shards(monkeypatch)
    for give_up in (lambda: shards.groups.resign(0), lambda: shards.partitions[0].retire()):
        shards.replayed.clear()
        shards.groups.lead(shards.partitions[0])
        while not shards.replayed:
            shards.iterate()
        assert shards.replayed.total() < BATCHES
        give_up()
        shards.groups.lead_only([])
        for _ in range(20):
            shards.iterate()
        assert shards.replayed.total() < BATCHES
        assert shards.clock.getDelayedCalls() == []


def test_a_load_ends_without_a_warning_when_the_broker_stops(monkeypatch, caplog):
    shards = Shards(monkeypatch)
    shards.groups.lead_only(shards.partitions)
    shards.iterate()
    shards.groups._slices.stop()
    shards.groups.stop()
    for _ in range(20):
        shards.iterate()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("records", [1, 2_000], ids=["small", "large when decompressed"])
def test_batches_that_may_be_large_are_decompressed_on_a_thread(monkeypatch, records):
    shards = Shards(monkeypatch, Codec.ZSTD, records, batches=3)
    shards.groups.lead(shards.partitions[0])
    most = 0
    while shards.states() != {CoordinatorState.ACTIVE}:
        most = max(most, shards.iterate())
    assert shards.replayed.total() == 3 * records
    assert shards.threads == 1 + (3 if records > 1 else 0)
    assert most * RECORD_S < SLICE_S + 32 * RECORD_S, "a step has 32 records"
