"""Several brokers' logs of one partition, real fetchers between them, and a leader that serves Fetch and ListOffsets.

Time is simulated: it advances when no coroutine can continue. Requests and responses pass through the codec.
"""

import heapq
from collections import deque
from random import Random

from odradek.log.background.tasks import run_inline
from odradek.log.config import LogConfig
from odradek.log.log_manager import LogManager
from odradek.log.management.settings import LogManagerSettings
from odradek.log.storage.found_directories import KnownPartitions
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.codec import decode, encode
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from odradek.protocol.records import build_batch, iter_batches, read_header
from odradek.replication.following.fetcher_manager import ReplicaFetcherManager
from odradek.replication.following.settings import FetcherParts, FetcherSettings
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.remote import BrokerUnavailableError
from odradek.replication.replicas.partition import Partition
from odradek.replication.tests.support import broker

TOPIC_ID = bytes(range(16))
CONFIG = {"internal.segment.bytes": "1000", "index.interval.bytes": "100"}


class NoThrottle:
    """No limit of the replication rate."""

    def is_exceeded(self, topic, index):
        return False

    def record(self, topic, index, size_bytes):
        pass


class _Wait:
    """An awaitable that ends when `callback` is called."""

    def __init__(self, world):
        self.world, self.is_over, self.task = world, False, None

    def __await__(self):
        if not self.is_over:
            yield self

    def callback(self, result):
        assert not self.is_over
        self.is_over = True
        if self.task is not None:
            self.world.ready.append(self.task)


class World:
    """Simulated time, and the coroutines that run in it (`FetcherTasks`)."""

    def __init__(self):
        self.now_ms = 1_000
        self.ready = deque()
        self.timers = []
        self.failures = []
        self._count = 0

    def start(self, work):
        self._resume(work)

    def waiter(self):
        return _Wait(self)

    async def pause(self):
        await self.delay(0)

    async def delay(self, ms):
        wait = _Wait(self)
        self._count += 1
        heapq.heappush(self.timers, (self.now_ms + ms, self._count, wait))
        await wait

    def run(self, ms):
        """Run for a simulated time."""
        end_ms = self.now_ms + ms
        while self.ready or (self.timers and self.timers[0][0] <= end_ms):
            self.run_once()
        self.now_ms = end_ms

    def run_once(self):
        """Resume the next coroutine, or end the next delay."""
        if self.ready:
            self._resume(self.ready.popleft())
            return
        due_ms, _, wait = heapq.heappop(self.timers)
        self.now_ms = max(self.now_ms, due_ms)
        wait.callback(None)

    def _resume(self, work):
        try:
            wait = work.send(None)
        except StopIteration:
            return
        if wait.is_over:
            self.ready.append(work)
        else:
            wait.task = work


class Node:
    """A broker: its disk and logs, its partitions, its fetchers, and its side of Fetch and ListOffsets."""

    def __init__(self, cluster, broker_id, config):
        self.cluster = cluster
        self.id = broker_id
        self.fs = MemoryFileSystem()
        self.config = LogConfig({**CONFIG, **config})
        self.is_up = False
        self.partitions = {}
        self.requests = []
        self.progress = {}
        self.sessions = {}
        self.session_count = 0
        self.channels = 0
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        self.partitions = {}
        self.logs = LogManager(
            self.fs,
            self.cluster.directories,
            self.config,
            lambda topic: None,
            self.id,
            settings=LogManagerSettings(num_recovery_threads_per_data_dir=1),
            random_bytes=Random(self.id).randbytes,
            run_in_thread=self._run_later if self.cluster.has_threads else run_inline,
            on_directory_failure=self._directory_failed,
            on_log_replaced=self._log_replaced,
        )
        self.logs.open(self.cluster.world.now_ms, KnownPartitions(lambda topic, index: TOPIC_ID, False))
        self.sessions = {}
        world = self.cluster.world
        parts = FetcherParts(
            broker_id=self.id,
            broker_epoch=lambda: 100 + self.id,
            find_broker=self.cluster.brokers.get,
            channels=self,
            tasks=world,
            delay=world.delay,
            monotonic_ms=lambda: world.now_ms,
            settings=self.cluster.settings,
            throttle=self.cluster.throttle,
            run_drop_behind=run_inline,
        )
        self.fetchers = ReplicaFetcherManager(parts, self.logs, lambda: world.now_ms)
        self.is_up = True

    def crash(self, random=None):
        """Lose what was not synced, as far as `random` decides; None loses all of it."""
        self.is_up = False
        self.fetchers.close()
        self.fs.crash(random)

    def stop(self):
        """Stop cleanly."""
        self.is_up = False
        self.fetchers.close()
        self.logs.close(0)

    def _run_later(self, work, done):
        """Run blocking work after some time, unless the broker crashes or stops before."""
        start = self.starts

        async def run():
            await self.cluster.world.delay(1)
            if self.is_up and self.starts == start:
                run_inline(work, done)

        self.cluster.world.start(run())

    def _log_replaced(self, log):
        if log.partition in self.partitions:
            self.partitions[log.partition].replace_log(log)

    def _directory_failed(self, directory, partitions):
        for partition in self.partitions.values():
            partition.take_offline()

    def apply(self, index, metadata):
        """Take the role that the metadata gives this broker."""
        partition = self.partitions.get(index)
        if partition is None:
            log = self.logs.create_log("t", index, TOPIC_ID, self.cluster.world.now_ms, is_new=True)
            partition = Partition(
                "t", TOPIC_ID, index, self.id, lambda failure: self.logs.fail_directory(failure.directory, failure)
            )
            self.partitions[index] = partition
        else:
            log = partition.log
        partition.apply(metadata, log)
        self.progress = {}
        self.fetchers.follow(partition)

    def log(self, index=0):
        return self.partitions[index].log

    @property
    def fetched(self):
        """The fetched partitions by index."""
        return {
            key[1]: partition for one in self.fetchers.fetchers.values() for key, partition in one.partitions.items()
        }

    # -- BrokerChannels ------------------------------------------------------------------------------------------------

    def open(self, metadata, *, client_id, timeout_ms):
        self.channels += 1
        return Channel(self, self.cluster.nodes[metadata.broker_id])

    # -- requests of followers -----------------------------------------------------------------------------------------

    def answer(self, request):
        return self._list_offsets(request) if isinstance(request, ListOffsetsRequest) else self._fetch(request)

    def _list_offsets(self, request):
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                row = ListOffsetsResponseListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=0
                )
                try:
                    log = self.partitions[asked.partition_index].leading_log(asked.current_leader_epoch)
                    row.offset = log.log_end_offset if asked.timestamp == -1 else log.log_start_offset
                except KafkaError as error:
                    row.error_code = error.code
                rows.append(row)
            topics.append(ListOffsetsResponseListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _fetch(self, request):
        wanted = {(topic.topic_id, row.partition): row for topic in request.topics for row in topic.partitions}
        if request.session_epoch == 0:
            self.sessions.pop(request.session_id, None)
            self.session_count += 1
            session = self.sessions[self.session_count] = LeaderSession(self.session_count)
        elif request.session_id not in self.sessions:
            return self._error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        else:
            session = self.sessions[request.session_id]
            if session.epoch != request.session_epoch:
                return self._error(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.rows.update(wanted)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.rows.pop((topic.topic_id, index))
                session.sent.pop((topic.topic_id, index), None)
        session.epoch += 1
        return self._read_session(session, request)

    def answer_again(self, request):
        """Answer an incremental fetch that waited."""
        if request.session_id not in self.sessions:
            return self._error(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return self._read_session(self.sessions[request.session_id], request)

    def _read_session(self, session, request):
        rows = {}
        for key, asked in session.rows.items():
            row = self._read(asked, request.replica_state.replica_id, request.max_bytes)
            values = row.high_watermark, row.log_start_offset
            is_new = request.session_epoch == 0 or session.sent.get(key) != values
            if is_new or row.error_code or row.records or row.diverging_epoch.epoch >= 0:
                rows[key] = row
            session.sent[key] = None if row.error_code else values
        return FetchResponse(
            throttle_time_ms=0,
            error_code=0,
            session_id=session.id,
            responses=[
                FetchResponseFetchableTopicResponse(topic="", topic_id=key[0], partitions=[row])
                for key, row in rows.items()
            ],
        )

    def _error(self, code):
        return FetchResponse(throttle_time_ms=0, error_code=code, session_id=0, responses=[])

    def _read(self, asked, follower, max_bytes):
        partition = self.partitions.get(asked.partition)
        row = FetchResponsePartitionData(
            partition_index=asked.partition, error_code=0, high_watermark=-1, aborted_transactions=None, records=b""
        )
        try:
            if partition is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            log = partition.leading_log(asked.current_leader_epoch)
            diverging = partition.diverging_epoch(asked.last_fetched_epoch, asked.fetch_offset)
            if diverging is not None:
                row.diverging_epoch = FetchResponseEpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            else:
                region = log.read(
                    asked.fetch_offset,
                    min(max_bytes, asked.partition_max_bytes),
                    upper_offset=log.log_end_offset,
                    at_least_one=True,
                )
                row.records = b"" if region is None else region.read()
                self.cluster.observe_fetch(self, partition, follower, asked.fetch_offset)
            row.high_watermark = log.high_watermark
            row.log_start_offset = log.log_start_offset
        except KafkaError as error:
            row.error_code = error.code
        return row


class LeaderSession:
    """A fetch session on the leader: the partitions, and the offsets last sent for each."""

    def __init__(self, session_id):
        self.id = session_id
        self.epoch = 0
        self.rows = {}
        self.sent = {}


class Channel:
    """A BrokerChannel between two nodes."""

    def __init__(self, sender, receiver):
        self.sender, self.receiver = sender, receiver
        self.is_closed = False

    async def send(self, request, response_type, version=None):
        cluster = self.sender.cluster
        self._check(cluster)
        request = decode(type(request), version, encode(request, version))
        self.receiver.requests.append(request)
        await cluster.world.delay(1)
        self._check(cluster)
        response = self.receiver.answer(request)
        end_ms = cluster.world.now_ms + (request.max_wait_ms if isinstance(request, FetchRequest) else 0)
        while cluster.world.now_ms < end_ms and not response.responses and not response.error_code:
            await cluster.world.delay(10)
            self._check(cluster)
            response = self.receiver.answer_again(request)
        for change in self.receiver.cluster.changes:
            change(response)
        await cluster.world.delay(1)
        self._check(cluster)
        return decode(response_type, version, encode(response, version))

    def _check(self, cluster):
        is_cut = frozenset((self.sender.id, self.receiver.id)) in cluster.cuts
        if self.is_closed or is_cut or not (self.sender.is_up and self.receiver.is_up):
            raise BrokerUnavailableError("no connection")

    def close(self):
        self.is_closed = True


class LogCluster:
    """Brokers with replicas of topic t, which the test elects, feeds, crashes and cuts off.

    changes: called with each response before it is sent
    cuts: pairs of brokers that cannot reach each other
    directories: the log directories of each broker
    has_threads: blocking work of logs takes time, during which other events happen
    """

    def __init__(
        self,
        count=2,
        partitions=1,
        settings=None,
        throttle=None,
        directories=("/data",),
        has_threads=False,
        **config,
    ):
        self.directories = directories
        self.has_threads = has_threads
        self.world = World()
        self.settings = settings or FetcherSettings()
        self.throttle = throttle or NoThrottle()
        self.brokers = {number: broker(number) for number in range(1, count + 1)}
        self.changes = []
        self.cuts = set()
        self.state = {}
        self.partition_count = partitions
        properties = {name.replace("_", "."): str(value) for name, value in config.items()}
        self.nodes = {number: Node(self, number, properties) for number in range(1, count + 1)}

    def elect(self, leader, *, epoch=None, isr=None, index=0, informed=None):
        """Elect a leader in the next leader epoch, and inform the live brokers, the leader first."""
        known = self.state.get(index)
        epoch = epoch if epoch is not None else 0 if known is None else known.leader_epoch + 1
        everyone = tuple(self.nodes)
        live = tuple(number for number, node in self.nodes.items() if node.is_up)
        metadata = PartitionMetadata(leader, epoch, everyone, isr or live, partition_epoch=epoch)
        self.state[index] = metadata
        targets = informed if informed is not None else [leader, *(number for number in live if number != leader)]
        for number in targets:
            self.nodes[number].apply(index, metadata)

    def inform(self, number, index=0):
        """Make a broker apply the present state."""
        self.nodes[number].apply(index, self.state[index])

    def leader(self, index=0):
        return self.nodes[self.state[index].leader]

    def append(self, *values, index=0, node=None, **producer):
        """Append a batch on the leader."""
        node = node or self.leader(index)
        partition = node.partitions[index]
        records = [(self.world.now_ms, b"k", value, ()) for value in values or (b"v",)]
        info = partition.append_as_leader(
            memoryview(build_batch(records, **producer)), required_acks=1, now_ms=self.world.now_ms
        )
        self._advance(node, partition)
        return info.first_offset

    def observe_fetch(self, node, partition, follower, offset):
        node.progress[partition.index, follower] = offset
        self._advance(node, partition)

    def _advance(self, node, partition):
        """Raise the leader's high watermark to the smallest log end of the ISR."""
        log = partition.log
        ends = [
            node.progress.get((partition.index, member), -1) for member in partition.isr if member != node.id
        ]
        offset = min([log.log_end_offset, *ends])
        if offset > log.high_watermark:
            log.update_high_watermark(offset)

    def change_rows(self, index=0, **fields):
        """Change a partition's rows in all fetch responses, until `changes` is cleared."""

        def change(response):
            for topic in getattr(response, "responses", []):
                for row in topic.partitions:
                    if row.partition_index == index:
                        for name, value in fields.items():
                            setattr(row, name, value)

        self.changes.append(change)

    def run(self, ms=3000):
        self.world.run(ms)

    def restart(self, number):
        """Start a broker again; its high watermarks are those of the checkpoint."""
        self.nodes[number].start()


def contents(log):
    """Return all bytes of a log between its start and its end."""
    return b"".join(segment.file.pread(0, segment.size_bytes) for segment in log.segments)


def batches(log):
    """Return (base offset, leader epoch, last offset) of each batch of a log."""
    headers = [read_header(batch) for batch in iter_batches(contents(log))]
    return [(header.base_offset, header.partition_leader_epoch, header.last_offset) for header in headers]


def describe(log):
    """Return what replicas must have in common: bytes, epochs, log start, log end and high watermark."""
    return contents(log), log.leader_epochs.entries, log.log_start_offset, log.log_end_offset, log.high_watermark
