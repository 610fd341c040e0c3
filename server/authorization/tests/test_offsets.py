"""Topics in requests about committed offsets, which the handlers refuse or omit."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.authorization.tests.support import IDS, ListedRights, group, topic
from odradek.server.handlers.coordinators.group_offsets import offset_commit, offset_delete, offset_fetch
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

E = ErrorCode
REFUSED = E.TOPIC_AUTHORIZATION_FAILED


class Shard:
    """A shard that records the topics of its requests. It has offsets of the topics open and hidden."""

    def __init__(self):
        self.topics = []

    def commit_offsets(self, request, context, token, now_ms, commit=None):
        self.topics += [topic.name for topic in request.topics]
        return OffsetCommitResponse()

    def delete_offsets(self, request, context, token, now_ms):
        self.topics += [topic.name for topic in request.topics]
        return OffsetDeleteResponse()

    def topics_with_offsets(self, group_id):
        return {"open": [0], "hidden": [0]}

    def copy_offsets(self, group_id):
        return None

    def fetch_offsets(self, request, context, *, require_stable, topic_id, offsets):
        self.topics += [topic.name for topic in request.topics]
        rows = [
            OffsetFetchResponseTopics(
                name=topic.name, partitions=[OffsetFetchResponsePartitions(partition_index=0, committed_offset=5)]
            )
            for topic in request.topics
        ]
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=rows)


class World:
    def __init__(self):
        self.rights = ListedRights()
        self.shard = Shard()
        clock = Clock()
        topics = {name: SimpleNamespace(name=name, topic_id=IDS[name], partitions=[None]) for name in IDS}
        self.services = SimpleNamespace(
            metadata=SimpleNamespace(topics=topics, topics_by_id={one.topic_id: one for one in topics.values()}),
            now_ms=lambda: 0,
            slices=Slices(clock, clock.seconds),
            groups=SimpleNamespace(
                run=lambda group_id, decide: decide(self.shard, None, 0),
                shard=lambda index: self.shard,
                index_of=lambda group_id: 0,
                wait_for_load=lambda group_id, *, in_order: None,
            ),
        )

    def ask(self, key, handler, request, version):
        context = RequestContext("host", "PLAINTEXT")
        context.api_version = version
        answer = AuthorizationStage(self.rights)(APIS[key], version, handler)(self.services, context, request)
        if isinstance(answer, Deferred):
            answers: list[Any] = []
            answer.addBoth(answers.append)
            (answer,) = answers
        return answer


@pytest.fixture
def world():
    return World()


def commit(*topics):
    partitions = [OffsetCommitRequestPartition(partition_index=0)]
    return OffsetCommitRequest(
        group_id="open",
        topics=[
            OffsetCommitRequestTopic(topic_id=one, partitions=partitions)
            if isinstance(one, bytes)
            else OffsetCommitRequestTopic(name=one, partitions=partitions)
            for one in topics
        ],
    )


def codes(response):
    return {one.name or one.topic_id: one.partitions[0].error_code for one in response.topics}


def test_offsets_of_readable_topics_are_committed(world):
    world.rights.grant(group("READ"), topic("READ"))
    response = world.ask(8, offset_commit, commit("open", "hidden", "absent"), 9)
    assert codes(response) == {"hidden": REFUSED, "absent": REFUSED}
    assert world.shard.topics == ["open"]


def test_topics_by_id(world):
    world.rights.grant(group("READ"), topic("READ"))
    response = world.ask(8, offset_commit, commit(IDS["open"], IDS["hidden"], b"?" * 16), 10)
    assert codes(response) == {"hidden": REFUSED, b"?" * 16: E.UNKNOWN_TOPIC_ID}
    assert world.shard.topics == ["open"]


def test_without_a_readable_topic_the_shard_is_not_called(world):
    world.rights.grant(group("READ"))
    assert codes(world.ask(8, offset_commit, commit("open", "hidden"), 9)) == {"open": REFUSED, "hidden": REFUSED}
    assert world.shard.topics == []


def test_the_right_to_many_topics_is_decided_once_and_in_slices(world):
    world.rights.grant(group("READ"))
    names = [f"topic-{number}" for number in range(5_000)]
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = 9
    answer = AuthorizationStage(world.rights)(APIS[8], 9, offset_commit)(world.services, context, commit(*names))
    assert isinstance(answer, Deferred)
    answers: list[Any] = []
    answer.addBoth(answers.append)
    assert set(codes(answers[0]).values()) == {REFUSED}
    assert len(world.rights.asked) == 1 + len(names)


def fetch(topics):
    rows = None if topics is None else [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in topics]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="open", topics=rows)])


def test_fetched_offsets_of_requested_topics(world):
    world.rights.grant(group("DESCRIBE"), topic("DESCRIBE"))
    (response,) = world.ask(9, offset_fetch, fetch(["open", "hidden", "absent"]), 8).groups
    assert codes(response) == {"open": 0, "hidden": REFUSED, "absent": REFUSED}
    assert {row.committed_offset for one in response.topics[1:] for row in one.partitions} == {-1}
    assert world.shard.topics == ["open"]


def test_all_fetched_offsets_omit_hidden_topics(world):
    world.rights.grant(group("DESCRIBE"), topic("DESCRIBE"))
    (response,) = world.ask(9, offset_fetch, fetch(None), 8).groups
    assert codes(response) == {"open": 0}


def test_deleted_offsets(world):
    world.rights.grant(group("DELETE"), topic("READ"))
    rows = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("open", "hidden", "absent")
    ]
    response = world.ask(47, offset_delete, OffsetDeleteRequest(group_id="open", topics=rows), 0)
    assert codes(response) == {"hidden": REFUSED, "absent": REFUSED}
    assert world.shard.topics == ["open"]
