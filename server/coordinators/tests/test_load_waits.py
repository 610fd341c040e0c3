"""Requests for offsets that wait for the load of a coordinator.

librdkafka repeats a commit only twice, soon, and does not repeat OffsetFetch of an application.
"""

import pytest

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators import runtime as coordinator_runtime
from odradek.server.coordinators.marker_sender import TransactionMarker
from odradek.server.coordinators.tests.test_writes import (
    OFFSETS,
    TIMEOUT_MS,
    World,
    append_only_once,
    commit_code,
    fetch_code,
    fetched_offset,
)
from odradek.server.handlers.coordinators import group_offsets
from odradek.server.tests.background import run_iteration


@pytest.fixture
def world():
    return World()


def begin_load(world):
    """Lead again while the last commit, of the offset 2, is not replicated."""
    world.commit(1)
    world.follow()
    world.commit(2)
    world.groups.resign(0)
    world.groups.lead(world.offsets)


def run_all(world):
    """Run the reactor, and let the other replica follow, until nothing is due."""
    world.follow()
    while run_iteration(world.clock):
        world.follow()


def test_a_commit_that_is_loaded_before_it_is_replicated_is_awaited(world):
    """The former leader may have acknowledged it: the offset before it must not be returned either."""
    begin_load(world)
    world.clock.advance(0)
    world.clock.advance(0)
    fetching = world.begin_fetch()
    assert fetching == []
    world.follow()
    world.clock.advance(0)
    assert fetched_offset(fetching) == world.fetch() == 2


def test_an_offset_whose_marker_is_loaded_before_it_is_replicated_is_awaited(world):
    world.init()
    world.commit(1)
    world.commit_in_transaction(5)
    world.follow()
    world.groups.end_transaction(
        0, TransactionMarker(7, 1, 0, True).encode(world.now_ms()), producer_id=7, is_commit=True,
        transaction_version=2,
        done=lambda error: None,
    )  # fmt: skip
    world.groups.resign(0)
    world.groups.lead(world.offsets)
    world.clock.advance(0)
    world.clock.advance(0)
    fetching = world.begin_fetch(), world.begin_fetch(require_stable=True)
    assert fetching == ([], [])
    world.follow()
    world.clock.advance(0)
    assert [fetched_offset(answers) for answers in fetching] == [5, 5]


@pytest.mark.parametrize("has_end", [True, False])
def test_a_request_waits_for_a_load_as_long_as_for_a_write(has_end):
    world = World(TIMEOUT_MS)
    begin_load(world)
    world.clock.advance(0)
    world.clock.advance(0)
    committing, fetching = world.commit(3), world.begin_fetch()
    world.clock.advance(TIMEOUT_MS / 1000 - 0.1)
    assert (committing, fetching) == ([], [])
    if has_end:
        world.follow()
        world.clock.advance(0)
        world.clock.advance(0)
        world.follow()
        assert (commit_code(committing), fetched_offset(fetching)) == (ErrorCode.NONE, 2)
        assert world.fetch() == 3
        return
    world.clock.advance(0.1)
    assert commit_code(committing) is fetch_code(fetching) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert commit_code(world.commit(3)) is world.fetch_error() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.follow()
    assert world.fetch() == 2


def test_a_request_gets_not_coordinator_if_the_leadership_ends_during_the_load(world):
    begin_load(world)
    committing, fetching = world.commit(3), world.begin_fetch()
    assert (committing, fetching) == ([], [])
    world.groups.resign(0)
    world.clock.advance(0)
    assert commit_code(committing) is fetch_code(fetching) is ErrorCode.NOT_COORDINATOR


def test_a_fetch_waits_for_the_next_load_too(world):
    world.commit(1)
    world.follow()
    world.commit(2)
    for _ in range(3):
        world.groups.resign(0)
        world.groups.lead(world.offsets)
        fetching = world.begin_fetch()
    world.clock.advance(0)
    assert fetching == []
    world.follow()
    for _ in range(3):
        world.clock.advance(0)
    assert fetched_offset(fetching) == 2


def test_a_fetch_of_groups_of_several_shards_waits_once():
    world = World(TIMEOUT_MS)
    world.groups._partition_count = lambda: 8
    partitions = [world.offsets, *(make_partition(index) for index in range(1, 8))]
    world.groups.lead_only(partitions)
    world.clock.advance(0)
    world.clock.advance(0)
    groups = {world.groups.index_of(name): name for name in map(str, range(100))}
    assert len(groups) == 8
    for group in groups.values():
        world.commit(1, group)
    world.groups.lead_only([])
    world.groups.lead_only(partitions)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group) for group in groups.values()])
    answers = world.ask(group_offsets.offset_fetch, request, 9)
    for _ in range(9):
        world.clock.advance(0)
    assert answers == []
    world.clock.advance(TIMEOUT_MS / 1000)
    world.clock.advance(0)
    [answer] = answers
    assert {group.error_code for group in answer.groups} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


def make_partition(index):
    log = open_partition_log(
        MemoryFileSystem(), f"/d/{OFFSETS}-{index}", OFFSETS, index, LogConfig({}), now_ms=0, is_clean=True
    )
    partition = Partition(OFFSETS, OFFSETS[:16].encode(), index, 1)
    partition.apply(PartitionMetadata(1, 5, (1, 2), (1, 2)), log)
    return partition


def test_a_commit_after_the_load_does_not_overtake_those_that_wait():
    world = World(slice_s=0.0)

    run_all(world)
    world.groups.resign(0)
    run_all(world)
    world.groups.lead(world.offsets)
    others = [world.commit(1, f"other-{number}") for number in range(5)]
    first = world.commit(5)
    while world.groups.shard(0).coordinator_state is CoordinatorState.LOADING:
        assert run_iteration(world.clock)
        world.follow()
    assert not first
    second = world.commit(10)
    run_all(world)
    assert [commit_code(answers) for answers in (*others, first, second)] == [ErrorCode.NONE] * 7
    assert world.stored() == 10
    assert not world.groups._loads


def test_a_large_commit_waits_also_for_a_load_that_begins_while_it_is_prepared():
    world = World(slice_s=0.0)

    names = [f"t{number}" for number in range(13)]
    for number, name in enumerate(names, 1):
        partitions = (PartitionMetadata(1, 0, (1,), (1,)),) * 10
        world.metadata.put_topic(TopicMetadata(name, bytes([number]) * 16, partitions))
    rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=5) for index in range(10)]
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name=name, partitions=rows) for name in names]
    )
    world.groups.resign(0)
    run_all(world)
    world.groups.lead(world.offsets)
    committing = world.ask(group_offsets.offset_commit, request, 9)
    while world.groups._loads:
        run_iteration(world.clock)
    world.commit(2, "other")
    world.groups._reload(world.groups._contexts[0])
    for _ in range(30):
        run_iteration(world.clock)
    assert not committing
    run_all(world)
    assert commit_code(committing) is ErrorCode.NONE


def test_requests_wait_no_longer_although_leaders_change_repeatedly():
    world = World(TIMEOUT_MS)
    begin_load(world)
    committing = world.commit(3)
    for _ in range(3):
        world.clock.advance(TIMEOUT_MS / 1000 / 3)
        world.groups.resign(0)
        world.groups.lead(world.offsets)
    world.clock.advance(0)
    assert commit_code(committing) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_load_that_begins_again_at_once_has_waits_of_its_own(world, monkeypatch):
    """The disk is full while the offsets of a topic are deleted that was deleted during the load."""
    for group in ("g", "h"):
        world.commit(1, group)
    world.follow()
    monkeypatch.setattr(coordinator_runtime, "_RECORDS_PER_BATCH", 1)
    world.groups.resign(0)
    world.groups.lead(world.offsets)
    world.recreate_topic()
    committing, fetching = world.commit(7, "x"), world.begin_fetch("x")
    with monkeypatch.context() as patch:
        appended = append_only_once(patch, world)
        while not appended:
            run_iteration(world.clock)
    assert world.groups.shard(0).coordinator_state is CoordinatorState.LOADING
    later = world.commit(8, "x")
    assert (committing, fetching, later) == ([], [], [])
    for _ in range(9):
        world.clock.advance(0)
        world.follow()
    assert (commit_code(committing), commit_code(later)) == (ErrorCode.NONE, ErrorCode.NONE)
    assert fetched_offset(fetching) in (-1, 7, 8)
    assert world.fetch("x") == 8
