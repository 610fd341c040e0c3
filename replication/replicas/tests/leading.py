"""A leader with followers, a fake clock and a fake controller, for the tests of the leader's side of replication."""

from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.messages.alter_partition import (
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from odradek.replication.metadata.image import ClusterMetadata, PartitionMetadata
from odradek.replication.remote import BrokerUnavailableError
from odradek.replication.replicas.isr_changes import IsrChangeQueue
from odradek.replication.replicas.leader_state import NEVER, Replication
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import broker

LAG_MS = 30_000
LOCAL = 1


def open_log(**config):
    values = {name.replace("_", "."): value for name, value in config.items()}
    return open_partition_log(MemoryFileSystem(), "/d/t-0", "t", 0, LogConfig(values), now_ms=0, is_clean=True)


class Pending:
    """An awaitable that a test completes."""

    def __init__(self):
        self.is_over, self.value, self.error = False, None, None

    def __await__(self):
        while not self.is_over:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class Controller:
    """Collects AlterPartition requests until a test answers them; also the delays between them."""

    def __init__(self):
        self.requests, self.delays = [], []
        self._response = self._delay = None
        self._task = None

    # Interfaces of the queue

    async def send(self, request, response_type):
        assert self._response is None, "two requests in flight"
        self.requests.append(request)
        self._response = Pending()
        return await self._response

    async def delay(self, ms):
        self.delays.append(ms)
        self._delay = Pending()
        await self._delay

    def start(self, coroutine):
        self._task = coroutine
        self._resume()

    # Of tests

    @property
    def is_waiting(self):
        """Return whether a request is in flight."""
        return self._response is not None

    @property
    def is_delaying(self):
        """Return whether the queue waits before a retry."""
        return self._delay is not None

    def answer(self, *rows, error_code=0):
        """Answer with rows of (topic id, index, fields)."""
        topics = [
            AlterPartitionResponseTopicData(
                topic_id=topic_id, partitions=[AlterPartitionResponsePartitionData(partition_index=index, **fields)]
            )
            for topic_id, index, fields in rows
        ]
        self._complete(AlterPartitionResponse(error_code=error_code, topics=topics))

    def accept(self):
        """Make every change of the request."""
        rows = []
        for topic in self.requests[-1].topics:
            for data in topic.partitions:
                isr = [member.broker_id for member in data.new_isr_with_epochs]
                fields = {
                    "leader_id": LOCAL,
                    "leader_epoch": data.leader_epoch,
                    "isr": isr,
                    "partition_epoch": data.partition_epoch + 1,
                }
                rows.append((topic.topic_id, data.partition_index, fields))
        self.answer(*rows)

    def refuse(self, code):
        """Answer every change of the request with an error."""
        self.answer(
            *[
                (topic.topic_id, data.partition_index, {"error_code": code})
                for topic in self.requests[-1].topics
                for data in topic.partitions
            ]
        )

    def fail(self):
        """Lose the request or its response."""
        response, self._response = self._response, None
        response.is_over, response.error = True, BrokerUnavailableError("lost")
        self._resume()

    def end_delay(self):
        delay, self._delay = self._delay, None
        delay.is_over = True
        self._resume()

    def _complete(self, value):
        response, self._response = self._response, None
        response.is_over, response.value = True, value
        self._resume()

    def _resume(self):
        try:
            self._task.send(None)
        except StopIteration:
            self._task = None


class Leader:
    """Partition t-0 led by broker 1, with several replicas."""

    def __init__(self, replicas=(1, 2, 3), isr=None, *, epoch=5, partition_epoch=10, log=None, racks=None, **config):
        self.now_ms = 0
        self.image = ClusterMetadata()
        for replica in replicas:
            self.image.put_broker(broker(replica)._replace(rack=(racks or {}).get(replica)))
        self.controller = Controller()
        self.queue = IsrChangeQueue(LOCAL, lambda: 77, self.controller, self.controller.delay, self.controller.start)
        self.cluster = Replication(self.image, self.queue, lambda: self.now_ms, LAG_MS)
        self.partition = Partition("t", b"i" * 16, 0, LOCAL, cluster=self.cluster)
        self.metadata = PartitionMetadata(
            LOCAL, epoch, replicas, replicas if isr is None else isr, partition_epoch=partition_epoch
        )
        self.partition.apply(self.metadata, log or open_log(**config))
        self._fetched_ms = {}

    def apply(self, **changes):
        """Apply changed metadata."""
        self.metadata = self.metadata._replace(**changes)
        self.partition.apply(self.metadata, self.partition.log)

    def append(self, count=1, *, acks=1):
        for _ in range(count):
            batch = memoryview(build_batch([(0, b"k", b"v", ())]))
            info = self.partition.append_as_leader(batch, required_acks=acks, now_ms=0)
        return info

    def fetch(self, replica, offset, *, start=0, after_ms=0, epoch=-1):
        """Record a fetch of a follower on its only connection."""
        self.now_ms += after_ms
        previous_ms = self._fetched_ms.get(replica, NEVER)
        self.partition.update_follower(replica, offset, start, self.now_ms, epoch, previous_ms)
        self._fetched_ms[replica] = self.now_ms

    @property
    def high_watermark(self):
        return self.partition.log.high_watermark

    @property
    def log_end(self):
        return self.partition.log.log_end_offset
