"""Fetch sessions (KIP-227)."""

import itertools

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.server.fetching import session_cache
from odradek.server.fetching.session_cache import EVICTION_MS, MAX_EPOCH, FetchPartition, FetchSessionCache


def make_cache(slots=2):
    return FetchSessionCache(slots, itertools.count(1).__next__)


def partitions(*indexes, offset=0):
    found = {}
    for index in indexes:
        partition = FetchPartition("t", bytes(16), index)
        partition.fetch_offset = offset
        found["t", index] = partition
    return found


def test_the_epoch_of_a_session_advances_by_one():
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


def test_an_unknown_session_and_a_change_between_names_and_ids_are_errors():
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


def test_a_follower_displaces_a_consumer_and_is_displaced_by_followers_only():
    cache = make_cache(slots=1)
    consumer = cache.create(partitions(*range(5)), False, 0)
    follower = cache.create(partitions(0), True, 0, is_privileged=True)
    assert follower is not None
    with pytest.raises(KafkaError):
        cache.resume(consumer.id, 1, False, 0)
    assert cache.create(partitions(*range(5)), False, 0) is None
    assert cache.create(partitions(*range(5)), True, 0, is_privileged=True) is None, "the other one is new"
    now_ms = EVICTION_MS + 1
    cache.resume(follower.id, 1, True, now_ms)
    assert cache.create(partitions(*range(5)), False, now_ms) is None
    assert cache.create(partitions(1), True, now_ms, is_privileged=True) is None
    assert cache.create(partitions(1, 2), True, now_ms, is_privileged=True) is not None


def test_a_full_cache_evicts_a_stale_session_then_a_smaller_old_one_or_none():
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
    assert cache.evictions == 2


def test_a_session_has_a_limited_number_of_partitions(monkeypatch):
    monkeypatch.setattr(session_cache, "MAX_SESSION_PARTITIONS", 3)
    cache = make_cache()
    assert cache.create(partitions(0, 1, 2, 3), False, 0) is None
    session = cache.create(partitions(0, 1, 2), False, 0)
    cache.update(session, partitions(0, 1, 2, offset=5), [])
    with pytest.raises(KafkaError) as raised:
        cache.update(session, partitions(3), [])
    assert raised.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 0


def test_all_sessions_have_a_limited_number_of_partitions(monkeypatch):
    """The least recently used large session is evicted for others; a small one is not."""
    monkeypatch.setattr(session_cache, "MAX_PARTITIONS", 20)
    cache = make_cache(slots=10)
    small = cache.create(partitions(0, 1), False, 0)
    first = cache.create(partitions(*range(8)), False, 0)
    second = cache.create(partitions(*range(8)), False, 0)
    cache.resume(first.id, 1, False, 1)
    third = cache.create(partitions(*range(3)), False, 1)
    with pytest.raises(KafkaError):
        cache.resume(second.id, 1, False, 2)
    cache.resume(third.id, 1, False, 2)
    # Partitions that are forgotten, or end with their session, make room.
    cache.update(first, {}, [("t", index) for index in range(7)])
    cache.remove(third.id)
    cache.update(first, partitions(*range(10, 27)), [])
    assert [one in cache._sessions.values() for one in (small, first, second, third)] == [True, True, False, False]
    # The partitions of a session that has ended are not counted.
    cache.update(second, partitions(*range(10, 30)), [])
    assert len(cache) == 2


def test_a_partition_is_unchanged_if_its_last_response_was_equal_and_no_error():
    partition = FetchPartition("t", bytes(16), 0)
    assert partition.record_sent(5, 0, failed=False)
    assert not partition.record_sent(5, 0, failed=False)
    assert partition.record_sent(6, 0, failed=False)
    assert partition.record_sent(6, 1, failed=False)
    assert partition.record_sent(6, 1, failed=True)
    assert partition.record_sent(6, 1, failed=False)
