"""Rights in Fetch: rows of refused partitions, decisions of a session, and followers."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.metadata.image import ClusterMetadata
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.authorization.tests.support import ListedRights, cluster, topic
from odradek.server.handlers.records import fetch as fetch_module
from odradek.server.handlers.records.tests import test_fetch as fetching
from odradek.server.handlers.records.tests.test_fetch import LATEST, UNKNOWN_ID, World, errors, sizes
from odradek.server.request import RequestContext

E = ErrorCode
REFUSED = E.TOPIC_AUTHORIZATION_FAILED
FETCH_KEY = 1


@pytest.fixture
def rights():
    return ListedRights()


@pytest.fixture
def world(monkeypatch, rights):
    handle = AuthorizationStage(rights)(APIS[FETCH_KEY], LATEST, fetch_module.fetch)
    monkeypatch.setattr(fetching, "fetch", handle)
    world = World()
    for name in ("open", "hidden"):
        world.create(name)
        world.append(name)
    return world


def test_refused_partitions_have_errors_whether_they_exist_or_not(world, rights):
    rights.grant(topic("READ"))
    response = world.fetch(("open", 0, 0), ("hidden", 0, 0), ("absent", 0, 0), ("open", 9, 0))
    codes = {(one.topic, row.partition_index): row.error_code for one in response.responses for row in one.partitions}
    assert codes == {
        ("open", 0): E.NONE,
        ("hidden", 0): REFUSED,
        ("absent", 0): REFUSED,
        ("open", 9): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert sum(size > 0 for size in sizes(response)) == 1


def test_topics_by_id(world, rights):
    rights.grant(topic("READ"))
    shown, hidden = [world.cluster.image.topics[name].topic_id for name in ("open", "hidden")]
    response = world.fetch((shown, 0, 0), (hidden, 0, 0), (UNKNOWN_ID, 0, 0), version=LATEST)
    assert {one.topic_id: one.partitions[0].error_code for one in response.responses} == {
        shown: E.NONE,
        hidden: REFUSED,
        UNKNOWN_ID: E.UNKNOWN_TOPIC_ID,
    }


def test_a_topic_that_is_not_in_the_metadata_yet_cannot_be_read(world, rights):
    """LeaderAndIsr creates a partition before UpdateMetadata has its topic; a deleted topic is there for longer."""
    topic_id = world.cluster.image.topics["hidden"].topic_id
    world.services.metadata = ClusterMetadata()
    response = world.fetch((topic_id, 0, 0), version=LATEST)
    assert (errors(response), sizes(response)) == ([E.UNKNOWN_TOPIC_ID], [0])
    world.services.metadata = world.cluster.image
    assert errors(world.fetch((topic_id, 0, 0), version=LATEST)) == [REFUSED]


def test_a_fetch_without_readable_partitions_does_not_wait(world):
    assert errors(world.fetch(("open", 0, 1), max_wait_ms=500)) == [REFUSED]
    assert world.is_idle()


def test_a_refused_partition_does_not_end_the_wait_for_others(world, rights):
    rights.grant(topic("READ"))
    _, answers = world.park(("open", 0, 1), ("hidden", 0, 0))
    world.append("open")
    assert sorted(errors(answers[0])) == [E.NONE, REFUSED]
    assert world.is_idle()


def test_a_session_keeps_its_decisions_until_rights_change(world, rights):
    rights.grant(topic("READ"))
    opened = world.fetch(("open", 0, 1), ("hidden", 0, 0), session_epoch=0, max_wait_ms=0)
    session_id = opened.session_id
    assert sorted(errors(opened)) == [E.NONE, REFUSED]
    rights.asked.clear()

    def continue_session(epoch):
        return world.fetch(session_id=session_id, session_epoch=epoch, max_wait_ms=0)

    assert errors(continue_session(1)) == [REFUSED], "an error is in each response of a session"
    assert rights.asked == []
    rights.revoke(topic("READ"))
    assert sorted(errors(continue_session(2))) == [REFUSED, REFUSED]
    rights.grant(topic("READ"), topic("READ", "hidden"))
    assert sorted(errors(continue_session(3))) == [E.NONE, E.NONE]


def test_the_decisions_of_a_session_are_those_of_its_client(world, rights, monkeypatch):
    rights.grant(topic("READ"))
    opened = world.fetch(("open", 0, 0), session_epoch=0, max_wait_ms=0)
    rights.asked.clear()
    monkeypatch.setattr(fetching, "RequestContext", lambda host, listener: RequestContext("another host", listener))
    world.fetch(session_id=opened.session_id, session_epoch=1, max_wait_ms=0)
    assert rights.asked == [topic("READ")]


def test_a_session_keeps_decisions_on_the_topics_that_it_has(world, rights):
    """Names of forgotten topics would fill the memory: only the partitions of sessions are limited."""
    rights.grant(topic("READ"))
    opened = world.fetch(("open", 0, 0), session_epoch=0, max_wait_ms=0)
    forgotten = []
    for epoch in range(1, 100):
        added = [f"absent-{epoch}-{number}" for number in range(20)]
        session = {"session_id": opened.session_id, "session_epoch": epoch, "max_wait_ms": 0}
        world.fetch(*[(name, 0, 0) for name in added], forgotten=[(name, 0) for name in forgotten], **session)
        forgotten = added
    session = world.services.fetch_sessions.resume(opened.session_id, 100, False, 0)
    assert len(session.partitions) == 21
    assert len(session.read_rights) < 200


def test_many_partitions_of_one_topic_need_one_decision(world, rights):
    rights.grant(topic("READ"))
    world.fetch(*[("open", index, 0) for index in range(50)], max_wait_ms=0)
    assert rights.asked == [topic("READ")]


def follow(world, **request):
    asked = ("open", 0, 0, {"current_leader_epoch": -1})
    return world.fetch(asked, replica_id=7, max_wait_ms=0, **request)


def test_a_follower_needs_cluster_action(world, rights):
    rights.grant(topic("READ"))
    assert errors(follow(world)) == [REFUSED]
    rights.grant(cluster("CLUSTER_ACTION"))
    assert errors(follow(world)) != [REFUSED]


def test_the_fetch_of_a_follower_is_exempt_from_quotas_with_the_right_only(world, rights, monkeypatch):
    context = RequestContext("host", "PLAINTEXT")
    monkeypatch.setattr(fetching, "RequestContext", lambda host, listener: context)
    charge: Any = SimpleNamespace(max_fetch_bytes=100, settle_fetch=lambda size_bytes: 0)
    context.charge = charge
    follow(world)
    assert context.charge is charge
    rights.grant(cluster("CLUSTER_ACTION"))
    follow(world)
    assert context.charge is None


def test_the_session_of_a_follower_is_refused_as_a_whole(world, rights):
    rights.grant(cluster("CLUSTER_ACTION"))
    opened = follow(world, session_epoch=0)
    assert opened.session_id
    rights.revoke(cluster("CLUSTER_ACTION"))
    refused = world.fetch(replica_id=7, session_id=opened.session_id, session_epoch=1, max_wait_ms=500)
    assert errors(refused) == [REFUSED]


def test_a_debugging_client_needs_the_right_to_read(world, rights):
    assert errors(world.fetch(("open", 0, 0), replica_id=-2, max_wait_ms=0)) == [REFUSED]
    rights.grant(topic("READ"))
    assert errors(world.fetch(("open", 0, 0), replica_id=-2, max_wait_ms=0)) == [E.NONE]
