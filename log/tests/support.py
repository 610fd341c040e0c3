"""What the log's tests share: batches, a log in memory, and reading it back."""

from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import open_partition_log
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.validation.batch import LongValidation
from odradek.log.validation.long_batch import check_in_steps
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.records import Codec, build_batch, iter_batches, iter_records, read_header, rebuild_batch

NOW_MS = 1_700_000_000_000
LOG_DIRECTORY = "/data"
DIRECTORY = "/data/topic-0"


def batch(values=(b"v",), *, key=b"k", timestamp=NOW_MS, codec=Codec.NONE, **producer) -> memoryview:
    """A produced batch: one record for each value, all at `timestamp` unless it is a list."""
    times = timestamp if isinstance(timestamp, list) else [timestamp] * len(values)
    records = [(time, key, value, ()) for time, value in zip(times, values, strict=True)]
    return memoryview(build_batch(records, codec=codec, **producer))


def idempotent(sequence, count=1, *, producer_id=7, epoch=0, **keywords) -> memoryview:
    values = [b"%d" % (sequence + index) for index in range(count)]
    return batch(values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **keywords)


def misnumbered(produced, offset_deltas) -> memoryview:
    """A produced batch whose records have other offset deltas than 0, 1, 2..."""
    records = list(iter_records(produced))
    for record, offset_delta in zip(records, offset_deltas, strict=True):
        record.offset = offset_delta
    return memoryview(rebuild_batch(read_header(produced), records))


def config(**properties) -> LogConfig:
    """Small segments and frequent index entries, so that little data exercises everything."""
    values = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
    values |= {name.replace("_", "."): str(value) for name, value in properties.items()}
    return LogConfig(values)


def open_log(fs=None, cfg=None, *, directory=DIRECTORY, is_clean=True, now_ms=NOW_MS, **keywords) -> PartitionLog:
    fs = MemoryFileSystem() if fs is None else fs
    return open_partition_log(
        fs, directory, "topic", 0, cfg or config(), is_clean=is_clean, now_ms=now_ms, **keywords
    )


def append(log, *args, leader_epoch=0, now_ms=NOW_MS, **keywords):
    """Append a batch as a leader and let the high watermark follow."""
    data = args[0] if args and isinstance(args[0], memoryview) else batch(*args, **keywords)
    try:
        info = log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=now_ms)
    except LongValidation as long:
        checked = run_steps(check_in_steps(long.batch, long.config, now_ms))
        info = log.append_as_leader(data, leader_epoch=leader_epoch, now_ms=now_ms, checked=checked)
    log.update_high_watermark(log.log_end_offset)
    return info


def read_all(log, start=None, max_bytes=10_000):
    """All (offset, value) of the log, as a consumer would fetch them."""
    offset = log.log_start_offset if start is None else start
    found = []
    while True:
        region = log.read(offset, max_bytes, upper_offset=log.log_end_offset, at_least_one=True)
        if region is None:
            return found
        data = region.read()
        assert len(data) == region.size_bytes
        batches = list(iter_batches(data))
        assert batches, "a read must give at least one whole batch"
        for one in batches:
            header = read_header(one)
            found += [(record.offset, record.value) for record in iter_records(one) if record.offset >= offset]
            assert header.next_offset > offset or header.next_offset == offset
        assert header.next_offset > offset
        offset = header.next_offset
