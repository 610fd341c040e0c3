"""Compaction compared with Apache Kafka's Cleaner class over the same logs.

Two copies of a log get the same random batches. Odradek compacts one, and Kafka's class in a JVM the other, at the same
time of a simulated clock, repeatedly while the log grows. After each pass both must have the same batches and records.
Odradek appends to both copies, so each implementation also reads files of the other one.
"""

import random
import shutil
import time
from pathlib import Path

import pytest

from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.storage.filesystem import OsFileSystem
from odradek.log.tests.managers import ONE_THREAD
from odradek.log.validation.batch import Origin
from odradek.protocol.records import (
    Codec,
    ControlType,
    build_batch,
    build_control_batch,
    iter_batches,
    iter_records,
    read_header,
)
from odradek.protocol.tests.java_oracle import java_gateway

ALL_JARS = ("",)
DELETE_RETENTION_MS = 1000
SEEDS = range(12)
PASSES = 4
KEYS = [b"a", b"b", b"c", b"d", b"", b"longer than the digest of a key", b"\x00" * 16]
PLAIN, IDEMPOTENT, TRANSACTIONAL = (-1,), (1, 2, 3), (10, 11, 12)


@pytest.fixture(scope="module")
def kafka():
    with java_gateway(ALL_JARS) as gateway:
        yield KafkaCleaner(gateway)


class KafkaCleaner:
    """Kafka's UnifiedLog and Cleaner."""

    def __init__(self, gateway):
        self._jvm = gateway.jvm
        self._log = gateway.jvm.org.apache.kafka.storage.internals.log
        self._scheduler = gateway.jvm.org.apache.kafka.server.util.KafkaScheduler(1)
        self._scheduler.startup()

    def clean(self, directory, properties, first_dirty_offset, now_ms, max_keys):
        """Clean one partition's log up to its end. Return the offset up to which it is clean."""
        java, log_classes = self._jvm.java, self._log
        system_time = self._jvm.org.apache.kafka.common.utils.Time.SYSTEM
        config = java.util.Properties()
        for name, value in properties.items():
            config.setProperty(name, value)
        log = log_classes.UnifiedLog.create(
            java.io.File(str(directory)),
            log_classes.LogConfig(config),
            0,
            0,
            self._scheduler,
            self._jvm.org.apache.kafka.storage.log.metrics.BrokerTopicStats(),
            system_time,
            900_000,
            log_classes.ProducerStateManagerConfig(86_400_000, False),
            600_000,
            log_classes.LogDirFailureChannel(1),
            True,
            java.util.Optional.empty(),
        )
        try:
            log.updateHighWatermark(log.logEndOffset())
            end = max(first_dirty_offset, min(log.lastStableOffset(), log.activeSegment().baseOffset()))
            cleanable = log_classes.LogToClean(log, first_dirty_offset, end, False)
            if cleanable.cleanableBytes() == 0:
                return first_dirty_offset
            throttler = self._jvm.org.apache.kafka.storage.internals.utils.Throttler(
                1e12, 300, "cleaner-io", "bytes", system_time
            )
            # At a load factor of 0.5 the map is full when it has `max_keys` keys.
            memory = log_classes.SkimpyOffsetMap(24 * (2 * max_keys + 1))
            # The constructor has a parameter of type Consumer, which Stream.Builder extends.
            never_done = java.util.stream.Stream.builder()
            cleaner = log_classes.Cleaner(0, memory, 4096, 1 << 20, 0.5, throttler, system_time, never_done)
            return cleaner.doClean(cleanable, now_ms).getKey()
        finally:
            log.close()


class Twins:
    """Two copies of one log in files, `ours` and `theirs`."""

    def __init__(self, path, properties, max_keys):
        self._paths = [path / "ours", path / "theirs"]
        self._properties = {**properties, "cleanup.policy": "compact"}
        # Appends are not validated as for a compacted topic: its records without keys may be older than its policy.
        self._config = LogConfig({**properties, "cleanup.policy": "delete"})
        self._compacting = LogConfig(self._properties)
        self._settings = ONE_THREAD._replace(
            log_cleaner_dedupe_buffer_size=200 * max_keys, log_cleaner_io_buffer_load_factor=1.0
        )
        self._max_keys = max_keys
        self.clean_to = 0

    def open(self, now_ms):
        self._managers = []
        for path in self._paths:
            path.mkdir(exist_ok=True)
            manager = LogManager(
                OsFileSystem(),
                [str(path)],
                self._config,
                lambda topic: None,
                1,
                settings=self._settings,
                random_bytes=random.Random(1).randbytes,
            )
            manager.open(now_ms)
            self._managers.append(manager)
        self.logs = [manager.create_log("t", 0, bytes(range(16)), now_ms) for manager in self._managers]
        for log in self.logs:
            log.update_high_watermark(log.log_end_offset)

    def append(self, batch, epoch, now_ms, origin=Origin.CLIENT):
        for log in self.logs:
            log.append_as_leader(memoryview(batch), leader_epoch=epoch, now_ms=now_ms, origin=origin)
            log.update_high_watermark(log.log_end_offset)

    def roll(self, now_ms):
        for log in self.logs:
            log.roll(now_ms)

    def clean(self, kafka, now_ms):
        """Compact and close both copies. Return the offsets up to which they are clean."""
        ours, theirs = self._managers
        theirs.close(now_ms)
        theirs_to = kafka.clean(self._paths[1] / "t-0", self._properties, self.clean_to, now_ms, self._max_keys)
        log = self.logs[0]
        log.update_config(self._compacting)
        log.flush(now_ms)
        ours.cleaner.offsets["t", 0] = self.clean_to
        ours.cleaner.step(now_ms)
        assert ours.cleaner.uncleanable == set()
        self.clean_to = ours.cleaner.offsets["t", 0]
        ours.close(now_ms)
        return self.clean_to, theirs_to

    def contents(self):
        return [contents(path / "t-0") for path in self._paths]


def contents(directory: Path):
    """Return the batches, without the fields that may differ between cleaned logs, and the transaction indexes."""
    batches, aborted = [], b""
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            header = read_header(batch)
            records = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in iter_records(batch)]
            # The base of the timestamp deltas may differ, and with it the size.
            kept = header._replace(batch_length=0, crc=0, base_timestamp=0)
            batches.append((kept, header.delete_horizon_ms, records))
        index = path.with_suffix(".txnindex")
        aborted += index.read_bytes() if index.exists() else b""
    return batches, aborted


class Writer:
    """Random batches of all kinds."""

    def __init__(self, chance, twins, outcomes):
        self._chance = chance
        self._twins = twins
        self._outcomes = outcomes
        self._sequences = {}
        self._epochs = dict.fromkeys(IDEMPOTENT + TRANSACTIONAL, 0)
        self._open = set()
        self._leader_epoch = 0

    def write(self, now_ms, count):
        for _ in range(count):
            if self._chance.random() < 0.15:
                self._twins.roll(now_ms)
            if self._chance.random() < 0.05:
                self._leader_epoch += 1
            if self._open and self._chance.random() < 0.3:
                self._end(self._chance.choice(sorted(self._open)), now_ms)
            else:
                self._data(self._chance.choice(PLAIN + IDEMPOTENT + TRANSACTIONAL), now_ms)

    def end_most(self, now_ms):
        for producer_id in sorted(self._open):
            if self._chance.random() < 0.8:
                self._end(producer_id, now_ms)
        self._twins.roll(now_ms)

    def _data(self, producer_id, now_ms):
        chance = self._chance
        records = [self._record(now_ms) for _ in range(chance.randint(1, 6))]
        fields = {}
        if producer_id >= 0:
            if producer_id in IDEMPOTENT and chance.random() < 0.05:
                self._epochs[producer_id] += 1
                self._sequences[producer_id] = 0
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + len(records)
            fields = {
                "producer_id": producer_id,
                "producer_epoch": self._epochs[producer_id],
                "base_sequence": sequence,
                "transactional": producer_id in TRANSACTIONAL,
            }
            if producer_id in TRANSACTIONAL:
                self._open.add(producer_id)
        batch = build_batch(records, codec=Codec(chance.choice((0, 0, 1, 2, 3, 4))), **fields)
        self._twins.append(batch, self._leader_epoch, now_ms)

    def _record(self, now_ms):
        chance = self._chance
        key = None if chance.random() < 0.05 else chance.choice(KEYS)
        value = None if chance.random() < 0.25 else chance.randbytes(chance.choice((0, 3, 40)))
        headers = [("h", b"1"), ("h", None)] if chance.random() < 0.1 else ()
        return now_ms - chance.randint(0, 50), key, value, headers

    def _end(self, producer_id, now_ms):
        self._open.discard(producer_id)
        if self._chance.random() < 0.3:
            # As in transactions version 2, where each transaction has its own epoch.
            self._epochs[producer_id] += 1
            self._sequences[producer_id] = 0
        marker = build_control_batch(
            self._chance.choice(self._outcomes),
            producer_id=producer_id,
            producer_epoch=self._epochs[producer_id],
            coordinator_epoch=0,
            timestamp_ms=now_ms,
        )
        self._twins.append(marker, self._leader_epoch, now_ms, Origin.COORDINATOR)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_cleaners_produce_the_same_log(seed, kafka, tmp_path):
    chance = random.Random(seed)
    properties = {
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        "min.cleanable.dirty.ratio": "0",
        "internal.segment.bytes": str(chance.choice((600, 2000, 20_000))),
        "segment.index.bytes": "4096",
        "index.interval.bytes": str(chance.choice((1, 300))),
        "message.timestamp.type": chance.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        # Kafka deletes files in another thread, at a time that the test does not control. The next load deletes them.
        "file.delete.delay.ms": "3600000",
    }
    max_keys = chance.choice((2, 5, 100))
    # If a full map ends a pass within a segment, Kafka's next pass treats transactions that were aborted earlier in the
    # segment as open, and omits later keys of their producers from its map. This is harmless, and not imitated.
    outcomes = (ControlType.COMMIT, ControlType.ABORT) if max_keys == 100 else (ControlType.COMMIT,)
    twins = Twins(tmp_path, properties, max_keys)
    writer = Writer(chance, twins, outcomes)
    # Kafka uses the system clock, by which the producers must not be expired.
    now_ms = int(time.time() * 1000)
    for _ in range(PASSES):
        twins.open(now_ms)
        writer.write(now_ms, chance.randint(5, 30))
        if chance.random() < 0.7:
            writer.end_most(now_ms)
        ours_to, theirs_to = twins.clean(kafka, now_ms)
        (ours, our_aborted), (theirs, their_aborted) = twins.contents()
        assert ours == theirs
        assert our_aborted == their_aborted
        assert ours_to == theirs_to
        now_ms += chance.choice((0, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS))
    shutil.rmtree(tmp_path)
