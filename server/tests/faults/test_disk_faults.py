"""Each change on the disk fails in one run: acknowledged records and offsets exist after the crash.

Produce requests, new and repeated ones, with acks 1 and all, and offset commits, on a disk that breaks or is full at
the first change, at the second, and so on. If the topics have `flush.before.acks`, the machine then loses power.
"""

import errno
import struct
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.coordinator.groups.settings import GroupSettings
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol import codec
from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.protocol.records import build_batch, iter_batches, iter_records
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster, memory_logs
from odradek.server.coordinators.groups import GroupCoordinatorRuntime
from odradek.server.handlers.coordinators.group_offsets import offset_commit, offset_fetch
from odradek.server.handlers.records.produce import produce
from odradek.server.network.produce_fast_path import PendingProduce, ProduceFastPath
from odradek.server.request import RequestContext
from odradek.server.tests.background import background, completions
from odradek.server.work.flusher import Flusher

pytestmark = pytest.mark.slow

OFFSETS = "__consumer_offsets"
VERSION = 9
ROUNDS = 6


class Broker:
    """The parts of a broker that handle the requests, on a disk and with a metadata store that outlive it."""

    def __init__(self, fs, server, promises_sync):
        self.clock = Clock()
        probe = Cluster(server=MemoryMetadataServer())
        logs = memory_logs(probe.configs, ("/data",), fs)
        self.cluster = cluster = Cluster(server=server, logs=logs)
        self.completions = completions(self.clock)
        self.flusher = Flusher(logs, self.clock, self.completions)
        cluster.replicas._request_sync = self.flusher.request
        for name in () if "t" in cluster.image.topics else ("t", OFFSETS):
            configs = {"flush.before.acks": "true"} if promises_sync else {}
            create(cluster, new(name, configs={**configs, "segment.bytes": "1048576"}))
        for partition in cluster.replicas:
            partition._request_sync = self.flusher.request
            partition.configure()
        shared = background(self.clock)
        self.services = SimpleNamespace(
            replicas=cluster.replicas, now_ms=lambda: 0, metadata=cluster.image, flusher=self.flusher,
            reactor=self.clock, slices=shared["slices"], produce_completions=self.completions,
            groups=GroupCoordinatorRuntime(
                GroupSettings(), reactor=self.clock, now_ms=lambda: 0, monotonic_ms=lambda: 0,
                random_uuid=lambda: "id", partition_count=lambda: 1, load_buffer_bytes=1 << 20,
                **shared,
            ),
        )  # fmt: skip
        if cluster.replicas.get(OFFSETS, 0).log is not None:
            self.services.groups.lead(cluster.replicas.get(OFFSETS, 0))
        logs.log_dirs.on_failure = self._directory_failed
        self.fast_path = ProduceFastPath(self.services)
        self.context = RequestContext("host", "PLAINTEXT")
        self.context.api_version = VERSION
        self.other = RequestContext("host", "PLAINTEXT")
        self.other.api_version = 7
        self.settle()

    def _directory_failed(self, path, keys):
        """Do as `server.broker` does."""
        self.cluster.replicas.directory_failed(path)
        self.clock.callLater(0, self._note_offline)

    def _note_offline(self):
        run_now(self.cluster.controller.take_offline(self.cluster.replicas.offline))
        self.services.groups.resign(0)

    def settle(self):
        for _ in range(20):
            self.clock.advance(0)

    def answer(self, outcome):
        """Run until the response has arrived, up to its timeout. Return the response."""
        if not isinstance(outcome, Deferred):
            return outcome
        found: list[Any] = []
        outcome.addCallback(found.append)
        self.settle()
        if not found:
            self.clock.advance(60)
        [response] = found
        return response

    def produce(self, number, acks):
        """Produce through the fast path if it has an answer. Return the base offset, None if the batch was refused."""
        batch = build_batch([(0, None, b"%d" % number, ())], producer_id=5, producer_epoch=0, base_sequence=number)
        data = ProduceRequestPartitionProduceData(index=0, records=memoryview(batch))
        topic = ProduceRequestTopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
        head = struct.pack(">hhih", 0, VERSION, 1, 1) + b"c\0"
        body = head + codec.encode(request, VERSION)
        frame = struct.pack(">i", len(body)) + body
        outcome = self.fast_path.append_records(frame)
        if outcome is None:
            response = self.answer(produce(self.services, self.context, request))
            self.fast_path.add_head(frame, self.context, request, response)
        else:
            response = self.answer(outcome.respond() if isinstance(outcome, PendingProduce) else outcome)
        if isinstance(response, bytearray):
            response = codec.decode(ProduceResponse, VERSION, bytes(response[9:]))
        [row] = response.responses[0].partition_responses
        return row.base_offset if row.error_code == 0 else None

    def commit(self, offset):
        """Commit an offset. Return whether the commit succeeded."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )  # fmt: skip
        response = self.answer(offset_commit(self.services, self.other, request))
        return response.topics[0].partitions[0].error_code == 0

    def committed(self):
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        response = self.answer(
            offset_fetch(self.services, self.other, OffsetFetchRequest(group_id="g", topics=[topic]))
        )
        assert response.error_code == 0
        return response.topics[0].partitions[0].committed_offset

    def records(self):
        partition = self.cluster.replicas.get("t", 0)
        found = {}
        while (region := partition.read(len(found), 1 << 20)) is not None:
            for batch in iter_batches(region.read()):
                found |= {record.offset: record.value for record in iter_records(batch)}
        return found


def send_requests(broker):
    """Send the requests. Return the acknowledged records by offset, and the last committed offset."""
    acknowledged, committed = {}, -1
    for number in range(ROUNDS):
        for _ in range(3):
            offset = broker.produce(number, acks=-1 if number % 2 else 1)
            if offset is not None:
                acknowledged[offset] = b"%d" % number
                assert broker.records().get(offset) == b"%d" % number
                break
        if broker.commit(number):
            committed = number
            assert broker.committed() == number
        if number == 2:
            for partition in broker.cluster.replicas:
                with suppress(KafkaError):
                    if partition.log is not None:
                        partition.log.roll(0)
    return acknowledged, committed


@pytest.mark.parametrize("promises_sync", [False, True], ids=["plain", "flush.before.acks"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_acknowledged_records_and_offsets_survive(error, promises_sync):
    change, failures = 0, 0
    while True:
        change += 1
        fs, server = MemoryFileSystem(), MemoryMetadataServer()
        broker = Broker(fs, server, promises_sync)
        fs.fail_at(change, error=error)
        before = fs.operations
        acknowledged, committed = send_requests(broker)
        if fs.operations - before < change:
            break
        failures += len(acknowledged) < ROUNDS
        fs.heal()
        server.expire(broker.cluster.store)
        if promises_sync:
            fs.crash(Random(change), lose_names=bool(change % 2))
        else:
            fs._held.clear()
        again = Broker(fs, server, promises_sync)
        found = again.records()
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged, change
        assert again.committed() >= committed, change
    assert change > 15
    if error == errno.EIO:
        assert failures > 0
    elif not promises_sync:
        assert failures == 0, "only a failed sync cannot be retried on a full disk"
