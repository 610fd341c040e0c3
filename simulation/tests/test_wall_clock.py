"""The broker's wall clock is set, the clients' are not; a flood of requests gets its responses in order."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.simulation.clients.consumers.membership import LIMITS, Membership
from odradek.simulation.clients.link import Link, Versions
from odradek.simulation.clients.producers.flood import Flood
from odradek.simulation.history import Guarantee, History, Outcome, SentRecord
from odradek.simulation.machine.disk import EPOCH_MS
from odradek.simulation.machine.network import NetworkHabits
from odradek.simulation.machine.wall_clock import _SHARE_OF_SEEDS, ClockSetter
from odradek.simulation.tests.test_checker_brief_offsets import BriefStory
from odradek.simulation.tests.test_clients import ScriptedWorld
from odradek.simulation.tests.test_world import finish, started
from odradek.simulation.world import World

A = ("a", 0)


async def create(connection, **configs):
    row = CreateTopicsRequestCreatableTopic(name="a", num_partitions=1, replication_factor=1)
    await connection.request(CreateTopicsRequest(topics=[row], timeout_ms=1000), 7, client_id="test")


def test_some_seeds_have_a_clock_that_is_set_within_bounds():
    active = []
    for seed in range(200):
        world = World(seed)
        history = History(world.now_ms)
        setter = ClockSetter(world, history)
        setter.begin()
        world.run(lambda: False, 20)
        setter.end()
        assert world.now_ms() == EPOCH_MS + int(world.clock.seconds() * 1000)
        if history.clock_steps:
            active.append(seed)
            wrong_by_ms = sum(step_ms for _, step_ms in history.clock_steps)
            assert world.wall_clock.now_ms() == world.now_ms() + wrong_by_ms
            assert -3_000_000 <= wrong_by_ms <= 14_400_000
    assert 0.5 * _SHARE_OF_SEEDS < len(active) / 200 < 1.5 * _SHARE_OF_SEEDS


@pytest.mark.parametrize(("wrong_by_ms", "accepted"), [(-50 * 60_000, True), (-61 * 60_000, False), (14_400_000, True)])
def test_the_broker_validates_timestamps_by_its_own_clock(wrong_by_ms, accepted):
    world = started(1)
    world.wall_clock.wrong_by_ms = wrong_by_ms

    async def produce():
        connection = await world.connect()
        await create(connection)
        batch = build_batch([(world.now_ms(), None, b"v", ())])
        data = ProduceRequestPartitionProduceData(index=0, records=batch)
        topic = ProduceRequestTopicProduceData(name="a", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        answer = await connection.request(request, 9, client_id="test")
        return answer.responses[0].partition_responses[0].error_code

    assert finish(world, produce()) == (ErrorCode.NONE if accepted else ErrorCode.INVALID_TIMESTAMP)


@pytest.mark.parametrize(
    ("silent_s", "codes", "is_odd"),
    [
        (0.1, (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), True),
        (0.295, (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), True),
        # The session of 300 ms has expired on a clock that is 1 % fast.
        (0.298, (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), False),
        (1.5, (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), False),
        (0.1, (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID), False),
    ],
)
def test_a_member_that_sent_a_heartbeat_is_not_expelled(silent_s, codes, is_odd):
    world: Any = ScriptedWorld()
    world.scripts["Heartbeat"] = [HeartbeatResponse(error_code=code) for code in codes]
    history = History(world.now_ms)
    member = Membership(Link(world, history, "m", Random(1), Versions(Random(1), LIMITS)), "g", [A], Random(1))
    member.session_timeout_ms = member._rebalance_timeout_ms = 300
    member._joined_over = run(member._link.connection())
    for code in codes:
        world.time_s += silent_s
        assert run(member.heartbeat()) == code
    assert bool(history.odd) == is_odd


def test_a_heartbeat_over_another_connection_than_the_join_s_is_no_proof():
    """The coordinator may have restarted, and respond while it loads."""
    world: Any = ScriptedWorld()
    codes = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    world.scripts["Heartbeat"] = [HeartbeatResponse(error_code=code) for code in codes]
    history = History(world.now_ms)
    member = Membership(Link(world, history, "m", Random(1), Versions(Random(1), LIMITS)), "g", [A], Random(1))
    member.session_timeout_ms = member._rebalance_timeout_ms = 300
    for code in codes:
        world.time_s += 0.1
        assert run(member.heartbeat()) == code
    assert not history.odd


def run(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value


def test_offsets_may_go_earlier_when_the_clock_is_set_forward():
    for step_ms, found in ((3_600_000, set()), (-3_600_000, {"OFFSET_BACK"})):
        story = BriefStory()
        story.commit_briefly(1)
        story.history.set_clock(step_ms)
        story.fetch_offset(-1)
        assert story.found() == found


# Floods


def test_responses_that_are_not_read_stay_in_the_network_and_arrive_in_order():
    world = started(1, habits=NetworkHabits(buffer_bytes=1000))
    came = []

    async def ask():
        connection = await world.connect()
        await create(connection)
        connection.stop_reading()
        asked = [connection.request(MetadataRequest(topics=None), 12, client_id="test") for _ in range(50)]
        for number, answer in enumerate(asked):
            answer.addCallback(lambda _, number=number: came.append(number))
        await world.sleep(5)
        assert came == []
        connection.read_again()
        for answer in asked:
            await answer
        connection.close()
        return True

    assert finish(world, ask())
    assert came == list(range(50))


def test_a_flood_is_written_in_its_order():
    world = started(3)
    history = History(world.now_ms)

    async def flood():
        connection = await world.connect()
        await create(connection)
        connection.close()
        client = Flood(world, history, "flood", Random(2), [A])
        await client._flood()
        return client

    finish(world, flood())
    assert history.odd == []
    assert {send.outcome for send in history.sends} == {Outcome.OK}
    assert len(history.sends) > 3


def test_a_flood_reports_batches_written_out_of_order():
    world: Any = ScriptedWorld()
    history = History(world.now_ms)
    flood = Flood(world, history, "flood", Random(1), [A])
    last_offsets = {}
    for base_offset in (5, 4):
        records = [SentRecord(b"v%d" % base_offset, None, (), 0)]
        send = history.begin_send("flood", A, "flood", Guarantee.PLAIN, records)
        row = SimpleNamespace(index=0, error_code=0, base_offset=base_offset, log_append_time_ms=-1)
        response = SimpleNamespace(responses=[SimpleNamespace(name="a", topic_id=None, partition_responses=[row])])
        run(flood._note_produced(send, response, last_offsets))
    assert len(history.odd) == 1
