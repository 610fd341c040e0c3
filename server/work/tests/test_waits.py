"""Descriptions of the waits of requests without a response, and the time that they may take."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.groups.settings import GroupSettings
from odradek.coordinator.groups.shard import GroupShard
from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.tests.driver import run_at_once
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.fetch import FetchRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.protocol.messages.produce import ProduceRequest
from odradek.protocol.messages.sync_group import SyncGroupRequest
from odradek.server.fetching.purgatory import DelayedOperation
from odradek.server.network.stalls import find_timeout_ms
from odradek.server.work.waits import UNNAMED, Wait, describe_wait, wait_for_all


def test_a_plain_deferred_has_no_name():
    assert describe_wait(Deferred()) == UNNAMED


def test_the_wait_of_a_returned_deferred_is_described():
    first, second = Wait(lambda: "first"), Wait(lambda: "second")
    first.addCallback(lambda _: second)
    assert describe_wait(first) == "first"
    first.callback(None)
    assert describe_wait(first) == "second"


def test_several_waits_are_described_until_they_end():
    waits = [Wait(lambda: "one"), Wait(lambda: "two"), Deferred()]
    results: list[Any] = []
    everything = wait_for_all(waits)
    everything.addCallback(results.append)
    assert describe_wait(everything) == f"one and two and {UNNAMED}"
    waits[0].callback(1)
    waits[2].callback(3)
    assert describe_wait(everything) == "two"
    waits[1].callback(2)
    assert results == [[1, 2, 3]]


@pytest.mark.parametrize("count", [1, 2])
def test_the_error_of_one_of_several_waits_keeps_its_code(count):
    waits = [Deferred() for _ in range(count)]
    errors = []
    wait_for_all(waits).addErrback(lambda failure: errors.append(failure.value))
    waits[0].errback(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert [error.code for error in errors] == [ErrorCode.NOT_COORDINATOR]


@pytest.mark.parametrize("count", [1, 2])
def test_a_cancellation_cancels_every_wait(count):
    cancelled = []
    waits = [Deferred(cancelled.append) for _ in range(count)]
    everything = wait_for_all(waits)
    everything.addErrback(lambda failure: None)
    everything.cancel()
    assert cancelled == waits


def test_the_description_of_a_delayed_operation_names_partitions():
    partitions: list[Any] = [SimpleNamespace(topic="t", index=index, watchers={}) for index in range(5)]
    operation = DelayedOperation(lambda: None, lambda: None)
    operation.wait(Clock(), 500, partitions)
    assert describe_wait(operation.deferred) == "purgatory: t-0, t-1, t-2 and 2 more"


def test_the_time_that_a_request_may_wait():
    groups = None
    assert find_timeout_ms(groups, FetchRequest(max_wait_ms=500)) == 500
    assert find_timeout_ms(groups, ProduceRequest(timeout_ms=30_000)) == 30_000
    assert find_timeout_ms(groups, DeleteTopicsRequest(timeout_ms=7)) == 7
    assert find_timeout_ms(groups, HeartbeatRequest()) == 0


def test_members_of_a_group_may_wait_for_the_longest_rebalance_timeout():
    shard = GroupShard(GroupSettings(), lambda: "id", int)
    written = run_at_once(shard.finish_loading(0))
    assert not written.records
    for timeout_ms in (60_000, 300_000):
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=timeout_ms,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        shard.on_appended(shard.join_group(join, RequestContext(api_version=3), object(), 0), 0, 0)
    groups: Any = SimpleNamespace(index_of=lambda group_id: 0, shard=lambda index: shard)
    assert find_timeout_ms(groups, JoinGroupRequest(group_id="g", rebalance_timeout_ms=1)) == 300_000
    assert find_timeout_ms(groups, SyncGroupRequest(group_id="g")) == 300_000
    assert find_timeout_ms(groups, SyncGroupRequest(group_id="other")) == 0
