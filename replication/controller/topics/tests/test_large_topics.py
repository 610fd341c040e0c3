"""Topics with thousands of partitions: no step encodes or visits many of them."""

import json
import random

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.replication.controller.admin.tests.test_auto_creation import CREATED, Standby
from odradek.replication.controller.admin.tests.test_cluster_topics import Admins, errors
from odradek.replication.controller.tests.test_election_in_cluster import record_transaction_sizes
from odradek.replication.controller.topics import deletion
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.store import Delete, run_now
from odradek.replication.tests.cluster_requests import create, states
from odradek.replication.tests.cluster_support import World
from odradek.replication.tests.support import Cluster

E = ErrorCode
ID = bytes(range(16))
COUNT = 3000


class Encodings:
    """Records the size of the largest value that one call encodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.largest_bytes = 0
        original = znodes.encode

        def encode(value: object) -> bytes:
            data = original(value)
            self.largest_bytes = max(self.largest_bytes, len(data))
            return data

        monkeypatch.setattr(znodes, "encode", encode)


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Encodings:
    return Encodings(monkeypatch)


@pytest.mark.parametrize("count", [0, 1, 3, 499, 500, 501, 1300])
def test_a_topic_is_encoded_as_by_a_json_encoder(count: int) -> None:
    random_source = random.Random(count)

    def choose(most: int) -> tuple[int, ...]:
        return tuple(random_source.sample(range(2000), random_source.randrange(most + 1)))

    partitions = tuple(
        PartitionMetadata(1, 0, (*choose(3), 1), (1,), adding=choose(1), removing=choose(1)) for _ in range(count)
    )
    expected = {
        "partitions": {str(index): list(one.replicas) for index, one in enumerate(partitions)},
        "topic_id": znodes.uuid_text(ID),
        "adding_replicas": {str(index): list(one.adding) for index, one in enumerate(partitions) if one.adding},
        "removing_replicas": {str(index): list(one.removing) for index, one in enumerate(partitions) if one.removing},
        "version": 3,
    }
    assert znodes.encode_topic(ID, partitions).decode() == json.dumps(expected, separators=(",", ":"))


def test_topics_are_created_and_grow_in_steps(encodings: Encodings) -> None:
    admins = Admins()
    topic = CreateTopicsRequestCreatableTopic(name="t", num_partitions=COUNT, replication_factor=2)
    created = admins.start(admins.on[1].create_topics(CreateTopicsRequest(topics=[topic], timeout_ms=1000)))
    assert errors(created) == {"t": E.NONE}
    grown = CreatePartitionsRequestCreatePartitionsTopic(name="t", count=COUNT + 500, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=1000)
    assert errors(admins.start(admins.on[1].create_partitions(request))) == {"t": E.NONE}
    node = run_now(admins.world.server.connect().get("/brokers/topics/t"))
    assert node.data is not None
    assert len(znodes.decode_topic(node.data).replicas) == COUNT + 500
    assert encodings.largest_bytes < 20_000 < len(node.data)


def test_the_nodes_of_a_deleted_topic_are_removed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    admins = Admins()
    topic = CreateTopicsRequestCreatableTopic(name="t", num_partitions=COUNT, replication_factor=2)
    admins.start(admins.on[1].create_topics(CreateTopicsRequest(topics=[topic], timeout_ms=1000)))
    context = admins.world.active.controller.context
    pause, count, counts = context.pause, 0, []

    async def reset() -> None:
        nonlocal count
        count = 0
        await pause()

    def delete(path: str) -> Delete:
        nonlocal count
        count += 1
        counts.append(count)
        return Delete(path)

    monkeypatch.setattr(context, "pause", reset)
    monkeypatch.setattr(deletion, "Delete", delete)
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    assert errors(admins.start(admins.on[1].delete_topics(request, 5))) == {"t": E.NONE}
    admins.world.executor.finish()
    assert len(counts) > 2 * COUNT
    assert max(counts) <= 1000


def test_a_broker_that_is_not_the_controller_creates_topics_in_steps(encodings: Encodings) -> None:
    standby = Standby(Cluster(others=(2, 3)).server, **{"num.partitions": str(COUNT)})
    assert standby.create("t") == {"t": CREATED}
    assert len(standby.topic("t")["partitions"]) == COUNT
    assert encodings.largest_bytes < 20_000


def test_the_leaders_of_a_failed_broker_are_replaced_in_small_transactions() -> None:
    """ZooKeeper's client encodes a transaction, and decodes its results, in one step."""
    world = World()
    create(world, "t", *[(2, 3)] * COUNT)
    sizes = record_transaction_sizes(world.active.store)
    world.crash(2)
    world.executor.finish()
    assert states(world, "t") == [(3, 1, (3,))] * COUNT
    assert sum(sizes) > COUNT
    # One of them checks the epoch of the controller.
    assert max(sizes) <= 301
