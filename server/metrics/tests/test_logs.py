"""Metrics of logs that cannot be compacted."""

from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.cleaning import clean, make_log, put, roll
from odradek.server.metrics.collectors.logs import collect_logs
from odradek.server.metrics.exposition import write_families


def test_the_bytes_of_a_log_that_cannot_be_compacted() -> None:
    manager, log = make_log(MemoryFileSystem())
    put(log, (b"a", b"1"), (b"b", b"2"))
    roll(log)
    log.segments[0].file.write_pieces(70, [b"x"], 1)
    clean(manager)
    written: list[bytes] = []
    list(write_families(collect_logs(manager), written.append))
    lines = b"".join(written).decode().splitlines()
    prefix = "kafka_log_logcleanermanager_uncleanable"
    size_bytes = log.segments[0].size_bytes
    assert f'{prefix}_partitions_count{{logDirectory="/d"}} 1' in lines
    assert size_bytes > 0 and f'{prefix}_bytes{{logDirectory="/d"}} {size_bytes}' in lines
