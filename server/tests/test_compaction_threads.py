"""Long compactions in a broker process: neither acknowledgements nor the stop wait for them."""

import re

import pytest

from odradek.server.tests.wire import Wire, until
from odradek.testing import OdradekBroker

# At this rate compactions sleep for hours; there are as many of them as the reactor's pool has threads.
SLOW = {
    "log.cleaner.threads": "10",
    "log.cleaner.io.max.bytes.per.second": "10",
    "log.cleaner.backoff.ms": "20",
}
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
SMALL, LARGE = 9, 2
"""Partitions that are compacted by a thread, and by a process."""


def write_dirty(wire: Wire) -> None:
    wire.create_topic("small", SMALL, internal_segment_bytes=1000, **COMPACT)
    wire.create_topic("large", LARGE, internal_segment_bytes=400_000, **COMPACT)
    for topic, partitions, value in (("small", SMALL, b"x" * 600), ("large", LARGE, b"x" * 300_000)):
        for partition in range(partitions):
            for _ in range(3):
                assert wire.produce(topic, value, partition=partition).error_code == 0


@pytest.fixture
def broker():
    with OdradekBroker(SLOW) as broker:
        yield broker


def count(broker: OdradekBroker, pattern: str) -> int:
    return len(re.findall(pattern, broker.log_text()))


def test_acknowledgements_and_the_stop_do_not_wait_for_compactions(broker: OdradekBroker) -> None:
    with Wire(broker.port) as wire:
        write_dirty(wire)
        until(lambda: count(broker, r"compacting log=\S+/small-") >= 8, what="threads to compact")
        until(lambda: count(broker, r"compacting log=") >= 10, what="ten compactions")
        wire.create_topic("synced", flush_before_acks="true")
        for number in range(50):
            assert wire.produce("synced", b"%d" % number).base_offset == number
        assert count(broker, "compacted log=") == 0, "the compactions are still running"
    assert broker.stop() == 0
    assert (broker.data_dir / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in broker.log_text()
    assert "killed" not in broker.log_text()
    broker.start()
    with Wire(broker.port) as wire:
        assert wire.fetch("synced", 49).high_watermark == 50
        assert wire.fetch("small", 0).high_watermark == 3
