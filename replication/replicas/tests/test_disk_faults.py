"""Every change on the disk fails once: all acknowledged records are found afterwards, and later appends succeed.

The same few appends are repeated with a fault at the first change on the disk, at the second, and so on up to the last.
"""

import errno
from copy import deepcopy
from random import Random

import pytest

from odradek.log.recovery import open_partition_log
from odradek.log.storage.filesystem import DiskFullError, LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.support import config, read_all
from odradek.log.validation.batch import Origin
from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.errors import KafkaError
from odradek.protocol.records import ControlType, build_control_batch
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.replicas.partition import Partition

pytestmark = pytest.mark.slow

NOW_MS = 100_000
DIRECTORY = "/d/t-0"
APPENDS = 14


def _marker(kind):
    return build_control_batch(kind, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW_MS)


class Machine:
    """A partition on a disk that may fail, and its acknowledged records."""

    def __init__(self, **properties):
        self.fs = MemoryFileSystem(now_ms=NOW_MS)
        self.config = config(
            internal_segment_bytes=500, index_interval_bytes=0, segment_index_bytes=600, **properties
        )
        self.recovery_point = 0
        self.acknowledged = {}
        self.aborted = set()
        self.undecided = -1
        self.refused = 0
        self.epoch = -1
        self.start(is_clean=True)

    def start(self, *, is_clean):
        self.log = open_partition_log(
            self.fs, DIRECTORY, "t", 0, self.config, now_ms=NOW_MS, is_clean=is_clean,
            recovery_point=self.recovery_point,
        )  # fmt: skip
        if self.config.flush_before_acks and not is_clean:
            self.log.flush(NOW_MS)
        self.partition = Partition("t", b"i" * 16, 0, 1, request_sync=lambda partition: None)
        self.lead()

    def lead(self):
        self.epoch += 1
        self.partition.apply(PartitionMetadata(1, self.epoch, (1,), (1,)), self.log)

    def append(self, records, origin=Origin.CLIENT):
        """Append with retries, as an idempotent producer does. Raises LogDirFailure if the disk fails."""
        for _ in range(5):
            try:
                info = self.partition.append_as_leader(
                    memoryview(bytes(records)), required_acks=-1, now_ms=NOW_MS, origin=origin
                )
            except DiskFullError:
                self.refused += 1
                continue
            if self.config.flush_before_acks:
                assert not self.partition.has_reached(info.last_offset + 1) or info.is_duplicate
                self.log.flush(NOW_MS)
                self.partition.synced()
            assert self.partition.has_reached(info.last_offset + 1)
            return info.first_offset
        raise AssertionError("refused although only one change failed")

    def live(self):
        """Data within transactions, every other one aborted, over several segments and leader epochs."""
        for number in range(APPENDS):
            value = b"value %d" % number * 8
            records = build_batch(
                [(NOW_MS + number, b"k", value, ())],
                producer_id=7, producer_epoch=0, base_sequence=number, transactional=True,
            )  # fmt: skip
            self.undecided = offset = self.append(records)
            self.acknowledged[offset] = value
            kind = ControlType.ABORT if number % 2 else ControlType.COMMIT
            self.append(_marker(kind), Origin.COORDINATOR)
            if number % 2:
                self.aborted.add(offset)
            self.undecided = -1
            if number % 5 == 4:
                self.lead()
                self.log.flush(NOW_MS)
                self.recovery_point = self.log.recovery_point

    def check(self):
        self.fs.heal()
        self.log.update_high_watermark(self.log.log_end_offset)
        found = dict(read_all(self.log))
        for offset, value in self.acknowledged.items():
            assert found.get(offset) == value, f"an acknowledged record is lost: {offset}"
        known = {entry.first_offset for entry in self.known_aborted()}
        assert known >= self.aborted, "aborted records would be read"
        assert known & self.acknowledged.keys() <= self.aborted | {self.undecided}
        # The producer state equals one that is rebuilt from the start of the log.
        entry = self.log.producer_state.producers.get(7)
        again = open_partition_log(deepcopy(self.fs), DIRECTORY, "t", 0, self.config, now_ms=NOW_MS, is_clean=False)
        assert again.log_end_offset == self.log.log_end_offset
        other = again.producer_state.producers.get(7)
        assert (entry and entry.last_sequence) == (other and other.last_sequence)

    def known_aborted(self):
        found, offset = [], self.log.log_start_offset
        while offset < self.log.log_end_offset:
            region = self.log.read(offset, 1 << 20, upper_offset=self.log.log_end_offset, at_least_one=True)
            if region is None:
                break
            found += self.log.aborted_transactions(offset, region)
            later = [s.base_offset for s in self.log.segments if s.base_offset > offset]
            offset = later[0] if later else self.log.log_end_offset
        return found


def changes(**properties):
    machine = Machine(**properties)
    before = machine.fs.operations
    machine.live()
    machine.check()
    return machine.fs.operations - before


PLAIN: dict[str, str] = {}
SYNCED = {"flush_before_acks": "true"}


@pytest.mark.parametrize("properties", [PLAIN, SYNCED], ids=["plain", "flush.before.acks"])
def test_a_disk_that_is_full_once_costs_a_retry_and_nothing_else(properties):
    count = changes(**properties)
    refused = 0
    for change in range(1, count + 1):
        machine = Machine(**properties)
        machine.fs.fail_at(change, error=errno.ENOSPC)
        try:
            machine.live()
        except LogDirFailure as failure:
            assert "flush failed" in str(failure), "only a sync without room cannot be tried again"
            machine.fs.heal()
            machine.start(is_clean=False)
            machine.check()
            continue
        assert machine.log.failure is None
        assert len(machine.acknowledged) == APPENDS
        machine.check()
        refused += machine.refused
        log = machine.log
        log.close(NOW_MS)
        machine.recovery_point = log.recovery_point
        machine.start(is_clean=True)
        machine.check()
    assert refused > 30


@pytest.mark.parametrize("properties", [PLAIN, SYNCED], ids=["plain", "flush.before.acks"])
def test_a_disk_that_stays_full_refuses_appends_until_there_is_room(properties):
    for room_for in range(1, changes(**properties), 3):
        machine = Machine(**properties)
        taken = machine.append

        def append(records, origin=Origin.CLIENT, machine=machine, taken=taken, room_for=room_for):
            if machine.fs.operations >= room_for:
                machine.append = taken
                machine.fs.is_full = True
                size_bytes = machine.fs.size_bytes(machine.log.active_segment.path(".log"))
                for _ in range(3):
                    with pytest.raises(DiskFullError):
                        machine.partition.append_as_leader(
                            memoryview(bytes(records)), required_acks=-1, now_ms=NOW_MS, origin=origin
                        )
                assert machine.fs.size_bytes(machine.log.active_segment.path(".log")) == size_bytes
                machine.log.remove_deleted(machine.log.delete_old_segments(NOW_MS))
                machine.fs.is_full = False
            return taken(records, origin)

        machine.append = append
        try:
            machine.live()
        except LogDirFailure as failure:
            assert "flush failed" in str(failure)
            continue
        assert len(machine.acknowledged) == APPENDS
        machine.check()


@pytest.mark.parametrize("properties", [PLAIN, SYNCED], ids=["plain", "flush.before.acks"])
def test_writes_of_a_failing_disk_are_not_acknowledged(properties):
    """The process crashes with the disk, and a power failure may lose any part of the unsynced data."""
    is_synced = properties is SYNCED
    for change in range(1, changes(**properties) + 1):
        machine = Machine(**properties)
        machine.fs.fail_at(change, error=errno.EIO)
        try:
            machine.live()
        except LogDirFailure:
            with pytest.raises(KafkaError):
                machine.append(build_batch([(NOW_MS, b"k", b"v", ())]))
        machine.fs.heal()
        if is_synced:
            machine.fs.crash(Random(change), lose_names=bool(change % 2))
        machine.start(is_clean=False)
        machine.check()
