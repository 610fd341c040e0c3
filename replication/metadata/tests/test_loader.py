"""Questions to the metadata store whose answer must not be out of date."""

from typing import Any

import pytest

from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata
from odradek.replication.metadata.loader import count_partitions, is_deleted, load_topic
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import NoNodeError, run_now

ID = b"i" * 16


class LaggingSession:
    """A session whose ZooKeeper server lacks the latest changes until the session makes a transaction."""

    def __init__(self, store):
        self.store = store
        self.lags = True

    async def get(self, path, watch=None):
        if self.lags:
            raise NoNodeError(path)
        return await self.store.get(path, watch)

    async def exists(self, path, watch=None):
        return await self.store.exists(path, watch)

    async def transaction(self, operations):
        self.lags = False
        return await self.store.transaction(operations)


@pytest.fixture
def session():
    store = MemoryMetadataServer().connect()
    run_now(prepare_store(store, "a-cluster"))
    partitions = (PartitionMetadata(NO_LEADER, 0, (1, 2), ()),) * 3
    run_now(store.create(znodes.topic_path("t"), znodes.encode_topic(ID, partitions)))
    one: Any = LaggingSession(store)
    return one


def test_a_topic_that_only_this_sessions_server_lacks_is_not_deleted(session):
    """Its transactions would be complete without a marker."""
    assert not run_now(is_deleted(session, "t", 2))


def test_a_partition_that_no_server_has_is_deleted(session):
    assert run_now(is_deleted(session, "t", 3))
    assert run_now(is_deleted(session, "u", 0))


@pytest.mark.parametrize("adding", [(), (3,)])
def test_a_topic_that_is_being_deleted_is_deleted_unless_it_is_reassigned_before(session, adding):
    """Its nodes remain until each broker with a replica has returned: its transactions would not end before."""
    partitions = (PartitionMetadata(NO_LEADER, 0, (1, 2, *adding), (), adding=adding),)
    run_now(session.store.create(znodes.topic_path("u"), znodes.encode_topic(ID, partitions)))
    run_now(session.store.create(znodes.deletion_path("u")))
    assert run_now(is_deleted(session, "u", 0)) is not bool(adding)


def test_the_partitions_of_a_topic_are_counted_at_the_latest_state(session):
    assert run_now(count_partitions(session, "t")) == 3
    assert run_now(count_partitions(session, "u")) == 0


def test_the_partitions_of_a_large_topic_are_loaded_in_steps(session):
    """Besides the pauses between nodes, of which only the topic's own exists here."""
    count, pauses = 2000, []
    partitions = (PartitionMetadata(NO_LEADER, 0, (1, 2), ()),) * count
    run_now(session.store.create(znodes.topic_path("u"), znodes.encode_topic(ID, partitions)))

    async def pause():
        pauses.append(1)

    assert len(run_now(load_topic(session.store, "u", pause)).partitions) == count
    assert len(pauses) >= 2 * count // 500
