"""Appends of a follower: the leader's bytes, unchanged, with all that the log derives from them."""

import errno
from random import Random
from typing import Any

import pytest

from odradek.log.append import AppendInfo, UnexpectedOffsetError
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import DiskFullError
from odradek.log.tests.support import (
    NOW_MS,
    append,
    batch,
    config,
    idempotent,
    memory_fs,
    open_log,
    read_all,
    truncate,
)
from odradek.log.validation.batch import Origin, chunk_batches
from odradek.protocol.batches.record_batch import LOG_OVERHEAD, STAMP
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import Codec, ControlType, build_batch, build_control_batch


def follow(log: PartitionLog, *batches: bytes | memoryview, leader_epoch: int | None = None) -> None:
    log.append_as_follower(memoryview(b"".join(batches)), now_ms=NOW_MS, leader_epoch=leader_epoch)


def one(offset: int, epoch: int = 0, count: int = 1, value: bytes = b"v", **producer: int) -> bytes:
    records = [(NOW_MS, b"k", value, ())] * count
    return build_batch(records, base_offset=offset, partition_leader_epoch=epoch, **producer)  # type: ignore[arg-type]


BAD_MARKER = build_batch(
    [(NOW_MS, b"\0", b"?", ())], base_offset=5, partition_leader_epoch=2, producer_id=1, control=True
)


def copied(leader: PartitionLog) -> bytes:
    return b"".join(segment.file.pread(0, segment.size_bytes) for segment in leader.segments)


def transaction(log: PartitionLog, kind: ControlType, sequence: int, epoch: int) -> None:
    append(log, idempotent(sequence, 2, transactional=True), leader_epoch=epoch)
    append(log, batch([b"of another producer"]), leader_epoch=epoch)
    marker = build_control_batch(kind, producer_id=7, producer_epoch=0, coordinator_epoch=3, timestamp_ms=NOW_MS)
    log.append_as_leader(memoryview(marker), leader_epoch=epoch, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def test_a_follower_derives_the_state_that_its_leader_has() -> None:
    leader, follower = open_log(), open_log()
    for number in range(12):
        transaction(leader, ControlType.ABORT if number % 2 else ControlType.COMMIT, 2 * number, number // 4)
        append(leader, [b"%d" % number * 30], codec=Codec.GZIP, leader_epoch=number // 4)
    append(leader, idempotent(24, transactional=True), leader_epoch=5)
    for chunk in chunk_batches(memoryview(copied(leader)), 5, 1000):
        follower.append_as_follower(chunk, now_ms=NOW_MS, leader_epoch=5)
    follower.update_high_watermark(leader.high_watermark)
    assert len(follower.segments) > 2
    assert copied(follower) == copied(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert bytes(follower.producer_state.producers.records) == bytes(leader.producer_state.producers.records)
    assert follower.last_stable_offset == leader.last_stable_offset == leader.log_end_offset - 1
    assert read_all(follower) == read_all(leader)

    def aborted(log: PartitionLog) -> list[tuple[int, int, int]]:
        entries = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
        return [(entry.first_offset, entry.last_offset, entry.last_stable_offset) for entry in entries]

    assert aborted(follower) == aborted(leader)
    assert len(aborted(follower)) == 6
    follower.flush(0)
    fs = memory_fs(follower)
    fs.crash()
    again = open_log(fs, is_clean=False)
    assert bytes(again.producer_state.producers.records) == bytes(leader.producer_state.producers.records)
    assert again.leader_epochs.entries == leader.leader_epochs.entries


@pytest.mark.parametrize("seed", range(10))
def test_batches_appended_one_by_one_or_together_leave_the_same_state(seed: int) -> None:
    """A single batch takes the fast path of the usual response; one that an incomplete batch follows does not."""
    random, offset, sequences = Random(seed), 0, {1: 0, 2: 0}
    single, general = open_log(), open_log()
    for _ in range(40):
        offset += random.choice([0, 0, 0, 3])
        producer_id, count = random.choice([-1, 1, 2]), random.randrange(1, 4)
        timestamp = NOW_MS + random.randrange(1000)
        codec = random.choice([Codec.NONE, Codec.NONE, Codec.GZIP])
        producer: dict[str, Any] = {}
        if producer_id > 0:
            producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences[producer_id]}
            sequences[producer_id] += count
        values = [b"v" * random.randrange(200)] * count
        data = batch(values, timestamp=timestamp, codec=codec, **producer)
        stamped = STAMP.pack(offset, len(data) - LOG_OVERHEAD, offset // 40) + bytes(data[STAMP.size :])
        results = []
        for log, tail in ((single, b""), (general, b"\0" * 5)):
            info = log.append_as_follower(memoryview(stamped + tail), now_ms=NOW_MS)
            assert info is not None
            results.append([getattr(info, name) for name in AppendInfo.__slots__])
        assert results[0] == results[1]
        offset += count
    assert log_state(single) == log_state(general)


def log_state(log: PartitionLog) -> object:
    segments = [
        (
            segment.base_offset,
            segment.file.pread(0, segment.size_bytes),
            segment.offset_index.encode_entries(),
            segment.time_index.encode_entries(),
            segment.first_timestamp,
            segment.max_timestamp,
            segment.has_checked_batches,
        )
        for segment in log.segments
    ]
    producers = log.producer_state
    return segments, log.log_end_offset, log.leader_epochs.entries, producers.end_offset, producers.producers.records


def test_an_incomplete_batch_at_the_end_is_ignored() -> None:
    log = open_log()
    follow(log, one(0), one(1)[:-1])
    assert log.log_end_offset == 1
    follow(log, one(1)[:20])
    assert log.log_end_offset == 1


def test_offsets_may_be_missing() -> None:
    log = open_log()
    follow(log, one(3), one(7, count=2))
    follow(log, one(20))
    assert (log.log_start_offset, log.log_end_offset) == (0, 21)
    assert [offset for offset, _ in read_all(log)] == [3, 7, 8, 20]


@pytest.mark.parametrize(
    "batches",
    [
        (one(5), one(5)),
        (one(5, count=3), one(6)),
        (one(5, epoch=3), one(6, epoch=2)),
        (one(5, epoch=1),),
        (one(5, epoch=2)[:-1] + b"?",),
        (one(5, epoch=2)[:16] + b"\1" + one(5, epoch=2)[17:],),
        (one(5, epoch=2)[:16] + b"\3" + one(5, epoch=2)[17:],),
        (b"\0" * 100,),
        (BAD_MARKER,),
    ],
    ids=["repeated", "overlap", "falling epoch", "lower epoch", "crc", "magic 1", "magic 3", "length", "marker"],
)
def test_a_bad_batch_changes_nothing(batches: tuple[bytes, ...]) -> None:
    log = open_log()
    follow(log, one(4, epoch=2))
    with pytest.raises(KafkaError) as raised:
        follow(log, *batches)
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
    assert (log.log_end_offset, log.leader_epochs.entries, log.failure) == (5, [(2, 4)], None)
    assert log.producer_state.is_empty
    follow(log, one(5, epoch=2))


def test_the_offset_of_the_first_batch_is_not_below_the_log_end() -> None:
    log = open_log()
    follow(log, one(4))
    with pytest.raises(UnexpectedOffsetError) as raised:
        follow(log, one(3, count=4), one(7))
    assert (raised.value.first_offset, raised.value.last_offset) == (3, 6)


def test_batches_above_the_followed_leader_epoch_are_omitted() -> None:
    log = open_log()
    follow(log, one(0, 2), one(1, 3), one(2, 4), leader_epoch=3)
    assert log.leader_epochs.entries == [(2, 0), (3, 1)]
    assert log.append_as_follower(memoryview(one(2, 4)), now_ms=NOW_MS, leader_epoch=3) is None


def test_a_batch_larger_than_a_segment_gets_a_segment_of_its_own() -> None:
    """The topic's segment.bytes was larger when the leader appended it."""
    log = open_log(cfg=config(internal_segment_bytes=500))
    for offset in range(3):
        follow(log, one(offset, value=b"x" * (900 if offset == 1 else 10)))
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert [offset for offset, _ in read_all(log)] == [0, 1, 2]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("offsets", [(1,), (64, 128), (0, 2), (0, 1, 64), (0, 3, 5)])
def test_the_last_batch_may_follow_a_gap(offsets: tuple[int, ...], is_clean: bool) -> None:
    """A follower's log has the leader's gaps, but no checkpoint that attributes them to compaction."""
    log = open_log()
    fs = memory_fs(log)
    follow(log, *[one(offset) for offset in offsets])
    log.flush(NOW_MS)
    if is_clean:
        log.close(NOW_MS)
        fs.remove(log.active_segment.path(".index"))
    again = open_log(fs, is_clean=is_clean)
    assert [offset for offset, _ in read_all(again)] == list(offsets)
    assert again.log_end_offset == offsets[-1] + 1


def test_a_batch_appended_after_a_refused_one_behind_a_gap_survives_a_crash() -> None:
    log = open_log(cfg=config(internal_segment_bytes=200, index_interval_bytes=0))
    fs = memory_fs(log)
    follow(log, one(0), one(1))
    fs.fail("write", path_contains=".log", error=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        follow(log, one(10))
    assert log.log_end_offset == 2
    append(log, [b"as leader"], leader_epoch=1)
    append(log, [b"as leader"], leader_epoch=1)
    log.flush(NOW_MS)
    again = open_log(fs, log.config, is_clean=False, recovery_point=log.recovery_point)
    assert [offset for offset, _ in read_all(again)] == [0, 1, 2, 3]


def test_a_roll_at_a_gap_leaves_no_lost_end_to_recovery() -> None:
    log = open_log(cfg=config(internal_segment_bytes=200))
    for offset in (0, 1, 10, 20, 21, 30, 31):
        follow(log, one(offset))
    assert len(log.segments) > 2
    again = open_log(memory_fs(log), log.config, is_clean=False)
    assert [offset for offset, _ in read_all(again)] == [0, 1, 10, 20, 21, 30, 31]


def test_a_gap_that_is_too_large_for_a_segment_is_no_lost_end() -> None:
    """The leader has compacted a log with more than two thousand million offsets."""
    log = open_log()
    for offset in (0, 10, 3_000_000_000, 3_000_000_001):
        follow(log, one(offset))
    assert len(log.segments) == 2
    again = open_log(memory_fs(log), is_clean=False)
    assert [offset for offset, _ in read_all(again)] == [0, 10, 3_000_000_000, 3_000_000_001]


@pytest.mark.parametrize("truncated_to", [15, 150])
def test_a_roll_after_a_truncation_into_a_gap_leaves_no_lost_end_to_recovery(truncated_to: int) -> None:
    log = open_log(cfg=config(internal_segment_bytes=250))
    for offset in (0, 10, 200):
        follow(log, one(offset))
    truncate(log, truncated_to)
    assert log.log_end_offset == truncated_to
    kept = [offset for offset, _ in read_all(log)]
    for offset in (200, 201):
        follow(log, one(offset, value=b"long" * 30))
    assert len(log.segments) > 2
    again = open_log(memory_fs(log), log.config, is_clean=False)
    assert [offset for offset, _ in read_all(again)] == [*kept, 200, 201]


def test_after_a_truncation_into_a_gap_each_batch_is_within_reach_of_its_segments_base_offset() -> None:
    log = open_log()
    for offset in (0, 3_000_000_000):
        follow(log, one(offset))
    truncate(log, 2_000_000_000)
    follow(log, one(2_000_000_001))
    follow(log, one(3_000_000_000))
    assert len(log.segments) == 2
    again = open_log(memory_fs(log), is_clean=False)
    assert [offset for offset, _ in read_all(again)] == [0, 2_000_000_001, 3_000_000_000]


def test_the_first_leader_epoch_is_written_by_a_flush_and_found_in_the_batches_until_then() -> None:
    """The creation of a file would take longer than the first append to each of a thousand new partitions."""
    log = open_log()
    fs = memory_fs(log)
    follow(log, one(0, 2))
    follow(log, one(1, 2))
    path = f"{log.directory}/leader-epoch-checkpoint"
    assert not fs.exists(path)
    assert log.leader_epochs.entries == [(2, 0)]
    assert log.recovery_point == 0
    assert open_log(fs, is_clean=False).leader_epochs.entries == [(2, 0)]
    fs.remove(path)
    log.flush(NOW_MS)
    assert fs.read_bytes(path) == b"0\n1\n2 0\n"


def test_the_second_leader_epoch_is_written_with_the_first() -> None:
    log = open_log()
    fs = memory_fs(log)
    follow(log, one(0, 2))
    follow(log, one(1, 3), one(2, 4))
    assert fs.read_bytes(f"{log.directory}/leader-epoch-checkpoint") == b"0\n3\n2 0\n3 1\n4 2\n"


@pytest.mark.parametrize(
    ("refused", "after"), [(".log", 1), ("leader-epoch-checkpoint", 1), ("leader-epoch-checkpoint", 2)]
)
@pytest.mark.parametrize("is_repeated", [True, False])
def test_refused_batches_leave_no_leader_epochs(refused: str, after: int, is_repeated: bool) -> None:
    """Batches of a lower epoch than the log's would be refused for ever."""
    log = open_log()
    follow(log, one(0, 2))
    fs = memory_fs(log)
    fs.fail("write", after=after, error=errno.ENOSPC, path_contains=refused)
    with pytest.raises(DiskFullError):
        follow(log, one(1, 2), one(2, 3), one(3, 5))
    assert (log.log_end_offset, log.leader_epochs.entries) == (1, [(2, 0)])
    if is_repeated:
        follow(log, one(1, 2), one(2, 3), one(3, 5))
    else:
        follow(log, one(1, 2), one(2, 2), one(3, 2))
    expected = [(2, 0), (3, 2), (5, 3)] if is_repeated else [(2, 0)]
    assert log.leader_epochs.entries == expected
    assert open_log(fs, is_clean=False).leader_epochs.entries == expected


@pytest.mark.parametrize(("max_batches", "max_bytes"), [(1, 10_000), (3, 10_000), (100, 150), (100, 1), (100, 10_000)])
def test_chunks_consist_of_whole_batches(max_batches: int, max_bytes: int) -> None:
    batches = [one(offset, value=b"v" * offset) for offset in range(10)]
    data = memoryview(b"".join(batches) + one(10)[:30])
    chunks = list(chunk_batches(data, max_batches, max_bytes))
    assert b"".join(chunks) == b"".join(batches)
    for chunk in chunks:
        count = sum(1 for _ in chunk_batches(chunk, 1, 1))
        assert count == 1 or (count <= max_batches and len(chunk) <= max_bytes)


def test_a_single_batch_is_a_chunk_whatever_its_size() -> None:
    data = memoryview(one(0, value=b"v" * 1000))
    assert list(chunk_batches(data, 1, 1)) == [data]
    assert list(chunk_batches(data[:-1], 1, 1)) == []
    assert list(chunk_batches(data[:0], 1, 1)) == []


def damaged(position: int, value: bytes) -> bytes:
    data = bytearray(one(1))
    data[position : position + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        bytes(8) + bytes(4),
        bytes(8) + (5).to_bytes(4, "big") + bytes(4) + b"\2",
        bytes(8) + (49).to_bytes(4, "big") + bytes(4) + b"\2" + bytes(44),
        damaged(16, b"\3"),
        damaged(16, b"\1"),
        damaged(23, b"\xff\xff\xff\xff"),
        damaged(69, b"x"),
        one(1)[:11] + bytes([len(one(1)) - 13]) + one(1)[12:-1],
    ],
    ids=["empty", "short", "no records", "magic 3", "magic 1", "last offset", "checksum", "cut"],
)
def test_a_single_malformed_batch_is_refused(data: bytes) -> None:
    """Its length is that of the records, so that the follower does not search for further batches."""
    log = open_log()
    follow(log, one(0))
    chunks = list(chunk_batches(memoryview(data), 1000, 1 << 20))
    assert chunks == [data]
    with pytest.raises(KafkaError) as caught:
        follow(log, *chunks)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 1
