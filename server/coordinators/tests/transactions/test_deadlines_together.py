"""Deadlines of several transactions that are due at the same time, after a pause of the process."""

from itertools import count

from odradek.replication.metadata.image import PartitionMetadata
from odradek.server.coordinators.tests.transactions.test_transaction_markers import (
    STATE,
    Client,
    World,
    follow,
    markers,
)


def begin(world, transactional_id, topic, timeout_ms):
    """Begin a transaction; return its producer."""
    client = Client(world, transactional_id)
    answers = client.init(timeout_ms)
    follow(world.partitions[STATE, 0])
    client.producer_id = answers[0].producer_id
    client.add(topic)
    follow(world.partitions[STATE, 0])
    return client


def test_the_markers_of_a_commit_do_not_wait_for_the_record_of_another_transaction():
    """They waited for its replication, which may take for ever, although the commit was acknowledged."""
    world, ids = World(), count(100)
    state = world.add(STATE, replicas=(1, 2))
    follow(state)
    world.clock.advance(0)
    world.transactions.shard(0)._state.take_producer_id = lambda: next(ids)
    data = world.add("t")
    world.add("u")
    committed = begin(world, "committed", "t", 60_000)
    late = begin(world, "late", "u", 5_000)
    data.apply(PartitionMetadata(2, 6, (1, 2), (1, 2)), data.log)
    answers = committed.end()
    follow(state)
    assert [answer.error_code for answer in answers] == [0]
    assert (committed.state, late.state) == ("PrepareCommit", "Ongoing")
    data.apply(PartitionMetadata(1, 7, (1,), (1,)), data.log)
    # Both the retry of the marker and the timeout of the other transaction are due, and nothing is replicated.
    world.clock.advance(15)
    assert [kind for kind, _, _ in markers(data)] == ["COMMIT"]
