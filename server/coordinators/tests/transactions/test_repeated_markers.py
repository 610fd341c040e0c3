"""Markers that a coordinator sends again after a lost connection, while the first request is still in progress."""

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.coordinator.result import CoordinatorRecord
from odradek.log.validation.batch import Origin
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
)
from odradek.protocol.records import build_plain_batch
from odradek.server.coordinators.tests.transactions.test_transaction_markers import NOW_MS, World, markers
from odradek.server.handlers.coordinators.transaction_markers import write_txn_markers
from odradek.server.request import RequestContext
from odradek.server.tests.background import run_iteration

LARGE, SMALL = 8, 9
"""Producer ids of a transaction with many partitions, and of one with one."""


def entry(producer_id, names, *, is_commit=True):
    return WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_result=is_commit,
        coordinator_epoch=5,
        topics=[WriteTxnMarkersRequestWritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in names],
    )


def write(partition):
    """Append a batch of the small transaction."""
    batch = build_plain_batch([CoordinatorRecord(b"k", b"v")], NOW_MS, SMALL, 0)
    partition.append_as_leader(memoryview(batch), required_acks=-1, now_ms=NOW_MS, origin=Origin.COORDINATOR)


def begin_transactions():
    """Return a world, the topics of the large transaction, and the partition of the small one, which has a batch."""
    world = World(slice_s=0)
    names = [f"large{number}" for number in range(40)]
    for name in names:
        world.add(name)
    partition = world.add("small")
    write(partition)
    return world, names, partition


def transaction_start(partition):
    return partition.log.producer_state.producers.get(SMALL).transaction_start


def send(world, *entries):
    answers: list[Any] = []
    request = WriteTxnMarkersRequest(markers=list(entries))
    reply: Deferred[Any] = write_txn_markers(world, RequestContext("h", "PLAINTEXT"), request)
    reply.addBoth(answers.append)
    return reply, answers


def test_a_request_that_has_not_begun_to_write_is_not_later_than_its_repetition():
    world, names, partition = begin_transactions()
    send(world, entry(LARGE, names), entry(SMALL, ["small"]))
    _, answers = send(world, entry(SMALL, ["small"]))
    while not answers:
        assert run_iteration(world.clock)
    write(partition)
    start = transaction_start(partition)
    while run_iteration(world.clock):
        pass
    assert transaction_start(partition) == start
    assert not world.markers.requested.last


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_request_whose_connection_is_lost_ends_no_later_transaction(is_noticed, is_commit):
    """In transaction versions 0 and 1 the next transaction has the same epoch."""
    world, names, partition = begin_transactions()
    first, _ = send(world, entry(LARGE, names), entry(SMALL, ["small"], is_commit=is_commit))
    while not markers(world.partitions["large0", 0]):
        run_iteration(world.clock)
    assert not markers(partition)
    if is_noticed:
        first.cancel()
    # The coordinator sends the markers again, those of a large transaction in slices.
    _, answers = send(world, entry(LARGE, names[:3]), entry(SMALL, ["small"], is_commit=is_commit))
    while not answers:
        assert run_iteration(world.clock)
    small = next(row for row in answers[0].markers if row.producer_id == SMALL)
    assert small.topics[0].partitions[0].error_code == 0
    # The transaction is complete. Its producer begins the next one.
    write(partition)
    start = transaction_start(partition)
    assert start >= 0
    while run_iteration(world.clock):
        pass
    # A late COMMIT would let readers of committed records see it, a late ABORT would hide it although it is committed.
    assert transaction_start(partition) == partition.log.last_stable_offset == start
