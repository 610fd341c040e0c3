"""The produce fast path of a broker with an authorizer: decisions are kept until rights may have changed."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.tests.support import Cluster
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.authorization.tests.support import ListedRights, topic, transaction
from odradek.server.dispatch import Dispatch
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.network.produce_fast_path import AuthorizedFastPath
from odradek.server.network.request_pipeline import RequestPipeline
from odradek.server.request import RequestContext
from odradek.server.security.principal import Principal
from odradek.server.tests.wire import request_frame
from odradek.server.work.slices import Slices

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class World:
    """One connection to a broker with the topics open and other."""

    def __init__(self):
        self.rights = ListedRights(topic("WRITE"))
        clock, self.cluster = Clock(), Cluster()
        for name in ("open", "other"):
            create(self.cluster, new(name))
        slices = Slices(clock, clock.seconds)
        services = SimpleNamespace(
            metadata=self.cluster.image,
            now_ms=lambda: 0,
            produce_completions=CompletionQueue(slices),
            random_source=random.Random(1),
            reactor=clock,
            replicas=self.cluster.replicas,
            slices=slices,
        )
        self.context = RequestContext("host", "PLAINTEXT")
        dispatch = Dispatch(services, stages=(AuthorizationStage(self.rights),))
        self.pipeline = RequestPipeline(dispatch, self.context)

    def produce(self, *names, version=9, transactional_id=None):
        """Return the code of each topic, and the number of questions to the authorizer."""
        self.rights.asked.clear()
        data = [ProduceRequestPartitionProduceData(index=0, records=build_batch([(0, b"k", b"v", ())]))]
        topics = [ProduceRequestTopicProduceData(name=name, partition_data=data) for name in names]
        if version >= 13:
            topics = [
                ProduceRequestTopicProduceData(topic_id=self.cluster.image.topics[name].topic_id, partition_data=data)
                for name in names
            ]
        request = ProduceRequest(acks=1, timeout_ms=1, topic_data=topics, transactional_id=transactional_id)
        answer: Any = self.pipeline.begin(request_frame(request, version))
        response = codec.decode(ProduceResponse, version, bytes(answer), 9)
        codes = [row.error_code for one in response.responses for row in one.partition_responses]
        return codes, len(self.rights.asked)

    def log_end(self, name):
        return self.cluster.replicas.get(name, 0).log.log_end_offset


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("version", [9, 12, 13])
def test_a_repeated_request_asks_nothing(world, version):
    codes, asked = world.produce("open", version=version)
    assert codes == [0]
    assert asked > 0
    assert [world.produce("open", version=version) for _ in range(3)] == [([0], 0)] * 3
    assert world.log_end("open") == 4


@pytest.mark.parametrize("version", [9, 13])
def test_a_revoked_right_is_missing_in_the_next_request(world, version):
    for _ in range(2):
        assert world.produce("open", version=version)[0] == [0]
    world.rights.revoke(topic("WRITE"))
    assert world.produce("open", version=version)[0] == [REFUSED]
    assert world.produce("open", version=version)[0] == [REFUSED]
    assert world.log_end("open") == 2
    world.rights.grant(topic("WRITE"))
    assert world.produce("open", version=version)[0] == [0]
    assert world.produce("open", version=version) == ([0], 0)


def test_each_change_of_rights_drops_the_heads(world):
    world.produce("open")
    assert world.produce("open") == ([0], 0)
    world.rights.grant(topic("WRITE", "unrelated"))
    codes, asked = world.produce("open")
    assert (codes, asked > 0) == ([0], True)
    assert world.produce("open") == ([0], 0)


def test_another_principal_does_not_use_the_heads(world):
    world.produce("open")
    world.context.principal = Principal("User", "another")
    assert world.produce("open")[1] > 0
    assert world.produce("open") == ([0], 0)


def test_the_head_of_a_request_with_a_refused_topic_is_not_kept(world):
    for _ in range(2):
        codes, asked = world.produce("open", "other")
        assert (codes, asked > 0) == ([0, REFUSED], True)
    assert world.log_end("other") == 0


def test_rights_that_change_before_the_response_are_decided_anew(world):
    context = world.context
    fast_path = AuthorizedFastPath(world.pipeline._services, world.rights, context)
    data = [ProduceRequestPartitionProduceData(index=0, records=memoryview(build_batch([(0, b"k", b"v", ())])))]
    topics = [ProduceRequestTopicProduceData(name="open", partition_data=data)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=topics)
    frame = request_frame(request, 9)
    context.api_version = 9
    world.produce("open")
    world.rights.revoke(topic("WRITE"))
    accepted = ProduceResponse(responses=[SimpleNamespace(partition_responses=[SimpleNamespace(error_code=0)])])
    fast_path.add_head(frame, context, request, accepted)
    assert fast_path.append_records(frame) is None
    world.rights.grant(topic("WRITE"))
    fast_path.add_head(frame, context, request, accepted)
    assert fast_path.append_records(frame) is not None


def test_a_transactional_id_needs_its_right(world):
    fast_path = AuthorizedFastPath(world.pipeline._services, world.rights, world.context)
    topics = [ProduceRequestTopicProduceData(name="open")]
    request = ProduceRequest(transactional_id="open", topic_data=topics)
    world.context.api_version = 9
    assert not fast_path._may_send(request)
    world.rights.grant(transaction("WRITE"))
    assert fast_path._may_send(request)
