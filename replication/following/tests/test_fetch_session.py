"""The fetcher's side of fetch sessions (KIP-227): the content of requests, and epochs."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchRequestFetchPartition,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.replication.following.fetch_session import MAX_EPOCH, FetcherSession

A, B = bytes([1]) * 16, bytes([2]) * 16


def row(index, offset=0):
    return FetchRequestFetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=9)


def response(*keys, session_id=7, error_code=0):
    return FetchResponse(
        throttle_time_ms=0,
        error_code=error_code,
        session_id=session_id,
        responses=[
            FetchResponseFetchableTopicResponse(
                topic="",
                topic_id=topic_id,
                partitions=[
                    FetchResponsePartitionData(
                        partition_index=index, error_code=0, high_watermark=0, aborted_transactions=None, records=None
                    )
                ],
            )
            for topic_id, index in keys
        ],
    )


def taken(session):
    topics, forgotten = session.take_changes()
    return (
        [(topic.topic_id, one.partition, one.fetch_offset) for topic in topics for one in topic.partitions],
        [(topic.topic_id, index) for topic in forgotten for index in topic.partitions],
    )


@pytest.fixture
def session():
    """A session with three partitions, opened."""
    opened = FetcherSession()
    for key in ((A, 0), (B, 0), (A, 1)):
        opened.put(key, row(key[1]))
    assert taken(opened) == ([(A, 0, 0), (A, 1, 0), (B, 0, 0)], [])
    assert opened.accept(response((A, 0), (A, 1), (B, 0)))
    assert (opened.id, opened.epoch) == (7, 1)
    return opened


def test_only_changes_are_sent(session):
    session.put((A, 0), row(0))
    assert taken(session) == ([], [])
    session.put((A, 0), row(0, 5))
    session.drop((B, 0))
    session.drop((B, 9))
    assert taken(session) == ([(A, 0, 5)], [(B, 0)])
    assert taken(session) == ([], [])


def test_a_partition_that_is_dropped_and_put_again_is_not_forgotten(session):
    session.drop((B, 0))
    session.put((B, 0), row(0))
    assert taken(session) == ([(B, 0, 0)], [])


def test_epochs_ascend_and_begin_again_after_the_largest(session):
    session.take_changes()
    assert session.accept(response())
    assert session.epoch == 2
    session.epoch = MAX_EPOCH
    assert session.accept(response())
    assert (session.id, session.epoch) == (7, 1)


def test_a_restart_replaces_the_session(session):
    session.drop((B, 0))
    session.restart()
    assert (session.id, session.epoch) == (7, 0)
    assert taken(session) == ([(A, 0, 0), (A, 1, 0)], [])
    assert session.accept(response((A, 0), (A, 1), session_id=8))
    assert (session.id, session.epoch) == (8, 1)


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
        (12_345, 7),
    ],
)
def test_a_refused_request_is_followed_by_a_full_one(session, code, session_id):
    session.put((A, 0), row(0, 5))
    session.take_changes()
    assert not session.accept(response(error_code=code, session_id=0))
    assert (session.id, session.epoch) == (session_id, 0)
    assert sorted(taken(session)[0]) == [(A, 0, 5), (A, 1, 0), (B, 0, 0)]


def test_a_leader_that_ends_the_session(session):
    session.take_changes()
    assert session.accept(response(session_id=0))
    assert (session.id, session.epoch) == (0, 0)


@pytest.mark.parametrize("keys", [[(A, 0), (A, 1)], [(A, 0), (A, 1), (B, 0), (B, 1)]])
def test_a_full_response_has_exactly_the_requested_partitions(session, keys):
    session.restart()
    session.take_changes()
    assert not session.accept(response(*keys))
    assert (session.id, session.epoch) == (0, 0)


def test_nothing_to_send():
    session = FetcherSession()
    assert session.has_nothing_to_send
    session.put((A, 0), row(0))
    assert not session.has_nothing_to_send
    session.drop((A, 0))
    assert session.has_nothing_to_send
    session.epoch = 4
    assert not session.has_nothing_to_send
