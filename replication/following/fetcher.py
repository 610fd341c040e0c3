"""The loop that fetches partitions from one leader: one request at a time, over its own connection.

Each round brings the partitions that changed into the fetch session, sends a request, and handles the partitions of the
response one by one, with other work of the broker between them. An error of a partition delays or parks that partition
only. Without a connection all partitions wait for replica.fetch.backoff.ms.

Sources: KIP-227 (fetch sessions), KIP-320, KIP-595 (diverging epochs), KIP-903 (broker epoch in fetches).
"""

import logging
from collections.abc import Awaitable, Generator
from typing import Final

from odradek.protocol.errors import ErrorCode, KafkaError, read_error_code
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
)
from odradek.replication.following.fetch_session import FetcherSession
from odradek.replication.following.fetched_partition import FetchedPartition, FetchState, PartitionKey
from odradek.replication.following.offset_reset import OffsetReset
from odradek.replication.following.settings import FetcherParts
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.store import Waiter
from odradek.replication.remote import BrokerChannel, BrokerUnavailableError

logger = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
_ROWS_PER_PAUSE: Final = 16
"""Rows of a request that are made at once, which takes up to 0.5 ms."""

_PASSING_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)


class Fetcher:
    """Fetches partitions from one leader. It runs while it has partitions.

    partitions: those assigned, by topic id and index, in any state
    """

    def __init__(self, leader: int, number: int, parts: FetcherParts) -> None:
        self.leader = leader
        self.number = number
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self._parts = parts
        self._session = FetcherSession()
        # Partitions whose parameters are to be compared with those in the session.
        self._changed: dict[FetchedPartition, None] = {}
        self._resetting: list[FetchedPartition] = []
        # Syncs to wait for before the next request.
        self._syncs: list[Waiter] = []
        # In the order of the ends of their delays.
        self._delayed: dict[FetchedPartition, None] = {}
        self._broker: BrokerMetadata | None = None
        self._channel: BrokerChannel | None = None
        self._waiter: Waiter | None = None
        # Expected errors since the last report, with the first partition and the number of partitions.
        self._failures: dict[str, tuple[FetchedPartition, int]] = {}
        self._has_refused_session = False
        self._is_unavailable = False
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"Fetcher(leader {self.leader}, number {self.number})"

    def start(self) -> None:
        """Run the loop until `stop`."""
        self._parts.tasks.start(self._run())

    def stop(self) -> None:
        """End the loop and close the connection. The logs do not change any more."""
        self._is_stopped = True
        for key in list(self.partitions):
            self.remove(key)
        self._close_channel()
        self._wake()

    def add(self, partition: FetchedPartition) -> None:
        """Fetch a partition; one with the same key is replaced."""
        self.remove(partition.key)
        self.partitions[partition.key] = partition
        self._changed[partition] = None
        self._wake()

    def remove(self, key: PartitionKey) -> None:
        """Fetch a partition no longer. The rest of a response for it is ignored."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            partition.stop()
            self._changed.pop(partition, None)
            self._delayed.pop(partition, None)
            self._session.drop(key)

    def _has(self, partition: FetchedPartition) -> bool:
        return self.partitions.get(partition.key) is partition

    # -- loop ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_stopped:
            try:
                await self._do_round()
            except BrokerUnavailableError as error:
                self._session.restart()
                self._close_channel()
                if not self._is_stopped:
                    self._report_unavailable(error)
                    await self._back_off()
            except Exception:
                self._session.restart()
                logger.exception("a round of %r failed; please report it", self)
                await self._back_off()

    def _report_unavailable(self, error: BrokerUnavailableError) -> None:
        """Log the first of several failures in a row."""
        level = logging.DEBUG if self._is_unavailable else logging.WARNING
        self._is_unavailable = True
        logger.log(level, "leader is unavailable fetcher=%r reason=%s", self, error)

    def _report_available(self) -> None:
        if self._is_unavailable:
            self._is_unavailable = False
            logger.info("leader is available again fetcher=%r", self)

    async def _do_round(self) -> None:
        await self._parts.tasks.pause()
        self._resume_delayed()
        await self._update_session()
        self._report_failures()
        if self._is_stopped:
            return
        if self._session.has_nothing_to_send:
            await self._wait_for_partitions()
            return
        channel = self._connect()
        if channel is None:
            await self._back_off()
            return
        response = await channel.send(self._make_request(), FetchResponse, FETCH_VERSION)
        self._report_available()
        if self._session.accept(response):
            self._has_refused_session = False
            await self._handle(response, channel)
        else:
            is_passing = not response.error_code or response.error_code in _PASSING_SESSION_ERRORS
            if self._has_refused_session or not is_passing:
                await self._back_off()
            self._has_refused_session = True

    async def _back_off(self) -> None:
        await self._parts.delay(self._parts.settings.backoff_ms)

    async def _wait_for_partitions(self) -> None:
        """Wait until a partition is added or a delay ends."""
        if self._changed:
            return
        waiter = self._waiter = self._parts.tasks.waiter()
        first = next(iter(self._delayed), None)
        if first is not None:
            delay_ms = max(0, first.due_ms - self._parts.monotonic_ms())
            self._parts.tasks.start(self._wake_later(waiter, delay_ms))
        await waiter

    async def _wake_later(self, waiter: Waiter, delay_ms: int) -> None:
        await self._parts.delay(delay_ms)
        if self._waiter is waiter:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(None)

    def _connect(self) -> BrokerChannel | None:
        """Return the channel to the leader; None if the leader is not in the metadata cache yet."""
        broker = self._parts.find_broker(self.leader)
        if broker is not None and self._broker is not None and broker.endpoints != self._broker.endpoints:
            self._session.restart()
            self._close_channel()
        if self._channel is None and broker is not None:
            self._broker = broker
            parts = self._parts
            client_id = f"broker-{parts.broker_id}-fetcher-{self.number}"
            self._channel = parts.channels.open(broker, client_id=client_id, timeout_ms=parts.settings.timeout_ms)
        return self._channel

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # -- request -------------------------------------------------------------------------------------------------------

    def _resume_delayed(self) -> None:
        now_ms = self._parts.monotonic_ms()
        while (partition := next(iter(self._delayed), None)) is not None and partition.due_ms <= now_ms:
            del self._delayed[partition]
            partition.resume()
            self._changed[partition] = None

    async def _update_session(self) -> None:
        """Bring the parameters of changed partitions into the session."""
        count = 0
        while self._changed:
            partition = next(iter(self._changed))
            del self._changed[partition]
            try:
                truncation = self._update_row(partition)
                if truncation is not None:
                    await truncation
            except Exception as error:
                self._handle_error(partition, error)
            count += 1
            if count % _ROWS_PER_PAUSE == 0:
                await self._parts.tasks.pause()
        if self._syncs:
            await self._await_syncs()

    async def _await_syncs(self) -> None:
        syncs, self._syncs = self._syncs, []
        for sync in syncs:
            await sync

    def _update_row(self, partition: FetchedPartition) -> Awaitable[None] | None:
        """Prepare the next fetch of a partition; return the truncation that is to precede it. Raises KafkaError."""
        if partition.state is FetchState.TRUNCATING:
            return self._truncate_to_high_watermark(partition)
        self._put_row(partition)
        return None

    async def _truncate_to_high_watermark(self, partition: FetchedPartition) -> None:
        await self._parts.run_steps(partition.replica.truncate_to_high_watermark(partition.leader_epoch))
        partition.change_state(FetchState.FETCHING, "truncated to the high watermark")
        self._put_row(partition)

    def _put_row(self, partition: FetchedPartition) -> None:
        """Bring the parameters of a partition that can be fetched now into the session. Raises KafkaError."""
        if partition.state is not FetchState.FETCHING:
            return
        is_in_sync = partition.lag is not None and partition.lag <= 0
        if not is_in_sync and self._parts.throttle.is_exceeded(partition.topic, partition.index):
            self._delay(partition, "the replication rate is exceeded")
            return
        # The leader counts all records below the fetch offset, also those that this broker appended as the leader, or
        # before an error.
        self._begin_sync(partition)
        if partition.state is not FetchState.FETCHING:
            return
        partition.row = partition.make_row(self._parts.settings.partition_max_bytes)
        self._session.put(partition.key, partition.row)

    def _make_request(self) -> FetchRequest:
        settings, session = self._parts.settings, self._session
        topics, forgotten = session.take_changes()
        return FetchRequest(
            replica_id=-1,
            replica_state=FetchRequestReplicaState(
                replica_id=self._parts.broker_id, replica_epoch=self._parts.broker_epoch()
            ),
            max_wait_ms=settings.max_wait_ms if len(session) else 0,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            isolation_level=0,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            rack_id="",
        )

    # -- response ------------------------------------------------------------------------------------------------------

    async def _handle(self, response: FetchResponse, channel: BrokerChannel) -> None:
        has_worked = False
        for topic in response.responses:
            for row in topic.partitions:
                if has_worked:
                    await self._parts.tasks.pause()
                if self._is_stopped:
                    return
                key = topic.topic_id, row.partition_index
                partition = self.partitions.get(key)
                if partition is None:
                    self._session.ignore_row(key)
                    continue
                has_worked = True
                try:
                    rest = self._handle_row(partition, row)
                    if rest is not None:
                        await rest
                except Exception as error:
                    self._handle_error(partition, error)
        if self._is_stopped:
            return
        if self._syncs:
            await self._await_syncs()
        if self._resetting:
            resetting, self._resetting = self._resetting, []
            await self._reset(resetting, channel)

    def _handle_row(self, partition: FetchedPartition, row: FetchResponsePartitionData) -> Awaitable[None] | None:
        """Apply a partition's row of a response, and return the part that takes several steps.

        Few rows have such a part, and a coroutine for each row would take longer than the append of a small batch.
        Raises KafkaError: the leader's, or one of this broker.
        """
        log_end_offset = partition.replica.log(partition.leader_epoch).log_end_offset
        if not partition.expects(log_end_offset):
            # The row is of the partition's last leader epoch. The leader does not repeat it in this session.
            self._session.restart()
            self._changed[partition] = None
            return None
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._session.drop(partition.key)
            partition.change_state(FetchState.RESETTING, f"the leader does not have offset {log_end_offset}")
            self._resetting.append(partition)
        elif row.error_code:
            raise KafkaError(read_error_code(row.error_code), "the leader refused the fetch")
        elif row.diverging_epoch.epoch >= 0 or row.diverging_epoch.end_offset >= 0:
            return self._truncate(partition, row)
        else:
            return self._append(partition, row)
        return None

    async def _truncate(self, partition: FetchedPartition, row: FetchResponsePartitionData) -> None:
        diverging = row.diverging_epoch
        # The leader's offsets in this row are not applied, and it does not repeat them in this session.
        self._session.restart()
        steps = partition.replica.truncate_to_divergence(
            diverging.epoch, diverging.end_offset, partition.leader_epoch
        )
        if not await self._parts.run_steps(steps):
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the log cannot be truncated to the leader's epoch {diverging.epoch} at {diverging.end_offset}",
            )
        self._changed[partition] = None

    def _append(self, partition: FetchedPartition, row: FetchResponsePartitionData) -> Awaitable[None] | None:
        """Append the records of a row, and return the steps after the first. Raises KafkaError."""
        if not row.records:
            self._end_append(partition, row, 0)
            return None
        steps = partition.replica.append(_to_memory(row), row.log_start_offset, partition.leader_epoch)
        try:
            next(steps)
        except StopIteration as end:
            self._end_append(partition, row, end.value)
            return None
        return self._append_rest(partition, row, steps)

    async def _append_rest(
        self, partition: FetchedPartition, row: FetchResponsePartitionData, steps: Generator[None, None, int]
    ) -> None:
        await self._parts.tasks.pause()
        self._end_append(partition, row, await self._parts.run_steps(steps))

    def _end_append(self, partition: FetchedPartition, row: FetchResponsePartitionData, appended_bytes: int) -> None:
        """Adopt the leader's offsets after the append of its records."""
        replica, leader_epoch = partition.replica, partition.leader_epoch
        if appended_bytes:
            self._begin_sync(partition)
        replica.update_offsets(row.high_watermark, row.log_start_offset, leader_epoch)
        partition.update_lag(replica.log(leader_epoch), row.high_watermark, appended_bytes)
        self._changed[partition] = None
        if appended_bytes:
            replica.partition.count_fetched(appended_bytes)
            self._parts.throttle.record(partition.topic, partition.index, appended_bytes)

    def _begin_sync(self, partition: FetchedPartition) -> None:
        """Begin a sync of the log if the next fetch requires it. Raises KafkaError: as `FollowerReplica.log`."""
        if not partition.replica.requires_sync(partition.leader_epoch):
            return
        waiter = self._parts.tasks.waiter()

        def done(error: Exception | None) -> None:
            if error is not None:
                self._fail(partition, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the sync failed: {error}"))
            waiter.callback(None)

        partition.replica.sync(partition.leader_epoch, done)
        self._syncs.append(waiter)

    async def _reset(self, partitions: list[FetchedPartition], channel: BrokerChannel) -> None:
        try:
            await OffsetReset(self._parts, channel, self._isolate).run(partitions)
        finally:
            # The connection may have been lost, and no partition may stay in the state RESETTING.
            for partition in partitions:
                if partition.state is FetchState.RESETTING:
                    self._fail(partition, KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "no offset of the leader"))
                elif partition.state is FetchState.FETCHING and self._has(partition):
                    self._changed[partition] = None

    # -- failures of a partition ---------------------------------------------------------------------------------------

    async def _isolate(self, partition: FetchedPartition, work: Awaitable[None]) -> None:
        """Await work on a partition. If it fails, only that partition is delayed or parked."""
        try:
            await work
        except Exception as error:
            self._handle_error(partition, error)

    def _handle_error(self, partition: FetchedPartition, error: Exception) -> None:
        """Delay or park a partition because work on it has failed."""
        if not isinstance(error, KafkaError):
            logger.error("replica fetch of %r failed; please report it", partition, exc_info=error)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        self._fail(partition, error)

    def _fail(self, partition: FetchedPartition, error: KafkaError) -> None:
        """Delay or park a partition after an error of the leader or of this broker."""
        if not self._has(partition) or partition.state in (FetchState.DELAYED, FetchState.PARKED):
            return
        is_own_epoch = partition.replica.partition.leader_epoch == partition.leader_epoch
        if error.code == ErrorCode.FENCED_LEADER_EPOCH:
            self._park(partition, "the leader has a newer epoch" if is_own_epoch else "this broker has a newer epoch")
        elif error.code == ErrorCode.KAFKA_STORAGE_ERROR and partition.replica.partition.log is None:
            self._park(partition, "the log is offline")
        else:
            if error.code in _EXPECTED_ERRORS:
                first, count = self._failures.get(str(error), (partition, 0))
                self._failures[str(error)] = first, count + 1
            else:
                logger.error("replica fetch failed partition=%r error=%s", partition, error)
            self._delay(partition, str(error))

    def _report_failures(self) -> None:
        """Log the expected errors: one line for all partitions of a new topic that the leader does not have yet."""
        failures, self._failures = self._failures, {}
        for error, (first, count) in failures.items():
            logger.info("replica fetch failed partitions=%d first=%r error=%s", count, first, error)

    def _park(self, partition: FetchedPartition, reason: str) -> None:
        partition.change_state(FetchState.PARKED, reason)
        self._session.drop(partition.key)
        self._changed.pop(partition, None)

    def _delay(self, partition: FetchedPartition, reason: str) -> None:
        partition.delay(self._parts.monotonic_ms() + self._parts.settings.backoff_ms, reason)
        self._session.drop(partition.key)
        self._changed.pop(partition, None)
        self._delayed[partition] = None


_EXPECTED_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors of a partition that is being created, deleted or moved, or whose leader is about to change."""


def _to_memory(row: FetchResponsePartitionData) -> memoryview:
    records = row.records
    if isinstance(records, memoryview):
        return records
    if isinstance(records, bytes):
        return memoryview(records)
    raise TypeError("the records of a decoded response are in memory")
