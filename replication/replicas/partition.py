"""A partition's replica on this broker: its role, the replicas in sync, and the high watermark.

The leader appends and serves reads. The high watermark is the smallest log end among the replicas in sync; consumers
read below it. With a single replica the high watermark is the log end. With flush.before.acks the leader counts as in
sync only up to its last sync to disk: the high watermark follows the sync, and acknowledgements, coordinators and
consumers follow the high watermark.

Sources: Kafka documentation ("Replication"), KIP-101, KIP-207, KIP-320.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from odradek.log.append import LATEST_PRODUCE_VERSION, AppendInfo
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.log.storage.filesystem import FileRegion, LogDirFailure, ShortageError, storage_error
from odradek.log.validation.batch import CheckedRecords, Origin
from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.topic_names import is_internal
from odradek.replication.replicas.offset_lookup import begin_search, find_offset

logger = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
NO_EPOCH: Final = -1


class Watcher(Protocol):
    """A request that waits for a change of a partition."""

    def wake(self) -> None:
        """Check again: the awaited offset, the log start, or the leadership has changed."""


class Follower:
    """The progress of a follower, as of its last fetch."""

    __slots__ = ("caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self) -> None:
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.caught_up_ms = 0


class Partition:
    """A replica on this broker.

    log: its log; None while it is offline, or cannot be created for lack of disk space, descriptors or memory
    is_leader, leader, leader_epoch, partition_epoch, replicas, isr: set by the controller
    watchers: requests that wait for the high watermark or the log start, in the order of their arrival
    log_end_watchers: requests that wait for the log end, which followers read up to

    A watcher removes itself. Both kinds are woken when the leadership changes.
    """

    __slots__ = (
        "_epoch_start_offset", "_follows_log_end", "_leader_log", "_local_id", "_min_isr", "_on_failure",
        "_request_sync", "_syncs_before_acks", "followers", "index", "is_internal", "is_leader", "isr", "leader",
        "leader_epoch", "log", "log_end_watchers", "partition_epoch", "replicas", "topic", "topic_id", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        local_id: int,
        on_failure: Callable[[LogDirFailure | ShortageError], None] = lambda failure: None,
        request_sync: "Callable[[Partition], None]" = lambda partition: None,
    ) -> None:
        """`request_sync` schedules a sync of the log, after which `synced` is called; several requests share a sync."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.is_internal = is_internal(topic)
        self.log: PartitionLog | None = None
        self.is_leader = False
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.followers: dict[int, Follower] = {}
        self.watchers: dict[Watcher, None] = {}
        self.log_end_watchers: dict[Watcher, None] = {}
        self._local_id = local_id
        self._on_failure = on_failure
        self._request_sync = request_sync
        self._leader_log: PartitionLog | None = None
        self._epoch_start_offset = -1
        self._min_isr = 1
        self._follows_log_end = False
        self._syncs_before_acks = False

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"Partition({self.topic}-{self.index}, {role}, epoch {self.leader_epoch})"

    # -- changes by the controller -------------------------------------------------------------------------------------

    def apply(self, metadata: PartitionMetadata, log: PartitionLog | None) -> None:
        """Take the role that the metadata gives this broker. `log` is None if its directory is offline."""
        if metadata.leader_epoch < self.leader_epoch:
            return
        is_new_epoch = metadata.leader_epoch > self.leader_epoch
        self.log = log
        self.leader = metadata.leader
        self.leader_epoch = metadata.leader_epoch
        self.partition_epoch = metadata.partition_epoch
        self.replicas = metadata.replicas
        self.isr = metadata.isr
        self.is_leader = metadata.leader == self._local_id
        self._leader_log = log if self.is_leader else None
        if self._leader_log is None:
            self.followers.clear()
            self._epoch_start_offset = -1
        elif is_new_epoch or self._epoch_start_offset < 0:
            self._begin_to_lead(self._leader_log)
        self.configure()
        self.wake_watchers()

    def _begin_to_lead(self, log: PartitionLog) -> None:
        self.followers = {replica: Follower() for replica in self.replicas if replica != self._local_id}
        self._epoch_start_offset = log.log_end_offset
        # A lower epoch, from a store that is behind, would remove the later ones from the log's history.
        if self.leader_epoch > log.latest_epoch:
            log.elect(self.leader_epoch)

    def configure(self, config: LogConfig | None = None) -> None:
        """Apply changed topic properties, and update the fields that depend on them."""
        log = self.log
        if log is None:
            return
        if config is not None and config is not log.config:
            log.update_config(config)
        self._min_isr = min(log.config.min_insync_replicas, len(self.replicas))
        is_alone = self.isr == (self._local_id,) and self.replicas == (self._local_id,)
        syncs = self._syncs_before_acks = log.config.flush_before_acks
        self._follows_log_end = self.is_leader and is_alone and self._min_isr <= 1 and not syncs
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
        self.log = None
        self._leader_log = None
        self._follows_log_end = False

    def retire(self) -> None:
        """Stop using the log, because the topic was deleted or the replica moved to another broker.

        Producers' connections keep a reference to the partition, which must not keep the log's files open.
        """
        self.is_leader = False
        self.leader = -1
        self.replicas = self.isr = ()
        self.log = None
        self._leader_log = None
        self._follows_log_end = False
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
        Raises StepwiseValidationRequired.
        """
        log = self._leader_log
        if log is None:
            raise self._not_leading()
        if required_acks == -1 and len(self.isr) < self._min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"in-sync replicas: {len(self.isr)}, required: {self._min_isr}"
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
        isolation_level: int = READ_UNCOMMITTED,
        at_least_one: bool = True,
        current_leader_epoch: int = NO_EPOCH,
    ) -> FileRegion | None:
        """Return the records from `offset` on that consumers may read: below the high watermark or last stable offset.

        None if there are none, or if the first batch does not fit and `at_least_one` is not set. Raises KafkaError: as
        `leading_log`, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        log = self._leader_log
        if log is None or current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            log = self.leading_log(current_leader_epoch)
        state = log.state
        upper_offset = state.last_stable_offset if isolation_level else state.high_watermark
        try:
            return log.read(offset, max_bytes, upper_offset=upper_offset, at_least_one=at_least_one)
        except (LogDirFailure, ShortageError) as failure:
            self._on_failure(failure)
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

    def aborted_transactions(self, offset: int, region: FileRegion) -> Sequence[AbortedTransaction]:
        """Return the transactions that a read-committed consumer skips in a region that `read` returned for `offset`.

        Raises KafkaError: as `leading_log`, KAFKA_STORAGE_ERROR.
        """
        with self._reporting_failures():
            return self.leading_log().aborted_transactions(offset, region)

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

    def _raise_epoch_error(self, epoch: int) -> None:
        if epoch < self.leader_epoch:
            text = f"leader epoch {epoch} is older than the current one, {self.leader_epoch}"
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, text)
        text = f"leader epoch {epoch} is newer than this broker's, {self.leader_epoch}"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, text)

    def _not_leading(self) -> KafkaError:
        if self.log is None and self._local_id in self.replicas:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.index} is offline")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic}-{self.index}")

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return the point at which a reader's history diverges from the log: (epoch, end offset), or None.

        Raises KafkaError OFFSET_OUT_OF_RANGE if the log has no epoch up to the reader's, or the offset is below its
        start. Sources: KIP-320, KIP-595.
        """
        if last_fetched_epoch < 0:
            return None
        log = self.leading_log()
        epoch, end_offset = log.offset_for_leader_epoch(last_fetched_epoch)
        if epoch < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"the log has no leader epoch up to {last_fetched_epoch}"
            )
        if fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log begins at {log.log_start_offset}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def offset_for_leader_epoch(
        self, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Return (largest epoch at or below `leader_epoch`, its end offset), or (-1, -1). Raises as `leading_log`."""
        return self.leading_log(current_leader_epoch).offset_for_leader_epoch(leader_epoch)

    def list_offset(
        self,
        timestamp: int,
        *,
        isolation_level: int | None = READ_UNCOMMITTED,
        current_leader_epoch: int = NO_EPOCH,
    ) -> Generator[Step, None, TimestampOffset]:
        """Find the offset for a timestamp or special value, in steps; NOT_FOUND if there is none.

        isolation_level is None for a replica, which may read up to the log end. Raises KafkaError: as `leading_log`,
        also if the leadership is lost between the steps; OFFSET_NOT_AVAILABLE while a new leader's high watermark has
        not reached the start of its epoch (KIP-207), UNSUPPORTED_VERSION.
        """
        log = self.leading_log(current_leader_epoch)
        with self._reporting_failures():
            search = begin_search(log, timestamp)
            searched = None if search is None else (yield from self._while_leading(log, search))
        if self.leading_log(current_leader_epoch) is not log:
            raise self._not_leading()
        if isolation_level is None:
            upper_offset = log.log_end_offset
        else:
            upper_offset = log.last_stable_offset if isolation_level else log.high_watermark
        is_lagging = isolation_level is not None and log.high_watermark < self._epoch_start_offset
        return find_offset(log, timestamp, searched, upper_offset, self.leader_epoch, is_lagging=is_lagging)

    def _while_leading(
        self, log: PartitionLog, search: Generator[Step, None, TimestampOffset | None]
    ) -> Generator[Step, None, TimestampOffset | None]:
        """Search in steps until the leadership ends: missing files of a deleted log are not a failure."""
        try:
            while True:
                yield next(search)
                if self.leading_log() is not log:
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
        """Return the smallest log start among the replicas; -1 if this broker does not lead."""
        log = self._leader_log
        if log is None:
            return -1
        starts = (follower.log_start_offset for follower in self.followers.values())
        return min((log.log_start_offset, *starts))

    # -- progress of followers -----------------------------------------------------------------------------------------

    def update_follower(
        self, replica: int, log_end_offset: int, log_start_offset: int, monotonic_ms: int
    ) -> None:
        """Record the progress of a follower. Raises KafkaError: as `leading_log`, UNKNOWN_LEADER_EPOCH."""
        log = self.leading_log()
        follower = self.followers.get(replica)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} has no replica of {self!r}")
        follower.log_end_offset = log_end_offset
        follower.log_start_offset = log_start_offset
        if log_end_offset >= log.log_end_offset:
            follower.caught_up_ms = monotonic_ms
        if self._advance_high_watermark():
            self._wake(self.watchers)

    def _advance_high_watermark(self) -> bool:
        """Raise the high watermark to the smallest log end of the in-sync replicas; return whether it moved.

        It never falls, and does not move while fewer replicas are in sync than min.insync.replicas. With
        flush.before.acks the leader's own end is its last sync to disk.
        """
        log = self._leader_log
        if log is None or len(self.isr) < self._min_isr:
            return False
        state = log.state
        offset = state.flushed_offset if self._syncs_before_acks else state.log_end_offset
        for replica in self.isr:
            follower = self.followers.get(replica)
            if follower is not None and follower.log_end_offset < offset:
                offset = follower.log_end_offset
        if offset <= state.high_watermark:
            return False
        log.update_high_watermark(offset)
        return True

    def has_reached(self, offset: int) -> bool:
        """Return whether all in-sync replicas have all records below `offset`, for which acks -1 waits.

        Raises KafkaError: as `leading_log`, NOT_ENOUGH_REPLICAS_AFTER_APPEND if they have the records but are too few.
        """
        log = self.leading_log()
        if log.high_watermark < offset:
            return False
        if len(self.isr) < self._min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"in-sync replicas: {len(self.isr)}, required: {self._min_isr}",
            )
        return True
