"""Fetch sessions against KIP-227."""

import itertools

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.server.fetch_sessions import EVICTION_MS, MAX_EPOCH, FetchPartition, FetchSessionCache


def make_cache(slots=2):
    return FetchSessionCache(slots, itertools.count(1).__next__)


def partitions(*indexes, offset=0):
    found = {}
    for index in indexes:
        partition = FetchPartition("t", bytes(16), index)
        partition.fetch_offset = offset
        found["t", index] = partition
    return found


def test_a_session_expects_one_epoch_after_the_other():
    cache = make_cache()
    session = cache.create(partitions(0), False, 0)
    assert session.epoch == 1
    assert cache.resume(session.id, 1, False, 5) is session
    session.advance()
    with pytest.raises(KafkaError) as raised:
        cache.resume(session.id, 1, False, 5)
    assert raised.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = MAX_EPOCH
    session.advance()
    assert session.epoch == 1


def test_unknown_session_and_change_between_names_and_ids():
    cache = make_cache()
    session = cache.create(partitions(0), True, 0)
    with pytest.raises(KafkaError) as raised:
        cache.resume(99, 1, True, 0)
    assert raised.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(KafkaError) as raised:
        cache.resume(session.id, 1, False, 0)
    assert raised.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_update_adds_changes_and_forgets():
    session = make_cache().create(partitions(0, 1), False, 0)
    session.partitions["t", 0].high_watermark = 7
    session.update(partitions(0, 2, offset=5), [("t", 1), ("t", 9)])
    assert list(session.partitions) == [("t", 0), ("t", 2)]
    assert session.partitions["t", 0].fetch_offset == 5
    assert session.partitions["t", 0].high_watermark == 7


def test_a_full_cache_puts_out_the_stale_then_the_smaller_old_one_and_otherwise_nobody():
    cache = make_cache(slots=2)
    first = cache.create(partitions(0, 1, 2), False, 0)
    second = cache.create(partitions(0), False, 0)
    assert cache.create(partitions(0), False, 1) is None
    now_ms = EVICTION_MS + 1
    cache.resume(first.id, 1, False, now_ms)
    cache.resume(second.id, 1, False, now_ms)
    third = cache.create(partitions(0, 1), False, now_ms)
    assert third is not None
    with pytest.raises(KafkaError):
        cache.resume(second.id, 1, False, now_ms)
    assert cache.create(partitions(0), False, now_ms) is None
    assert cache.create(partitions(0), False, now_ms + EVICTION_MS + 1) is not None
    assert len(cache) == 2


def test_what_was_told_before_is_no_news_except_after_an_error():
    partition = FetchPartition("t", bytes(16), 0)
    assert partition.tell(5, 0, failed=False)
    assert not partition.tell(5, 0, failed=False)
    assert partition.tell(6, 0, failed=False)
    assert partition.tell(6, 1, failed=False)
    assert partition.tell(6, 1, failed=True)
    assert partition.tell(6, 1, failed=False)
