"""Consumers' detection of truncations: answers that contradict what was read are recorded."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.log.tests.support import batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderEpochResponseOffsetForLeaderTopicResult,
)
from odradek.simulation.clients.consumers.fetching import Fetcher
from odradek.simulation.clients.consumers.truncation import check_truncation
from odradek.simulation.history import History, Isolation
from odradek.simulation.world import World


def answer(**row):
    rows = [OffsetForLeaderEpochResponseEpochEndOffset(partition=0, **row)]
    topic = OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic="t", partitions=rows)
    return OffsetForLeaderEpochResponse(topics=[topic])


def check(response):
    """Return what is recorded after a consumer has read up to offset 7, the last batch in epoch 3."""
    asked = []

    async def request(message):
        asked.append(message)
        return response

    link: Any = SimpleNamespace(name="reader", request=request)
    history = History(lambda: 0)
    with pytest.raises(StopIteration):
        check_truncation(link, history, ("t", 0), 7, 3).send(None)
    (row,) = asked[0].topics[0].partitions
    assert (row.current_leader_epoch, row.leader_epoch) == (3, 3)
    return [text for _, _, text in history.odd]


@pytest.mark.parametrize("end", [7, 100])
def test_a_log_that_has_everything_is_not_recorded(end):
    assert check(answer(error_code=ErrorCode.NONE, leader_epoch=3, end_offset=end)) == []


@pytest.mark.parametrize(("epoch", "end"), [(3, 6), (2, 7), (2, 100), (-1, -1)])
def test_a_truncation_is_recorded(epoch, end):
    assert len(check(answer(error_code=ErrorCode.NONE, leader_epoch=epoch, end_offset=end))) == 1


def test_only_unexpected_errors_are_recorded():
    assert check(answer(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)) == []
    assert len(check(answer(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))) == 1


def test_a_fetcher_knows_the_epoch_before_its_position():
    world: Any = World(1)
    fetcher = Fetcher(SimpleNamespace(name="reader"), History(lambda: 0), world.random, Isolation.READ_UNCOMMITTED)  # type: ignore[arg-type]
    fetcher.assign({("t", 0): 0})
    row = SimpleNamespace(
        error_code=0, high_watermark=2, last_stable_offset=2, aborted_transactions=None,
        records=bytes(batch([b"a"], base_offset=0, partition_leader_epoch=1))
        + bytes(batch([b"b"], base_offset=1, partition_leader_epoch=4)),
    )  # fmt: skip
    list(fetcher._take(fetcher._history.moment(), ("t", 0), row))
    assert (fetcher.positions, fetcher.epochs) == ({("t", 0): 2}, {("t", 0): 4})
