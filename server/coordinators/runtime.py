"""Runtime of coordinators: one shard for each partition of an internal topic that this broker leads.

A shard handles a request by returning records and responses. The runtime appends the records and makes the shard apply
them before the next request, with the same function as during loading. The responses are sent when the records are
replicated. A result without records may depend on the record of another request; its `after_offset` is then the offset
of that record, and its responses are sent when that record is replicated. A failed append changes no state. If only a
part of the records was appended, the state is discarded and loaded again. If leadership ends, the state is discarded,
and requests whose records wait for replication get an error. A shard is loaded in small steps (`loading`); until it is
loaded and its records are replicated, requests wait (`wait_for_load`) or get COORDINATOR_LOAD_IN_PROGRESS.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Generic

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.coordinator.coordinator_state import CoordinatorState
from odradek.coordinator.partitioning import partition_for
from odradek.coordinator.result import CoordinatorRecord, CoordinatorResult
from odradek.coordinator.steps import Steps
from odradek.log.background.tasks import RunInThread
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import RECORD_BATCH_OVERHEAD, Codec, build_plain_batch, recompress
from odradek.replication.replicas.leader_state import ALWAYS
from odradek.server.coordinators.context import CoordinatorContext, PendingReply, R, S, is_replicated
from odradek.server.coordinators.load_waits import LoadWaits
from odradek.server.coordinators.loading import MAX_CHUNK_BYTES, ShardLoad, compute_retry_pause_s, is_transient
from odradek.server.coordinators.pending_writes import PendingWrite, WriteTimeouts
from odradek.server.coordinators.proof_waits import ProofWaits
from odradek.server.work.clock import Clock
from odradek.server.work.slices import SLICE_S, SMALL_REQUEST_STEPS, Slices
from odradek.server.work.waits import Wait

if TYPE_CHECKING:
    from odradek.replication.replicas.partition import Partition
    from odradek.server.request import Reply

logger = logging.getLogger(__name__)

_MAX_TIMER_S: Final = 3600.0
_RECORDS_PER_BATCH: Final = 1000
"""Maximum number of records in a batch of independent records, such as the tombstones of expired offsets."""
_BATCH_BYTES: Final = 65_536
"""Maximum size of the keys and values in such a batch, unless a single record is larger. It is far below the default of
`max.message.bytes`."""
_RECORD_OVERHEAD_BYTES: Final = 16


async def confirm_none(_: "Partition") -> bool:
    """Confirm no leadership, in a broker without a metadata store that others share."""
    return False


class CoordinatorRuntime(ABC, Generic[S]):
    """The coordinators of one kind on this broker.

    `partition_count` returns the number of partitions of the topic, 0 while the topic does not exist. `now_ms` is the
    wall clock; deadlines use the monotonic clock. `codec` compresses the batches written. `confirm_leadership` returns
    whether the metadata store confirms that this broker leads a partition.
    """

    codec = Codec.NONE
    begins_again_after_others = False
    """A shard is loaded again when another broker may have led its partition since its last leader epoch."""

    def __init__(
        self,
        topic: str,
        *,
        reactor: Clock,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        partition_count: Callable[[], int],
        write_timeout_ms: int,
        slices: Slices,
        run_in_thread: RunInThread,
        load_buffer_bytes: int = MAX_CHUNK_BYTES,
        confirm_leadership: Callable[["Partition"], Awaitable[bool]] = confirm_none,
    ) -> None:
        self.topic = topic
        self._load_chunk_bytes = load_buffer_bytes
        self._slices = slices
        # Requests that are complete do not wait for long work, such as the loading of other shards.
        self._completions = slices.make_separate(SLICE_S)
        self._run_in_thread = run_in_thread
        self._reactor = reactor
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._partition_count = partition_count
        self._contexts: dict[int, CoordinatorContext[S]] = {}
        self._loads: dict[int, LoadWaits] = {}
        """The requests that wait for the load of a shard, by partition, until all of them have continued."""
        self._absent = self._make_absent()
        self._write_timeout_ms = write_timeout_ms
        self._timeouts = WriteTimeouts(write_timeout_ms, self._write_timed_out, reactor)
        self._proofs = ProofWaits(reactor, monotonic_ms, write_timeout_ms, self._find_proved_ms, self._verify)
        self._confirm_leadership = confirm_leadership
        self._reported: dict[int, Callable[[ErrorCode], None] | None] = {}
        """By partition, the callback of the write that was the oldest pending one when a timeout was last logged."""

    @abstractmethod
    def _make_absent(self) -> S:
        """Return a shard that rejects all requests, for partitions with another leader."""

    @abstractmethod
    def _make_shard(self, partition: "Partition") -> S:
        """Return a new shard, which is not loaded yet."""

    def _replay_marker(self, shard: S, producer_id: int, is_commit: bool, offset: int) -> None:
        """Apply a marker of the partition's log while the shard is loaded."""

    def _send(self, context: CoordinatorContext[S] | None, result: CoordinatorResult) -> None:
        """Send the replies of a result whose records are replicated."""
        for token, response in result.replies:
            token.respond(response)

    # -- requests --------------------------------------------------------------------------------------------------

    def index_of(self, key: str) -> int:
        """Return the partition of the coordinator of a group or transactional id; -1 while the topic does not exist."""
        count = self._partition_count()
        return partition_for(key, count) if count else -1

    def shard(self, index: int) -> S:
        """Return the shard of a partition; if the partition has another leader, one that rejects all requests."""
        context = self._contexts.get(index)
        return self._absent if context is None else context.shard

    def shards(self) -> list[S]:
        """Return the shards of all partitions that this broker leads."""
        return [context.shard for context in self._contexts.values()]

    def run(self, key: str, decide: Callable[[S, PendingReply[R], int], CoordinatorResult]) -> "Reply[R]":
        """Pass a request to the shard of a group or transactional id. Return its response, or a Deferred of it.

        `decide` is called with the shard, the token of the request and the time. It calls a method of the shard.
        """
        return self.run_on(self.index_of(key), decide)

    def run_on(self, index: int, decide: Callable[[S, PendingReply[R], int], CoordinatorResult]) -> "Reply[R]":
        """Pass a request to the shard of a partition. Return its response, or a Deferred of it."""
        token: PendingReply[R] = PendingReply(partial(self._describe_wait, index))
        context = self._contexts.get(index)
        now_ms = self._now_ms()
        if context is None:
            self._send(None, decide(self._absent, token, now_ms))
        else:
            self._carry_out(context, decide(context.shard, token, now_ms))
        return token.outcome()

    def wait_for_load(self, key: str, *, in_order: bool) -> Wait[None] | None:
        """Return a Deferred of the end of the load of the shard of a group or transactional id; None if it is over.

        It fires at the latest when a write would time out that began with the load: the request then gets
        COORDINATOR_LOAD_IN_PROGRESS. It is for requests that clients do not repeat at all, or not for as long as a
        change of the leader may take. Afterwards the caller calls again, because another load may have begun.

        in_order: the request must not overtake those that wait, also after the load
        """
        if not self._loads:
            return None
        index = self.index_of(key)
        load = self._loads.get(index)
        if load is None:
            return None
        return load.add(lambda: f"coordinator {self.topic}-{index}: its load", in_order=in_order)

    def wait_for_proof(self, keys: Iterable[str]) -> Wait[set[int]] | None:
        """Wait until it is certain that no other broker has become the coordinator of these keys before the call.

        Returns None if it is now, else a Deferred of the partitions whose state must not be used: `ProofWaits`.
        """
        return self._proofs.add({self.index_of(key) for key in keys})

    def _find_proved_ms(self, index: int) -> int:
        context = self._contexts.get(index)
        return ALWAYS if context is None else context.partition.leadership_proved_ms

    def _verify(self, index: int) -> Deferred[bool]:
        """Return whether this broker leads a partition now, by the metadata store."""

        def report(failure: Failure) -> bool:
            report_failure(failure)
            return False

        return Deferred.fromCoroutine(self._is_confirmed(index)).addErrback(report)

    async def _is_confirmed(self, index: int) -> bool:
        context = self._contexts.get(index)
        return context is not None and await self._confirm_leadership(context.partition)

    @property
    def absent_shard(self) -> S:
        """A shard that rejects all requests with NOT_COORDINATOR."""
        return self._absent

    def _begin_waits(self, index: int) -> LoadWaits:
        def on_continued(waits: LoadWaits) -> None:
            if self._loads.get(index) is waits:
                del self._loads[index]

        waits = LoadWaits(self._reactor, self._completions, self._write_timeout_ms, on_continued, report_failure)
        if (previous := self._loads.get(index)) is not None:
            waits.take_over(previous)
        self._loads[index] = waits
        return waits

    def _describe_wait(self, index: int) -> str:
        """Describe the wait of a request that has no response yet."""
        context = self._contexts.get(index)
        if context is None:
            return f"coordinator {self.topic}-{index}, which this broker no longer leads"
        if not context.waiting:
            return f"coordinator {self.topic}-{index}: other members or a timer; no write is pending"
        offset, log = context.waiting[0][0], context.partition.log
        high_watermark = None if log is None else log.high_watermark
        count = len(context.waiting)
        return f"coordinator {self.topic}-{index}: replication of {count} writes, first {offset=}, {high_watermark=}"

    # -- leadership --------------------------------------------------------------------------------------------------

    def lead_only(self, partitions: Iterable["Partition"]) -> None:
        """Lead exactly these partitions of the topic. The topic may have been deleted or created again."""
        to_lead = {partition.index: partition for partition in partitions}
        for index in [index for index in self._contexts if index not in to_lead]:
            self.resign(index)
        for partition in to_lead.values():
            self.lead(partition)

    def lead(self, partition: "Partition") -> None:
        """Load the shard of a partition that this broker leads, unless it already has one that is valid."""
        context = self._contexts.get(partition.index)
        if context is not None:
            may_skip = not self.begins_again_after_others
            if context.partition is partition and (may_skip or partition.leader_epoch <= context.leader_epoch + 1):
                context.leader_epoch = partition.leader_epoch
                return
            self.resign(partition.index)
        self._begin_to_lead(partition)

    def _reload(self, context: CoordinatorContext[S]) -> None:
        """Discard a shard whose state is uncertain, and load it again."""
        self.resign(context.partition.index)
        self._begin_to_lead(context.partition, context.failures)

    def _begin_to_lead(self, partition: "Partition", failures: int = 0) -> None:
        """Load a shard; after its second unexpected failure with a pause, because it probably fails again."""
        waits = self._begin_waits(partition.index)
        context = CoordinatorContext(partition, self._make_shard(partition), waits, self._on_replicated, failures)
        self._contexts[partition.index] = context
        partition.watchers[context] = None
        if failures > 1:
            context.alarm = self._reactor.callLater(compute_retry_pause_s(failures - 1), self._retry_load, context)
        else:
            self._load(context, context.shard)

    def resign(self, index: int) -> None:
        """Discard the shard of a partition, and send errors to the requests that wait for it, in slices."""
        context = self._contexts.pop(index, None)
        if context is None:
            return
        self._reported.pop(index, None)
        context.partition.watchers.pop(context, None)
        if context.alarm is not None:
            context.alarm.cancel()
        context.load_waits.end()
        # First the shard's requests: a write that fails must not begin a rebalance of a group that is discarded.
        self._discard_shard(context).addCallback(lambda _: self._slices.run(self._fail_writes(context))).addErrback(
            report_failure
        )

    def _discard_shard(self, context: CoordinatorContext[S]) -> Deferred[None]:
        """Close a context's shard now, and reject its requests in slices."""
        rejections = context.shard.resign(self._now_ms())

        def steps() -> Steps[None]:
            for rejected in rejections:
                self._send(None, rejected)
                yield

        return self._slices.run(steps()).addErrback(report_failure)

    def _fail_writes(self, context: CoordinatorContext[S]) -> Steps[None]:
        """Send errors to the requests whose writes wait for replication, after the shard has resigned."""
        while context.waiting:
            try:
                context.waiting.popleft()[1](ErrorCode.NOT_LEADER_OR_FOLLOWER)
            except Exception:
                logger.exception(
                    "a request whose write failed has no response; please report this error partition=%s-%d",
                    self.topic, context.partition.index,
                )  # fmt: skip
            yield

    def stop(self) -> None:
        """Resign as the coordinator of all partitions, and cancel all timers."""
        for index in list(self._contexts):
            self.resign(index)
        self._timeouts.stop()
        self._proofs.stop()

    def _load(self, context: CoordinatorContext[S], shard: S) -> None:
        """Load `shard`, which becomes the shard of `context`. Loading ends early if `context` is discarded."""
        load = ShardLoad(
            context.partition,
            shard,
            self._load_chunk_bytes,
            self._replay_marker,
            self._slices,
            self._run_in_thread,
            is_wanted=lambda: self._is_current(context),
        )

        async def run() -> CoordinatorResult:
            await load.replay_all()
            await self._wait_until_replicated(context)
            return await self._slices.run(shard.finish_loading(self._now_ms()))

        def loaded(result: CoordinatorResult) -> None:
            if self._is_current(context):
                context.shard = shard
                context.load_failures = 0
                context.load_waits.end()
                self._carry_out(context, result)
                self._on_loaded(context)
                if not any(other.coordinator_state is CoordinatorState.LOADING for other in self.shards()):
                    logger.info("coordinators loaded topic=%s shards=%d", self.topic, len(self._contexts))

        Deferred.fromCoroutine(run()).addCallbacks(
            loaded, lambda failure: self._load_failed(context, load.offset, failure.value)
        ).addErrback(report_failure)

    async def _wait_until_replicated(self, context: CoordinatorContext[S]) -> None:
        """Wait until all loaded records are replicated. Raises NOT_LEADER_OR_FOLLOWER.

        The high watermark of a new leader may be behind that of the former one. The records above it may have been
        acknowledged, so clients must not get the state before them; or they may be lost, so nothing may depend on them.
        """
        log = context.partition.leading_log()
        offset = log.log_end_offset - 1
        if is_replicated(context.partition, offset):
            return
        logger.info(
            "coordinator waits for the replication of loaded records partition=%s-%d high_watermark=%d offset=%d",
            self.topic, context.partition.index, log.high_watermark, offset,
        )  # fmt: skip
        replicated: Deferred[ErrorCode] = Deferred()
        self.when_replicated(context, offset, replicated.callback)
        error = await replicated
        if error:
            raise KafkaError(error)

    def _on_loaded(self, context: CoordinatorContext[S]) -> None:
        """Hook: a shard has become active."""

    def _load_failed(self, context: CoordinatorContext[S], offset: int, error: Exception) -> None:
        """Reject requests with NOT_COORDINATOR, and retry after a transient error."""
        if not self._is_current(context) or isinstance(error, SchedulerStopped):
            # The log directory has failed, which is logged elsewhere, or the broker is stopping.
            return
        context.load_failures += 1
        self._discard_shard(context)
        context.load_waits.end()
        name = f"{self.topic}-{context.partition.index}"
        if is_transient(error):
            pause_s = compute_retry_pause_s(context.load_failures)
            logger.warning(
                "coordinator not loaded; its partition's groups or transactions get NOT_COORDINATOR until the next "
                "attempt partition=%s offset=%d next_attempt_s=%g error=%r", name, offset, pause_s, error,
            )
            context.alarm = self._reactor.callLater(pause_s, self._retry_load, context)
        else:
            logger.error(
                "coordinator not loaded: the log cannot be read at this offset; its partition's groups or transactions "
                "get NOT_COORDINATOR; stop the broker, restore the partition's directory from a replica or a backup, "
                "and start it again partition=%s offset=%d directory=%s", name, offset,
                getattr(context.partition.log, "directory", "?"), exc_info=error,
            )

    def _retry_load(self, context: CoordinatorContext[S]) -> None:
        """Load a new shard. Until it is loaded, the old one rejects requests."""
        context.alarm = None
        self._load(context, self._make_shard(context.partition))

    def _is_current(self, context: CoordinatorContext[S]) -> bool:
        return self._contexts.get(context.partition.index) is context

    # -- results -----------------------------------------------------------------------------------------------------

    def _carry_out(self, context: CoordinatorContext[S], result: CoordinatorResult) -> None:
        """Write a result's records, or send its replies if it has none, and handle the following results likewise."""
        shard = context.shard
        while result.records:
            now_ms = self._now_ms()
            offsets: list[int] = []
            try:
                for batch in _encode_batches(result, now_ms, _limit_batch_bytes(context.partition)):
                    if self.codec is not Codec.NONE:
                        batch = recompress(batch, self.codec)
                    info = context.append(batch, now_ms)
                    offsets += (info.first_offset, info.last_offset)
            except KafkaError as error:
                logger.warning(
                    "cannot write coordinator records; their requests get errors partition=%s-%d records=%d error=%s",
                    self.topic,
                    context.partition.index,
                    len(result.records),
                    error,
                )
                if offsets and self._is_current(context):
                    # Some batches were written; the load determines which.
                    self._reload(context)
                    self._on_partly_written(context.partition.index, result)
                result = shard.on_write_failed(result, error.code, now_ms)
                context.wake()
                continue
            first_offset, last_offset = offsets[0], offsets[-1]
            is_done = not context.waiting and is_replicated(context.partition, last_offset)
            shard.on_appended(result, first_offset, now_ms, is_replicated=is_done)
            if not is_done:
                self._set_alarm(context)
                write = PendingWrite(context, result, first_offset)
                self.when_replicated(context, last_offset, self._when_written(write))
                return
            result = shard.on_written(result, first_offset, now_ms)
        offset = result.after_offset
        if offset < 0 or is_replicated(context.partition, offset):
            self._send(context, result)
        else:
            self.when_replicated(context, offset, self._when_written(PendingWrite(context, result, offset)))
        self._set_alarm(context)

    def _on_partly_written(self, index: int, result: CoordinatorResult) -> None:
        """Hook: a result that is not atomic was written in part, and the shard is being loaded again."""

    def when_replicated(self, context: CoordinatorContext[S], offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` with NONE when the record at `offset` is replicated, or with an error if leadership ends before.

        Functions are called in the order of registration.
        """
        if self._is_current(context):
            context.waiting.append((offset, done))
            self._on_replicated(context)
        else:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _when_written(self, write: PendingWrite[S]) -> Callable[[ErrorCode], None]:
        context = write.context

        def written(error: ErrorCode) -> None:
            self._timeouts.discard(write)
            now_ms = self._now_ms()
            if error:
                self._send(None, context.shard.on_write_failed(write.result, error, now_ms))
            else:
                self._carry_out(context, context.shard.on_written(write.result, write.first_offset, now_ms))

        self._timeouts.add(write)
        return written

    def _write_timed_out(self, write: PendingWrite[S]) -> None:
        context = write.context
        if not self._is_current(context):
            # The shard has resigned, and the request gets its error soon.
            return
        with self._reloading_after_failure(context):
            self._time_out_write(context, write)

    def _time_out_write(self, context: CoordinatorContext[S], write: PendingWrite[S]) -> None:
        result = write.result
        write.result = self._remove_timed_out_replies(result)
        oldest = context.waiting[0][1] if context.waiting else None
        if self._reported.get(context.partition.index) is not oldest:
            # Logged once for all writes that wait for the same oldest write.
            self._reported[context.partition.index] = oldest
            logger.warning(
                "coordinator records not replicated in time; until they are, requests that write get "
                "COORDINATOR_NOT_AVAILABLE partition=%s-%d offset=%d timeout_ms=%d",
                self.topic, context.partition.index, write.first_offset, self._write_timeout_ms,
            )  # fmt: skip
        self._carry_out(context, context.shard.on_write_timed_out(result, self._now_ms()))

    @abstractmethod
    def _remove_timed_out_replies(self, result: CoordinatorResult) -> CoordinatorResult:
        """Return the result without the replies whose requests got a timeout error."""

    def _on_replicated(self, context: CoordinatorContext[S]) -> None:
        partition = context.partition
        if not context.leads() and self._is_current(context):
            # At once, because a follower's log may have other records at the offsets that replies wait for. If the log
            # directory has failed, the next load determines whether the last records are on the disk.
            self.resign(partition.index)
        if not context.is_completing:
            # A call within a completion would exceed the limit of nested calls if there are many.
            context.is_completing = True
            self._completions.run(self._complete_replicated(context), SMALL_REQUEST_STEPS).addErrback(report_failure)

    def _complete_replicated(self, context: CoordinatorContext[S]) -> Steps[None]:
        """Call the functions of replicated records, which may be many after a pause of a follower."""
        while (
            self._is_current(context)
            and context.waiting
            and is_replicated(context.partition, context.waiting[0][0])
        ):
            done = context.waiting.popleft()[1]
            with self._reloading_after_failure(context):
                done(ErrorCode.NONE)
            yield
        context.is_completing = False

    @contextmanager
    def _reloading_after_failure(self, context: CoordinatorContext[S]) -> Iterator[None]:
        """Log an exception, and load the shard again: its state may be wrong. The writes that still wait get an error.

        Without it, an exception would end the loop that calls several shards or requests.
        """
        try:
            yield
        except Exception:
            logger.exception(
                "a coordinator failed and is loaded again; please report this error partition=%s-%d",
                self.topic, context.partition.index,
            )  # fmt: skip
            if self._is_current(context):
                context.failures += 1
                self._reload(context)

    def _set_alarm(self, context: CoordinatorContext[S]) -> None:
        """Set the timer for the shard's next deadline. A timer that is already set for an earlier time is kept."""
        if context.is_ticking:
            return
        deadline_ms = context.shard.next_deadline_ms()
        if deadline_ms is None or context.shard.coordinator_state is not CoordinatorState.ACTIVE:
            return
        if not self._is_current(context):
            return
        if context.alarm is not None:
            if context.alarm_ms <= deadline_ms:
                return
            context.alarm.cancel()
        delay_s = min(max(0, deadline_ms - self._monotonic_ms()) / 1000, _MAX_TIMER_S)
        context.alarm_ms = deadline_ms
        context.alarm = self._reactor.callLater(delay_s, self._on_alarm, context)

    def _on_alarm(self, context: CoordinatorContext[S]) -> None:
        """Handle due deadlines after one more reactor iteration.

        If the broker was blocked until after a deadline, that iteration reads the heartbeats that members sent in the
        meantime, and these heartbeats move the deadlines.
        """
        context.alarm_ms = 0
        context.alarm = self._reactor.callLater(0, self._begin_ticks, context)

    def _begin_ticks(self, context: CoordinatorContext[S]) -> None:
        context.alarm = None
        context.is_ticking = True

        def ended(_: object) -> None:
            context.is_ticking = False
            self._set_alarm(context)

        self._slices.run(self._run_ticks(context)).addErrback(report_failure).addBoth(ended)

    def _run_ticks(self, context: CoordinatorContext[S]) -> Steps[None]:
        """Handle due deadlines, a few per step. Requests between the steps may move other deadlines."""
        while (
            self._is_current(context)
            and (deadline_ms := context.shard.next_deadline_ms()) is not None
            and deadline_ms <= self._monotonic_ms()
        ):
            self._carry_out(context, context.shard.tick(self._now_ms()))
            yield


def report_failure(failure: Failure) -> None:
    """Log the failure of work that has no request, unless the broker is stopping."""
    if not isinstance(failure.value, SchedulerStopped):
        logger.error("unexpected error in a coordinator; please report it", exc_info=failure.value)


def _limit_batch_bytes(partition: "Partition") -> int:
    """Return the maximum size of the keys and values in a batch, for a result that is written as several batches."""
    log = partition.log
    if log is None:
        return _BATCH_BYTES
    return min(_BATCH_BYTES, log.config.max_message_bytes - RECORD_BATCH_OVERHEAD)


def _encode_batches(result: CoordinatorResult, now_ms: int, batch_bytes: int) -> Iterator[bytes]:
    """Encode a result's records as one batch, or as several of at most `batch_bytes` each."""
    parts = (result.records,) if result.is_atomic else _split_records(result.records, batch_bytes)
    return (_encode_batch(part, result, now_ms) for part in parts)


def _split_records(records: list[CoordinatorRecord], batch_bytes: int) -> Iterator[list[CoordinatorRecord]]:
    """Divide the records into lists of limited count and size. A record may be large: a group id has up to 32 KiB."""
    start = size_bytes = 0
    for index, record in enumerate(records):
        record_bytes = len(record.key) + len(record.value or b"") + _RECORD_OVERHEAD_BYTES
        is_full = index - start >= _RECORDS_PER_BATCH or size_bytes + record_bytes > batch_bytes
        if is_full and index > start:
            yield records[start:index]
            start, size_bytes = index, 0
        size_bytes += record_bytes
    if records:
        yield records[start:]


def _encode_batch(records: list[CoordinatorRecord], result: CoordinatorResult, now_ms: int) -> bytes:
    producer = result.producer
    if producer is None:
        return build_plain_batch(records, now_ms)
    return build_plain_batch(records, now_ms, producer.producer_id, producer.producer_epoch)
