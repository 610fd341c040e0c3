"""Writing of transaction markers in a cluster: to partitions of this broker directly, to others by WriteTxnMarkers.

All markers that are pending for a leader are sent in one request, and one request per leader is in flight. A failed
request fails its markers; the transaction coordinator sends them again, to the leaders of that time. Source of the
behaviour: Apache Kafka's TransactionMarkerChannelManager.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped

from odradek.coordinator.result import TransactionOutcome
from odradek.coordinator.steps import Steps
from odradek.protocol.errors import ErrorCode, read_error_code
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
    WriteTxnMarkersResponse,
)
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.store import MetadataStoreError
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.batch_loop import BatchLoop
from odradek.server.brokers.channel_pool import ChannelPool
from odradek.server.coordinators.interfaces import MarkerWriter
from odradek.server.coordinators.marker_sender import OnWritten, RequestedMarkers, TopicPartition, TransactionMarker
from odradek.server.coordinators.runtime import report_failure
from odradek.server.work.clock import Clock
from odradek.server.work.slices import ROWS_PER_STEP, Slices
from odradek.server.work.waits import AnyDeferred

logger = logging.getLogger(__name__)

MAX_BATCH_PARTITIONS: Final = 1000
"""Number of partitions from which on further transactions wait for the next request."""

_RESPONSE_MARGIN_MS: Final = 10_000

Markers = dict[TransactionMarker, dict[TopicPartition, list[OnWritten]]]
"""The functions to call, by marker and partition. A coordinator that was loaded again may repeat a marker."""

Errors = dict[int, dict[TopicPartition, ErrorCode]]
"""The errors of a response, by producer id and partition."""


IsDeleted = Callable[[str, int], Coroutine[AnyDeferred, object, bool]]


def find_response_timeout_ms(request_timeout_ms: int) -> int:
    """Return the timeout of WriteTxnMarkers and AddPartitionsToTxn for the sender.

    The other broker waits `request_timeout_ms` for the replication, and then reports the partitions or transactions
    that lack it. The sender must not give up before: it would lose the results of all others, and its connection.
    """
    return request_timeout_ms + _RESPONSE_MARGIN_MS


class ClusterMarkerSender:
    """Writes markers to the leaders in the metadata image (`interfaces.MarkerWriter`).

    local: writes to the partitions that this broker leads
    is_deleted: returns whether a partition is deleted in the metadata store. Raises MetadataStoreError
    """

    def __init__(
        self,
        local: MarkerWriter,
        *,
        broker_id: int,
        metadata: ClusterMetadata,
        channels: ChannelPool,
        clock: Clock,
        slices: Slices,
        is_deleted: IsDeleted,
    ) -> None:
        self._local = local
        self._broker_id = broker_id
        self._metadata = metadata
        self._channels = channels
        self._clock = clock
        self._slices = slices
        self._is_deleted = is_deleted
        self._queues: dict[int, _LeaderQueue] = {}

    def send(self, outcome: TransactionOutcome, done: Callable[[TopicPartition, ErrorCode], None]) -> Steps[None]:
        """Write a marker of the outcome to one partition per step; call `done` for each, immediately or later.

        A deleted partition needs no marker: its error is NONE. One without a live leader gets NOT_LEADER_OR_FOLLOWER.
        So does one that is not in the metadata cache, unless it is deleted in the store too: after the start of a
        broker or of a controller the cache is still empty when the shards have been loaded.
        """
        marker = TransactionMarker.of(outcome)
        for name in outcome.partitions:
            metadata = self._metadata.partition(*name)
            if metadata is None:
                Deferred.fromCoroutine(self._skip_deleted(name, partial(done, name))).addErrback(report_failure)
            elif metadata.leader == self._broker_id:
                self._local.write(name, marker, partial(done, name))
            elif metadata.leader not in self._metadata.brokers:
                done(name, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self._find_queue(metadata.leader).add(marker, name, partial(done, name))
            yield

    @property
    def requested(self) -> RequestedMarkers:
        """The WriteTxnMarkers requests in progress."""
        return self._local.requested

    async def _skip_deleted(self, name: TopicPartition, done: OnWritten) -> None:
        is_deleted = False
        try:
            is_deleted = await self._is_deleted(*name)
        except MetadataStoreError as error:
            logger.warning("a marker is sent later partition=%s-%d: %s", *name, error)
        except Exception:
            # A transaction whose marker has no result would never end.
            logger.exception("a marker is sent later; please report it partition=%s-%d", *name)
        done(ErrorCode.NONE if is_deleted else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def write(self, name: TopicPartition, marker: TransactionMarker, done: OnWritten) -> None:
        """Write a marker to a partition of this broker, for WriteTxnMarkers of another one."""
        self._local.write(name, marker, done)

    def _find_queue(self, leader: int) -> "_LeaderQueue":
        queue = self._queues.get(leader)
        if queue is None:
            queue = self._queues[leader] = _LeaderQueue(leader, self._channels, self._clock, self._slices)
        return queue


class _LeaderQueue:
    """The markers that are pending for one leader."""

    def __init__(self, leader: int, channels: ChannelPool, clock: Clock, slices: Slices) -> None:
        self._leader = leader
        self._channels = channels
        self._slices = slices
        self._pending: Markers = {}
        self._loop = BatchLoop(clock, self._send_batch, report_failure)

    def add(self, marker: TransactionMarker, name: TopicPartition, done: OnWritten) -> None:
        """Add a marker for a partition."""
        self._pending.setdefault(marker, {}).setdefault(name, []).append(done)
        self._loop.wake()

    def _take_batch(self) -> Markers:
        """Take pending markers, at most one for each producer id, because a response has errors by producer id."""
        batch: Markers = {}
        producer_ids: set[int] = set()
        count = 0
        for marker, partitions in self._pending.items():
            if marker.producer_id not in producer_ids:
                producer_ids.add(marker.producer_id)
                batch[marker] = partitions
                count += len(partitions)
                if count >= MAX_BATCH_PARTITIONS:
                    break
        for marker in batch:
            del self._pending[marker]
        return batch

    async def _send_batch(self) -> bool:
        batch = self._take_batch()
        if not batch:
            return False
        errors: Errors = {}
        missing = ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            response = await self._ask(batch)
            if response is not None:
                missing = ErrorCode.UNKNOWN_SERVER_ERROR
                errors = await self._slices.run(_collect_errors(response))
        except BrokerUnavailableError as error:
            logger.info("transaction markers not sent, will retry broker=%d error=%s", self._leader, error)
        except SchedulerStopped:
            raise
        except Exception:
            # A transaction whose marker has no result would never end.
            logger.exception("transaction markers not sent, will retry; please report it broker=%d", self._leader)
        await self._slices.run(_complete(batch, errors, missing))
        return True

    async def _ask(self, batch: Markers) -> WriteTxnMarkersResponse | None:
        """Send a batch; return None if its broker is not live. Raises BrokerUnavailableError."""
        channel = self._channels.find(self._leader)
        if channel is None:
            return None
        return await channel.send(await self._slices.run(_make_request(batch)), WriteTxnMarkersResponse)


def _make_request(batch: Markers) -> Steps[WriteTxnMarkersRequest]:
    entries = []
    for marker, partitions in batch.items():
        topics: dict[str, list[int]] = {}
        for number, (topic, index) in enumerate(partitions, 1):
            topics.setdefault(topic, []).append(index)
            if not number % ROWS_PER_STEP:
                yield
        entries.append(
            WriteTxnMarkersRequestWritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_result=marker.is_commit,
                transaction_version=marker.transaction_version,
                topics=[
                    WriteTxnMarkersRequestWritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        )
        yield
    return WriteTxnMarkersRequest(markers=entries)


def _collect_errors(response: WriteTxnMarkersResponse) -> Steps[Errors]:
    errors: Errors = {}
    for entry in response.markers:
        rows = errors.setdefault(entry.producer_id, {})
        for topic in entry.topics:
            for number, row in enumerate(topic.partitions, 1):
                rows[topic.name, row.partition_index] = read_error_code(row.error_code)
                if not number % ROWS_PER_STEP:
                    yield
        yield
    return errors


def _complete(batch: Markers, errors: Errors, missing: ErrorCode) -> Steps[None]:
    """Call the functions of a batch with the partitions' errors; `missing` is for partitions without a result."""
    for marker, partitions in batch.items():
        rows = errors.get(marker.producer_id, {})
        for name, functions in partitions.items():
            error = rows.get(name, missing)
            for done in functions:
                try:
                    done(error)
                except Exception:
                    logger.exception("the result of a marker was not handled; please report it partition=%s-%d", *name)
            yield
