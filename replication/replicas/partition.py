"""A partition's replica on this broker: its role, the replicas in sync, and the high watermark.

The leader appends and serves reads. The high watermark is the smallest log end among the replicas in sync; consumers
read below it. With a single replica the high watermark is the log end. With several replicas, `leader_state` has the
progress of the followers, and the leader proposes changes of the ISR to the controller (`isr`, `isr_changes`). With
flush.before.acks the leader counts as in sync only up to its last sync to disk: the high watermark follows the sync,
and acknowledgements, coordinators and consumers follow the high watermark.

Sources: Kafka documentation ("Replication"), KIP-101, KIP-207, KIP-320.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from odradek.log.append import LATEST_PRODUCE_VERSION, AppendInfo
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.log.storage.filesystem import FileRegion, LogDirFailure, ShortageError, storage_error
from odradek.log.validation.batch import CheckedRecords, Origin
from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import read_header
from odradek.replication.metadata.image import NO_LEADER, PartitionMetadata
from odradek.replication.metadata.topic_names import is_internal
from odradek.replication.replicas.isr import IsrChange, IsrEvent, IsrPhase, IsrState
from odradek.replication.replicas.leader_state import ALWAYS, NEVER, Follower, LeaderState, Replication
from odradek.replication.replicas.offset_lookup import begin_search, find_offset
from odradek.replication.replicas.topic_traffic import TopicTraffic

logger = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
NO_EPOCH: Final = -1
NO_FOLLOWERS: Final[Mapping[int, Follower]] = MappingProxyType({})
_ENDED_LEADERSHIPS: Final = 4
"""Number of ended leaderships that a partition remembers. A request rarely waits through more than one."""


class EndedLeadership(NamedTuple):
    """Leader epochs in which this broker led a partition without interruption, and the high watermark at their end."""

    first_epoch: int
    last_epoch: int
    high_watermark: int


class Watcher(Protocol):
    """A request that waits for a change of a partition."""

    def wake(self) -> None:
        """Check again: the awaited offset, the log start, or the leadership has changed."""


class Partition:
    """A replica on this broker.

    log: its log; None while it is offline, or cannot be created for lack of disk space, descriptors or memory
    is_leader, leader, leader_epoch, partition_epoch, replicas, isr: set by the controller; isr without a pending change
    min_isr: in-sync replicas that acks -1 requires: min.insync.replicas, but no more than there are replicas
    watchers: requests that wait for the high watermark or the log start, in the order of their arrival
    log_end_watchers: requests that wait for the log end, which followers read up to

    traffic: counters that the partitions of the topic share
    expired_produces: batches that were not replicated within the timeout of their request

    A watcher removes itself. Both kinds are woken when the leadership changes.
    """

    __slots__ = (
        "_adding", "_cluster", "_ended_leaderships", "_epoch_start_offset", "_follows_log_end", "_has_few_in_sync",
        "_leader_log", "_leader_state", "_leads_since", "_local_id", "_on_failure", "_request_sync",
        "_syncs_before_acks", "expired_produces", "index", "is_internal", "is_leader", "isr", "leader", "leader_epoch",
        "log", "log_end_watchers", "min_isr", "partition_epoch", "replicas", "topic", "topic_id", "traffic", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        local_id: int,
        on_failure: Callable[[LogDirFailure | ShortageError], None] = lambda failure: None,
        request_sync: "Callable[[Partition], None]" = lambda partition: None,
        cluster: Replication | None = None,
        traffic: TopicTraffic | None = None,
    ) -> None:
        """`request_sync` schedules a sync of the log, after which `synced` is called; several requests share a sync.

        cluster: None on a broker that is not a member of a cluster; its leaders never change an ISR
        traffic: counters that the partitions of a topic share
        """
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.is_internal = is_internal(topic)
        self.traffic = traffic or TopicTraffic()
        self.log: PartitionLog | None = None
        self.is_leader = False
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.expired_produces = 0
        self.watchers: dict[Watcher, None] = {}
        self.log_end_watchers: dict[Watcher, None] = {}
        self._adding: tuple[int, ...] = ()
        self._local_id = local_id
        self._on_failure = on_failure
        self._request_sync = request_sync
        self._cluster = cluster
        self._leader_log: PartitionLog | None = None
        self._leader_state: LeaderState | None = None
        self._epoch_start_offset = -1
        self._leads_since = NO_EPOCH
        self._ended_leaderships: tuple[EndedLeadership, ...] = ()
        self.min_isr = 1
        self._has_few_in_sync = False
        self._follows_log_end = False
        self._syncs_before_acks = False

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"Partition({self.topic}-{self.index}, {role}, epoch {self.leader_epoch})"

    # -- changes by the controller -------------------------------------------------------------------------------------

    def apply(self, metadata: PartitionMetadata, log: PartitionLog | None) -> None:
        """Take the role that the metadata gives this broker. `log` is None if its directory is offline.

        Metadata of an older leader epoch is ignored. Within a leader epoch the controller's responses change the ISR as
        well: metadata of the same partition epoch does not end a pending change, and metadata of an older partition
        epoch changes nothing but the log. Only a stop of the replica has the epochs of its role: it has no leader.
        """
        if metadata.leader_epoch < self.leader_epoch:
            return
        is_new_epoch = metadata.leader_epoch > self.leader_epoch
        is_next_epoch = metadata.leader_epoch <= self.leader_epoch + 1
        led_log, led_epoch = self._leader_log, self.leader_epoch
        was_leader = led_log is not None
        self.log = log
        is_stop = metadata.leader == NO_LEADER
        if is_new_epoch or is_stop or metadata.partition_epoch >= self.partition_epoch:
            self.leader = metadata.leader
            self.leader_epoch = metadata.leader_epoch
            self.replicas = metadata.replicas
            self._adding = metadata.adding
            self.is_leader = metadata.leader == self._local_id
            if is_new_epoch or metadata.partition_epoch > self.partition_epoch or self._leader_state is None:
                self.partition_epoch = metadata.partition_epoch
                self._replace_isr(metadata.isr)
        self._leader_log = log if self.is_leader else None
        if self._leader_log is None:
            self._leader_state = None
            self._epoch_start_offset = -1
            if led_log is not None:
                self._remember_leadership(led_log, led_epoch)
        elif is_new_epoch or self._epoch_start_offset < 0:
            self._begin_to_lead(self._leader_log, was_leader=was_leader, keeps_followers=was_leader and is_next_epoch)
        elif self._leader_state is not None:
            self._leader_state.set_replicas(self.replicas)
        self.configure()
        self.wake_watchers()

    def _remember_leadership(self, log: PartitionLog, last_epoch: int) -> None:
        """Keep the high watermark at the end of a leadership, for the requests whose responses still wait."""
        ended = EndedLeadership(self._leads_since, last_epoch, log.high_watermark)
        self._ended_leaderships = (*self._ended_leaderships[1 - _ENDED_LEADERSHIPS :], ended)

    def _replace_isr(self, isr: tuple[int, ...]) -> None:
        """Set the ISR from metadata; a pending change ends."""
        self.isr = isr
        state = self._leader_state
        if state is not None:
            self._set_isr(state, state.isr.end_change(IsrEvent.REPLACE, isr), IsrEvent.REPLACE)

    def _begin_to_lead(self, log: PartitionLog, *, was_leader: bool, keeps_followers: bool) -> None:
        """Begin a leader epoch.

        keeps_followers: this broker led in the preceding epoch. In an epoch that it missed, another broker may have
            led, and followers may have truncated their logs.
        """
        if not was_leader:
            self._leads_since = self.leader_epoch
            try:
                log.complete_truncation()
            except (LogDirFailure, ShortageError) as failure:
                self._on_failure(failure)
                if self._leader_log is None:
                    return
        self._epoch_start_offset = log.log_end_offset
        # A lower epoch, from a store that is behind, would remove the later ones from the log's history.
        if self.leader_epoch > log.latest_epoch:
            log.elect(self.leader_epoch)
        if self.replicas == (self._local_id,):
            self._leader_state = None
            return
        if self._leader_state is None:
            self._leader_state = LeaderState(self._local_id, self.isr, self._cluster)
        self._leader_state.begin_epoch(self.replicas, log.log_end_offset, is_new_leader=not keeps_followers)

    def configure(self, config: LogConfig | None = None) -> None:
        """Apply changed topic properties, and update the fields that depend on them."""
        log = self.log
        if log is None:
            return
        if config is not None and config is not log.config:
            log.update_config(config)
        self.min_isr = min(log.config.min_insync_replicas, len(self.replicas))
        self._has_few_in_sync = len(self.isr) < self.min_isr
        is_alone = self.isr == (self._local_id,) and self.replicas == (self._local_id,)
        syncs = self._syncs_before_acks = log.config.flush_before_acks
        self._follows_log_end = self.is_leader and is_alone and self.min_isr <= 1 and not syncs
        if syncs and self.is_leader and log.flushed_offset < log.log_end_offset:
            self._request_sync(self)
        if self._advance_high_watermark():
            self._wake(self.watchers)

    def take_offline(self) -> None:
        """Refuse all requests with KAFKA_STORAGE_ERROR from now on, because the log directory failed."""
        self.release_log()
        self.wake_watchers()

    def release_log(self) -> None:
        """Stop using the log. The caller calls `wake_watchers` next."""
        if self._leader_log is not None:
            self._remember_leadership(self._leader_log, self.leader_epoch)
        self.log = None
        self._leader_log = None
        self._leader_state = None
        self._epoch_start_offset = -1
        self._follows_log_end = False

    def replace_log(self, log: PartitionLog) -> None:
        """Use a log that has replaced the present one, with the same records, in another log directory."""
        if self.log is None:
            return
        if self._leader_log is not None:
            self._leader_log = log
        self.log = log
        self.configure()
        self.wake_watchers()

    def retire(self) -> None:
        """Stop using the log, because the topic was deleted or the replica moved to another broker.

        Producers' connections keep a reference to the partition, which must not keep the log's files open.
        """
        self.is_leader = False
        self.leader = -1
        self.replicas = self.isr = ()
        self.release_log()
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Wake all watchers."""
        self._wake(self.watchers)
        self._wake(self.log_end_watchers)

    def _wake(self, watchers: dict[Watcher, None]) -> None:
        """Wake watchers. One that fails affects neither the others nor the append that woke it."""
        for watcher in tuple(watchers):
            try:
                watcher.wake()
            except Exception:
                logger.exception("a request that waits for %s-%d failed; please report it", self.topic, self.index)

    # -- requests of clients -------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        *,
        required_acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int = LATEST_PRODUCE_VERSION,
        is_verified: bool = True,
        transaction_version: int = 0,
        checked: CheckedRecords | None = None,
    ) -> AppendInfo:
        """Append a batch, advance the high watermark if possible, and wake the watchers of the offsets that moved.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS for acks -1 with too few replicas in sync,
        KAFKA_STORAGE_ERROR when offline, and what PartitionLog.append_as_leader raises; then nothing was appended.
        OUT_OF_ORDER_SEQUENCE_NUMBER becomes NOT_LEADER_OR_FOLLOWER while the leadership is not confirmed.
        Raises StepwiseValidationRequired.
        """
        log = self._leader_log
        if log is None:
            raise self._not_leading()
        if required_acks == -1 and self._has_few_in_sync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"in-sync replicas: {len(self.isr)}, required: {self.min_isr}"
            )
        try:
            info = log.append_as_leader(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                produce_version=produce_version,
                is_verified=is_verified,
                transaction_version=transaction_version,
                checked=checked,
            )
        except (LogDirFailure, ShortageError) as failure:
            self._on_failure(failure)
            raise
        except KafkaError as error:
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._is_leadership_confirmed:
                # After an out-of-order error producers begin a new epoch, and write batches again that the next leader
                # may have. They repeat this batch instead, and find the present leader.
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, self._describe_unconfirmed(error)) from error
            raise
        # Refused batches are counted by their caller: an attempt that raises may be followed by another.
        traffic = self.traffic
        traffic.produce_requests += 1
        if not info.is_duplicate:
            traffic.bytes_in += info.size_bytes
            count = info.last_offset - info.first_offset + 1
            traffic.messages_in += count
            if info.size_bytes != len(records) and info.size_bytes != read_header(records).size_bytes:
                # Only a batch that was compressed again, or whose records were numbered again, changes its size. After
                # the batch there may be bytes that are not appended.
                traffic.produce_conversions += count
        if self._follows_log_end:
            log.update_high_watermark(log.state.log_end_offset)
            if self.watchers:
                self._wake(self.watchers)
        else:
            if self._syncs_before_acks:
                self._request_sync(self)
            if self._advance_high_watermark() and self.watchers:
                self._wake(self.watchers)
        if self.log_end_watchers:
            self._wake(self.log_end_watchers)
        return info

    def synced(self) -> None:
        """Advance the high watermark after a sync of the log."""
        if self._syncs_before_acks and self._advance_high_watermark():
            self._wake(self.watchers)

    def waits_for_sync(self, info: AppendInfo, required_acks: int) -> bool:
        """Return whether an acknowledgement waits for a sync separately from its wait for all replicas."""
        return info.flush_due and not (required_acks == -1 and self._syncs_before_acks)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_level: int | None = READ_UNCOMMITTED,
        at_least_one: bool = True,
        current_leader_epoch: int = NO_EPOCH,
        leader_only: bool = True,
        may_wait: bool = True,
    ) -> FileRegion | None:
        """Return the records from `offset` on that consumers may read: below the high watermark or last stable offset.

        isolation_level is None for a replica, which reads up to the log end; without `leader_only` a follower serves
        the read, up to its own high watermark (KIP-392).

        None if there are no records, or if the first batch does not fit and `at_least_one` is not set. Raises
        KafkaError: as `readable_log`, OFFSET_OUT_OF_RANGE (NOT_LEADER_OR_FOLLOWER above the log end, if another broker
        may lead), KAFKA_STORAGE_ERROR. Raises ColdReadError as `LogReader.read`.
        """
        log = self._leader_log
        if log is None or current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            log = self.readable_log(current_leader_epoch, leader_only=leader_only)
        state = log.state
        if isolation_level is None:
            upper_offset = state.log_end_offset
        else:
            upper_offset = state.last_stable_offset if isolation_level else state.high_watermark
        try:
            return log.read(
                offset, max_bytes, upper_offset=upper_offset, at_least_one=at_least_one, may_wait=may_wait
            )
        except (LogDirFailure, ShortageError) as failure:
            self._on_failure(failure)
            raise
        except KafkaError as error:
            is_of_consumer = isolation_level is not None and self._leader_log is not None
            if is_of_consumer and offset > log.log_end_offset and self._may_be_replaced:
                # The next leader may have the offset. After an out-of-range error a consumer leaves its position.
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, self._describe_unconfirmed(error)) from error
            raise

    def region_to_end(self, offset: int, max_bytes: int) -> FileRegion | None:
        """Return batches from `offset` on, including those above the high watermark, to load a coordinator from them.

        At least one batch; None at the log end. The bytes may be read on a thread; an OSError there is passed to
        `read_failed`. Raises KafkaError: as `read`.
        """
        log = self.leading_log()
        try:
            with self._reporting_failures():
                return log.read(offset, max_bytes, upper_offset=log.log_end_offset, at_least_one=True)
        except OSError as error:
            raise self.read_failed(error) from error

    def read_failed(self, error: OSError) -> KafkaError:
        """Return the error to raise for a failed read; after a disk failure take the log directory offline.

        Raises KafkaError: as `leading_log`.
        """
        failure = storage_error(self.leading_log().log_directory, f"reading {self!r} failed: {error}", error)
        self._on_failure(failure)
        return failure

    def report_failure(self, failure: LogDirFailure | ShortageError) -> None:
        """Take the log directory offline after a disk failure; log that a resource is short."""
        self._on_failure(failure)

    def aborted_transactions(
        self, offset: int, region: FileRegion, *, may_wait: bool = True
    ) -> Sequence[AbortedTransaction]:
        """Return the transactions that a read-committed consumer skips in a region that `read` returned for `offset`.

        Raises KafkaError: as `readable_log`, KAFKA_STORAGE_ERROR. Raises ColdReadError as `LogReader.read`.
        """
        with self._reporting_failures():
            return self.readable_log(leader_only=False).aborted_transactions(offset, region, may_wait=may_wait)

    @contextmanager
    def _reporting_failures(self) -> Iterator[None]:
        """Take the log directory offline if it fails. Appends and reads, the hot paths, use no context manager."""
        try:
            yield
        except (LogDirFailure, ShortageError) as failure:
            self._on_failure(failure)
            raise

    def leading_log(self, current_leader_epoch: int = NO_EPOCH) -> PartitionLog:
        """Return the log if this broker leads the partition, in `current_leader_epoch` if that is given (KIP-320).

        Raises KafkaError FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one,
        NOT_LEADER_OR_FOLLOWER if another broker leads, KAFKA_STORAGE_ERROR when offline.
        """
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            self._raise_epoch_error(current_leader_epoch)
        log = self._leader_log
        if log is None:
            raise self._not_leading()
        return log

    def readable_log(self, current_leader_epoch: int = NO_EPOCH, *, leader_only: bool) -> PartitionLog:
        """Return the log, without `leader_only` also of a follower. Raises KafkaError: as `leading_log`."""
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            self._raise_epoch_error(current_leader_epoch)
        log = self._leader_log if leader_only else self.log
        if log is None:
            raise self._not_leading()
        return log

    def _raise_epoch_error(self, epoch: int) -> None:
        if epoch < self.leader_epoch:
            text = f"leader epoch {epoch} is older than the current one, {self.leader_epoch}"
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, text)
        text = f"leader epoch {epoch} is newer than this broker's, {self.leader_epoch}"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, text)

    @property
    def _is_leadership_confirmed(self) -> bool:
        return self._leader_state is None or self._leader_state.is_confirmed()

    @property
    def _may_be_replaced(self) -> bool:
        return self._leader_state is not None and self._leader_state.may_be_replaced()

    @property
    def leadership_proved_ms(self) -> int:
        """Return the time before which no other leader had committed anything: `LeaderState.find_proved_ms`."""
        return ALWAYS if self._leader_state is None else self._leader_state.find_proved_ms(self.min_isr)

    @staticmethod
    def _describe_unconfirmed(what: object) -> str:
        return f"no follower in sync has fetched lately, and {what}"

    def _not_leading(self) -> KafkaError:
        if self.log is None and self._local_id in self.replicas:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.index} is offline")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic}-{self.index}")

    def diverging_epoch(
        self, last_fetched_epoch: int, fetch_offset: int, *, leader_only: bool = True
    ) -> tuple[int, int] | None:
        """Return the point at which a reader's history diverges from the log: (epoch, end offset), or None.

        Raises KafkaError OFFSET_OUT_OF_RANGE if the log has no epoch up to the reader's, or the offset is below its
        start. Sources: KIP-320, KIP-595.
        """
        if last_fetched_epoch < 0:
            return None
        log = self.readable_log(leader_only=leader_only)
        epoch, end_offset = log.offset_for_leader_epoch(last_fetched_epoch)
        if epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log has no leader epoch up to {last_fetched_epoch}")
        if fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log begins at {log.log_start_offset}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def offset_for_leader_epoch(self, leader_epoch: int, current_leader_epoch: int = NO_EPOCH) -> tuple[int, int]:
        """Return (largest epoch at or below `leader_epoch`, its end offset), or (-1, -1) for an epoch above all.

        Raises KafkaError: as `leading_log`; UNKNOWN_LEADER_EPOCH for an epoch above the leader's, if another may lead.
        """
        log = self.leading_log(current_leader_epoch)
        if leader_epoch > self.leader_epoch and self._may_be_replaced:
            # (-1, -1) would be a truncation to consumers that have read records of the next leader, and forgotten its
            # epoch, as librdkafka does when it bootstraps again (KIP-1102).
            text = self._describe_unconfirmed(f"leader epoch {leader_epoch} is newer than {self.leader_epoch}")
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, text)
        return log.offset_for_leader_epoch(leader_epoch)

    def list_offset(
        self,
        timestamp: int,
        *,
        isolation_level: int | None = READ_UNCOMMITTED,
        current_leader_epoch: int = NO_EPOCH,
        leader_only: bool = True,
    ) -> Generator[Step, None, TimestampOffset]:
        """Find the offset for a timestamp or special value, in steps; NOT_FOUND if there is none.

        isolation_level is None for a replica, which may read up to the log end. Raises KafkaError: as `readable_log`,
        also if the leadership is lost between the steps; OFFSET_NOT_AVAILABLE while a new leader's high watermark has
        not reached the start of its epoch (KIP-207), UNSUPPORTED_VERSION.
        """
        log = self.readable_log(current_leader_epoch, leader_only=leader_only)
        with self._reporting_failures():
            search = begin_search(log, timestamp)
            searched = None if search is None else (yield from self._while_readable(log, search, leader_only))
        if self.readable_log(current_leader_epoch, leader_only=leader_only) is not log:
            raise self._not_leading()
        if isolation_level is None:
            upper_offset = log.log_end_offset
        else:
            upper_offset = log.last_stable_offset if isolation_level else log.high_watermark
        is_lagging = isolation_level is not None and log.high_watermark < self._epoch_start_offset
        return find_offset(log, timestamp, searched, upper_offset, self.leader_epoch, is_lagging=is_lagging)

    def _while_readable(
        self, log: PartitionLog, search: Generator[Step, None, TimestampOffset | None], leader_only: bool
    ) -> Generator[Step, None, TimestampOffset | None]:
        """Search in steps until the leadership ends: missing files of a deleted log are not a failure."""
        try:
            while True:
                yield next(search)
                if self.readable_log(leader_only=leader_only) is not log:
                    raise self._not_leading()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            search.close()

    def delete_records(self, offset: int) -> int:
        """Move the log start to `offset`, or to the high watermark if it is -1; return the low watermark (KIP-107).

        The low watermark stays below the offset until the followers have moved their log start as well. Raises
        KafkaError: as `leading_log`, INVALID_TOPIC_EXCEPTION for an internal topic, POLICY_VIOLATION,
        OFFSET_OUT_OF_RANGE.
        """
        if self.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"records of internal topic {self.topic} cannot be deleted"
            )
        log = self.leading_log()
        with self._reporting_failures():
            log.delete_records_before(offset)
        self.wake_watchers()
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """Return the smallest log start among the replicas whose brokers are alive; -1 if this broker does not lead."""
        log = self._leader_log
        if log is None:
            return -1
        state = self._leader_state
        return log.log_start_offset if state is None else state.limit_low_watermark(log.log_start_offset)

    # -- followers and in-sync replicas --------------------------------------------------------------------------------

    @property
    def followers(self) -> Mapping[int, Follower]:
        """Return the progress of the followers, by broker id; none if this broker does not lead."""
        return NO_FOLLOWERS if self._leader_state is None else self._leader_state.followers

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Return the replicas that acknowledgements wait for: the ISR, and a replica that is being added to it."""
        return self.isr if self._leader_state is None else self._leader_state.maximal_isr

    def check_follower(self, replica: int, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise KafkaError unless a broker has a replica of this partition.

        As `leading_log`; UNKNOWN_LEADER_EPOCH if the assignment may have changed, NOT_LEADER_OR_FOLLOWER for a fetch
        without a leader epoch.
        """
        self.leading_log(current_leader_epoch)
        if replica not in self.followers:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if current_leader_epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"broker {replica} has no replica of {self!r}")

    def update_follower(
        self,
        replica: int,
        log_end_offset: int,
        log_start_offset: int,
        monotonic_ms: int,
        broker_epoch: int = -1,
        previous_ms: int = NEVER,
    ) -> None:
        """Record a follower's fetch from its log end; propose to add it to the ISR if it is in sync.

        previous_ms: time of the follower's fetch before this one on the same connection, or in the same session
        Raises KafkaError: as `leading_log`, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER for an old broker epoch.
        """
        log, state = self.leading_log(), self._leader_state
        follower = None if state is None else state.followers.get(replica)
        if state is None or follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} has no replica of {self!r}")
        state.check_broker_epoch(replica, follower, broker_epoch)
        low_watermark = self.low_watermark if log_start_offset != follower.log_start_offset else None
        follower.record_fetch(log_end_offset, log_start_offset, log.log_end_offset, monotonic_ms, previous_ms)
        if replica not in state.maximal_isr:
            self._expand_isr(state, replica, log)
        elif log_end_offset < log.high_watermark:
            self._remove_shortened(state, replica)
        has_advanced = self._advance_high_watermark()
        if has_advanced or (low_watermark is not None and low_watermark != self.low_watermark):
            self._wake(self.watchers)

    def is_throttled(self, replica: int) -> bool:
        """Return whether a follower gets no records now, because the rate of replication exceeds its limit (KIP-73)."""
        return self._leader_state is not None and self._leader_state.is_throttled(self, replica)

    def count_replicated(self, replica: int, size_bytes: int) -> None:
        """Count records that were sent to a follower, also for the throttle."""
        self.traffic.replication_bytes_out += size_bytes
        if replica in self._adding:
            self.traffic.reassignment_bytes_out += size_bytes
        if self._leader_state is not None:
            self._leader_state.count_replicated(self, size_bytes)

    def count_fetched(self, size_bytes: int) -> None:
        """Count records that were fetched from the leader."""
        self.traffic.replication_bytes_in += size_bytes
        if self._local_id in self._adding:
            self.traffic.reassignment_bytes_in += size_bytes

    def count_expired_produce(self) -> None:
        """Count a batch that was not replicated in time."""
        self.traffic.expired_produces += 1
        self.expired_produces += 1

    def select_read_replica(self, rack: str, listener: str, offset: int) -> int | None:
        """Return the follower that a consumer in `rack` is to read from; None if it is to read from this leader."""
        state = self._leader_state
        return None if state is None else state.select_read_replica(rack, listener, offset)

    def _expand_isr(self, state: LeaderState, replica: int, log: PartitionLog) -> None:
        if state.may_join(replica, log.high_watermark, self._epoch_start_offset):
            self._propose_isr(state, IsrEvent.EXPAND, (*self.isr, replica))

    def _remove_shortened(self, state: LeaderState, replica: int) -> None:
        """Propose to remove a member from the ISR that has lost committed records: it must not be elected.

        It has restarted, and the controller has not removed it: a controller of Apache Kafka does not compare broker
        epochs when it adds a member.
        """
        if state.isr.phase is IsrPhase.COMMITTED and replica in self.isr:
            self._propose_isr(state, IsrEvent.SHRINK, tuple(one for one in self.isr if one != replica))

    def shrink_isr(self) -> None:
        """Propose to remove the followers from the ISR that were not caught up for replica.lag.time.max.ms.

        The high watermark may advance without another event: it waits for a follower outside of the ISR for that time.
        """
        log, state = self._leader_log, self._leader_state
        if log is None or state is None:
            return
        removed = state.find_out_of_sync(log.log_end_offset)
        if removed:
            self._propose_isr(state, IsrEvent.SHRINK, tuple(one for one in self.isr if one not in removed))
        if self._advance_high_watermark():
            self._wake(self.watchers)

    def _propose_isr(self, state: LeaderState, event: IsrEvent, isr: tuple[int, ...]) -> None:
        change = IsrChange(isr, self.leader_epoch, self.partition_epoch, state.find_broker_epochs(isr))
        self._set_isr(state, state.isr.propose(event, change), event)
        state.submit(self, change)

    def _set_isr(self, state: LeaderState, isr: IsrState, event: IsrEvent) -> None:
        if isr != state.isr:
            logger.info(
                "ISR partition=%s-%d leader_epoch=%d old=%s new=%s reason=%s",
                self.topic, self.index, self.leader_epoch, state.isr, isr, event.value,
            )  # fmt: skip
        if event is IsrEvent.CONFIRM:
            self.traffic.isr_expands += len(isr.committed) > len(self.isr)
            self.traffic.isr_shrinks += len(isr.committed) < len(self.isr)
        elif event is IsrEvent.REVERT:
            self.traffic.failed_isr_updates += 1
        state.set_isr(isr)
        self.isr = isr.committed
        self._has_few_in_sync = len(self.isr) < self.min_isr

    def is_pending(self, change: IsrChange) -> bool:
        """Return whether a change of the ISR still waits for the controller."""
        return self._leader_state is not None and self._leader_state.isr.pending is change

    def finish_isr_change(
        self, change: IsrChange, leader_epoch: int, isr: tuple[int, ...], partition_epoch: int
    ) -> None:
        """Apply the controller's successful response to a pending change; the high watermark may advance.

        A response of another leader epoch, or of an older partition epoch, leaves the change pending until newer
        metadata arrives.
        """
        state = self._leader_state
        if state is None or state.isr.pending is not change:
            return
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return
        self.partition_epoch = partition_epoch
        self._set_isr(state, state.isr.end_change(IsrEvent.CONFIRM, isr), IsrEvent.CONFIRM)
        self._advance_high_watermark()
        self._wake(self.watchers)

    def revert_isr_change(self, change: IsrChange) -> None:
        """Return to the committed ISR, because the change was not made and will not be."""
        state = self._leader_state
        if state is None or state.isr.pending is not change:
            return
        self._set_isr(state, state.isr.end_change(IsrEvent.REVERT, self.isr), IsrEvent.REVERT)
        if self._advance_high_watermark():
            self._wake(self.watchers)

    # -- high watermark ------------------------------------------------------------------------------------------------

    def _advance_high_watermark(self) -> bool:
        """Raise the high watermark to the smallest log end of the in-sync replicas; return whether it moved.

        It never falls, and does not move while fewer replicas are in sync than min.insync.replicas. With
        flush.before.acks the leader's own end is its last sync to disk.
        """
        log = self._leader_log
        if log is None or self._has_few_in_sync:
            return False
        state = log.state
        offset = state.flushed_offset if self._syncs_before_acks else state.log_end_offset
        if self._leader_state is not None and offset > state.high_watermark:
            offset = self._leader_state.limit_high_watermark(offset)
        if offset <= state.high_watermark:
            return False
        log.update_high_watermark(offset)
        return True

    def has_reached(self, offset: int, appended_epoch: int | None = None) -> bool:
        """Return whether all in-sync replicas have all records below `offset`, for which acks -1 waits.

        There were at least min.insync.replicas of them, otherwise the high watermark would not have moved.

        appended_epoch: leader epoch of the append. If the leadership or the log was lost since, the records may be
            truncated, unless they were replicated before: a response may have to wait for its turn.
        Raises KafkaError: as `leading_log`.
        """
        log = self._leader_log
        if log is not None and (appended_epoch is None or appended_epoch >= self._leads_since):
            return log.high_watermark >= offset
        if appended_epoch is not None:
            for ended in self._ended_leaderships:
                if ended.first_epoch <= appended_epoch <= ended.last_epoch and offset <= ended.high_watermark:
                    return True
        raise self._not_leading()
