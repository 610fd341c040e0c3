"""CreateTopics, CreatePartitions and DeleteTopics on brokers of a cluster, and automatic creation."""

import random

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.replication.controller.admin.metadata_wait import MetadataWait
from odradek.replication.controller.admin.topics import TopicAdmin
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import SomeBrokerConfig

E = ErrorCode


async def applied():
    pass


class Admins:
    """A cluster with a TopicAdmin per broker."""

    def __init__(self):
        self.world = World()
        self.on = {broker_id: self.make(node) for broker_id, node in self.world.nodes.items()}

    def make(self, node):
        configs = BrokerConfigs(node.fake.broker_id, SomeBrokerConfig({}), node.cache)
        wait = MetadataWait(node.cache, self.world.executor, self.world.executor.delay)
        return TopicAdmin(node.controller, configs, random.Random(7), applied, metadata_wait=wait)

    def start(self, coroutine):
        task = self.world.executor.start(coroutine)
        self.world.executor.finish()
        return task

    def create(self, *names, timeout_ms=1000, on=1):
        topics = [
            CreateTopicsRequestCreatableTopic(name=name, num_partitions=2, replication_factor=2) for name in names
        ]
        return self.start(self.on[on].create_topics(CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)))


@pytest.fixture
def admins():
    return Admins()


def errors(task):
    response = task.outcome()
    rows = getattr(response, "topics", None) or getattr(response, "responses", None) or response.results
    return {row.name: row.error_code for row in rows}


def test_a_topic_is_created_when_the_cache_has_its_leaders(admins):
    """Section 8."""
    update = admins.world.fakes[1].update_metadata
    admins.world.fakes[1].update_metadata = None
    task = admins.create("t")
    assert not task.is_over
    admins.world.fakes[1].update_metadata = update
    admins.world.executor.wake()
    admins.world.executor.finish()
    assert errors(task) == {"t": E.NONE}
    assert set(admins.world.nodes[1].cache.topics) == {"t"}


def test_the_response_ends_with_the_timeout(admins):
    admins.world.fakes[1].update_metadata = None
    tasks = [admins.create("t"), admins.create("u", timeout_ms=0)]
    assert [task.is_over for task in tasks] == [False, True]
    admins.world.executor.wake()
    admins.world.executor.finish()
    assert [errors(task) for task in tasks] == [{"t": E.REQUEST_TIMED_OUT}, {"u": E.REQUEST_TIMED_OUT}]
    assert errors(admins.create("t")) == {"t": E.TOPIC_ALREADY_EXISTS}


def test_another_broker_refuses(admins):
    refused = [
        admins.create("t", on=2),
        admins.start(admins.on[2].delete_topics(DeleteTopicsRequest(topic_names=["t"]), 5)),
        admins.start(admins.on[2].create_partitions(CreatePartitionsRequest())),
    ]
    for task in refused:
        with pytest.raises(KafkaError) as raised:
            task.outcome()
        assert raised.value.code == E.NOT_CONTROLLER


def test_partitions_are_added_when_the_cache_has_their_leaders(admins):
    admins.create("t")
    row = CreatePartitionsRequestCreatePartitionsTopic(name="t", count=3, assignments=None)
    request = CreatePartitionsRequest(topics=[row], timeout_ms=1000)
    assert errors(admins.start(admins.on[1].create_partitions(request))) == {"t": E.NONE}
    assert len(admins.world.nodes[1].cache.topics["t"].partitions) == 3
    admins.world.fakes[1].update_metadata = None
    row.count = 4
    task = admins.start(admins.on[1].create_partitions(request))
    assert not task.is_over
    admins.world.executor.wake()
    admins.world.executor.finish()
    assert errors(task) == {"t": E.REQUEST_TIMED_OUT}


def test_a_topic_is_deleted_when_it_left_the_cache(admins):
    admins.create("t", "u")
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    assert errors(admins.start(admins.on[1].delete_topics(request, 5))) == {"t": E.NONE}
    admins.world.fakes[1].update_metadata = None
    request.topic_names = ["u"]
    task = admins.start(admins.on[1].delete_topics(request, 5))
    assert not task.is_over
    admins.world.executor.wake()
    admins.world.executor.finish()
    assert errors(task) == {"u": E.REQUEST_TIMED_OUT}
