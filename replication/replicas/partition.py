"""One partition's replica on this broker: its role, the replicas in sync, and the high watermark.

The leader takes the appends and serves the reads; the high watermark is the smallest log end among the replicas in
sync, and consumers see nothing above it. With one replica it is the log's end; nothing else differs.
With flush.before.acks the leader itself is in sync only up to what is on its disk: the high watermark follows the
sync, and with it acknowledgements, coordinators and consumers.
Sources: Kafka documentation ("Replication"), KIP-101, KIP-207, KIP-320.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from odradek.log.append import LATEST_PRODUCE_VERSION, AppendInfo
from odradek.log.config import LogConfig
from odradek.log.partition_log import PartitionLog
from odradek.log.segments.timestamps import TimestampOffset
from odradek.log.segments.transaction_index import AbortedTransaction
from odradek.log.storage.filesystem import FileRegion, LogDirFailure, ShortageError, storage_error
from odradek.log.validation.batch import CheckedRecords, Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.streaming import Step
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.topic_names import is_internal
from odradek.replication.replicas.offset_lookup import begin_search, find_offset

logger = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
NO_EPOCH: Final = -1


class Watcher(Protocol):
    """A request that waits for something to happen to a partition."""

    def wake(self) -> None:
        """The high watermark or the log's start has moved, or the partition is no longer led here: look again."""


class Follower:
    """What the leader knows of a follower from its fetches."""

    __slots__ = ("caught_up_ms", "log_end_offset", "log_start_offset")

    def __init__(self) -> None:
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.caught_up_ms = 0


class Partition:
    """One replica on this broker.

    log: its log, None while it is offline, or while there is no room to make it
    is_leader, leader, leader_epoch, partition_epoch, replicas, isr: as the controller decided
    watchers: requests to wake, in the order in which they began to wait; each takes itself off
    """

    __slots__ = (
        "_epoch_start_offset", "_follows_log_end", "_leader_log", "_local_id", "_min_isr", "_on_failure",
        "_request_sync", "_syncs_before_acks", "followers", "index", "is_internal", "is_leader", "isr", "leader",
        "leader_epoch", "log", "partition_epoch", "replicas", "topic", "topic_id", "watchers",
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
        """`request_sync` has the log synced soon, and `synced` called then; any number of times meanwhile."""
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

    # What the controller decides

    def apply(self, metadata: PartitionMetadata, log: PartitionLog | None) -> None:
        """Takes on the role that the metadata gives this broker. `log` is None if its directory is offline."""
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
        log.elect(self.leader_epoch)

    def configure(self, config: LogConfig | None = None) -> None:
        """Takes on changed topic properties, and works out anew what depends on them."""
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
            self.wake_watchers()

    def take_offline(self) -> None:
        """The log's directory failed: from now on everything is refused with KAFKA_STORAGE_ERROR."""
        self.release_log()
        self.wake_watchers()

    def release_log(self) -> None:
        """Use the log no longer; `wake_watchers` is to follow."""
        self.log = None
        self._leader_log = None
        self._follows_log_end = False

    def retire(self) -> None:
        """The topic was deleted, or the replica went elsewhere.

        Whoever keeps the partition, as a producer's connection does, keeps no file of its log open by that.
        """
        self.is_leader = False
        self.leader = -1
        self.replicas = self.isr = ()
        self.log = None
        self._leader_log = None
        self._follows_log_end = False
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Wake everybody. One that fails affects neither the others nor the append that woke it, which is done."""
        for watcher in tuple(self.watchers):
            try:
                watcher.wake()
            except Exception:
                logger.exception("a request that waits for %s-%d failed; please report it", self.topic, self.index)

    # What clients ask for

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
        """Appends a batch, advances the high watermark as far as it goes at once, and wakes who waits for that.

        Raises KafkaError: E6 if this broker does not lead, E19 for acks -1 with too few replicas in sync, E56 when
        offline, and what PartitionLog.append_as_leader raises; then nothing was appended. Raises LongValidation.
        """
        log = self._leader_log
        if log is None:
            raise self._not_leading()
        if required_acks == -1 and len(self.isr) < self._min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} replicas are in sync, {self._min_isr} must be"
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
                self.wake_watchers()
        else:
            if self._syncs_before_acks:
                self._request_sync(self)
            if self._advance_high_watermark() and self.watchers:
                self.wake_watchers()
        return info

    def synced(self) -> None:
        """More of the log is on the disk than before."""
        if self._syncs_before_acks and self._advance_high_watermark():
            self.wake_watchers()

    def waits_for_sync(self, info: AppendInfo, required_acks: int) -> bool:
        """Whether an acknowledgement waits for the disk by itself, and not as a part of waiting for all replicas."""
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
        """What a consumer may see from `offset` on: below the high watermark or the last stable offset.

        None if there is nothing, or if the first batch does not fit and `at_least_one` is not set. Raises KafkaError:
        E74/E75/E6 as `leading_log`, E1 outside of the log, E56.
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
        """Batches from `offset` on, also those above the high watermark: for coordinators, who wrote them.

        At least one; None at the end. The bytes may be read on a thread; `read_failed` reports an OSError of that.
        Raises KafkaError: as `read`.
        """
        log = self.leading_log()
        try:
            with self._telling_failures():
                return log.read(offset, max_bytes, upper_offset=log.log_end_offset, at_least_one=True)
        except OSError as error:
            raise self.read_failed(error) from error

    def read_failed(self, error: OSError) -> KafkaError:
        """The error to raise when a read failed with `error`; a failed disk takes the log directory offline.

        Raises KafkaError: as `leading_log`.
        """
        failure = storage_error(self.leading_log().log_directory, f"reading {self!r} failed: {error}", error)
        self._on_failure(failure)
        return failure

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        """What a read-committed consumer must skip in a region that `read` gave for `offset`.

        Raises KafkaError: as `leading_log`, E56.
        """
        with self._telling_failures():
            return self.leading_log().aborted_transactions(offset, region)

    @contextmanager
    def _telling_failures(self) -> Iterator[None]:
        """Has the directory taken offline that fails. Appends and reads, the hot paths, do it by hand."""
        try:
            yield
        except (LogDirFailure, ShortageError) as failure:
            self._on_failure(failure)
            raise

    def leading_log(self, current_leader_epoch: int = NO_EPOCH) -> PartitionLog:
        """The log, if this broker leads and the caller does not believe in another epoch (KIP-320).

        Raises KafkaError: E74 for an older epoch, E75 for a newer one, E6 if another broker leads, E56 when offline.
        """
        if current_leader_epoch not in (NO_EPOCH, self.leader_epoch):
            self._raise_epoch_error(current_leader_epoch)
        log = self._leader_log
        if log is None:
            raise self._not_leading()
        return log

    def _raise_epoch_error(self, epoch: int) -> None:
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch} by now")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} is not known here yet")

    def _not_leading(self) -> KafkaError:
        if self.log is None and self._local_id in self.replicas:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{self.index} is offline")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is not led here")

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader's history and the log's part: (epoch, end offset), None if they do not (KIP-320, KIP-595).

        Raises KafkaError E1 if the log knows nothing of the epoch, or of the offset any more.
        """
        if last_fetched_epoch < 0:
            return None
        log = self.leading_log()
        epoch, end_offset = log.offset_for_leader_epoch(last_fetched_epoch)
        if epoch < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"the log knows nothing of leader epoch {last_fetched_epoch}"
            )
        if fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log begins at {log.log_start_offset}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def offset_for_leader_epoch(
        self, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """(largest epoch at or below `leader_epoch`, where it ends); (-1, -1) if unknown. Raises as `leading_log`."""
        return self.leading_log(current_leader_epoch).offset_for_leader_epoch(leader_epoch)

    def list_offset(
        self,
        timestamp: int,
        *,
        isolation_level: int | None = READ_UNCOMMITTED,
        current_leader_epoch: int = NO_EPOCH,
    ) -> Generator[Step, None, TimestampOffset]:
        """Find the offset that belongs to a timestamp or special value, NOT_FOUND if none does, in steps.

        isolation_level is None for a replica, which may see up to the log's end. Raises KafkaError: as `leading_log`,
        also if the leadership is lost between the steps; OFFSET_NOT_AVAILABLE while a new leader's high watermark has
        not reached the start of its epoch (KIP-207), UNSUPPORTED_VERSION.
        """
        log = self.leading_log(current_leader_epoch)
        with self._telling_failures():
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
        """A search in steps, which ends with the leadership: that files of a deleted log are gone is no failure."""
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
        """Moves the log's start to `offset`, -1 meaning the high watermark; the low watermark that results (KIP-107).

        While the low watermark is below the offset, followers have still to follow. Raises KafkaError: E17 for an
        internal topic, E6, E44, E1, E56.
        """
        if self.is_internal:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"records of internal topic {self.topic} cannot be deleted"
            )
        log = self.leading_log()
        with self._telling_failures():
            log.delete_records_before(offset)
        self.wake_watchers()
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """The smallest log start among the replicas; -1 if this broker does not lead."""
        log = self._leader_log
        if log is None:
            return -1
        starts = (follower.log_start_offset for follower in self.followers.values())
        return min((log.log_start_offset, *starts))

    # What followers tell

    def update_follower(
        self, replica: int, log_end_offset: int, log_start_offset: int, monotonic_ms: int
    ) -> None:
        """Notes how far a follower has come. Raises KafkaError: as `leading_log`, E75 for who has no replica."""
        log = self.leading_log()
        follower = self.followers.get(replica)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} has no replica of {self!r}")
        follower.log_end_offset = log_end_offset
        follower.log_start_offset = log_start_offset
        if log_end_offset >= log.log_end_offset:
            follower.caught_up_ms = monotonic_ms
        if self._advance_high_watermark():
            self.wake_watchers()

    def _advance_high_watermark(self) -> bool:
        """Moves the high watermark up to the smallest log end in sync; whether it moved. It never falls.

        It stands still while fewer replicas are in sync than must be. With flush.before.acks the leader's own end is
        what is on the disk.
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
        """Whether everything below `offset` is on all replicas in sync: what acks -1 waits for.

        Raises KafkaError: as `leading_log`, E20 if it is but too few replicas are left in sync.
        """
        log = self.leading_log()
        if log.high_watermark < offset:
            return False
        if len(self.isr) < self._min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"{len(self.isr)} replicas are in sync, {self._min_isr} must be",
            )
        return True
