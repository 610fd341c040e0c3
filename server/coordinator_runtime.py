"""Runs the group coordinators: one shard for each partition of `__consumer_offsets` that this broker leads.

A shard decides; here its records are appended, waited for until they are replicated, given back to be replayed, and
only then are its answers sent. Results of one shard are written in the order in which they were decided. A shard is
loaded in small steps, so that a long log does not hold up everybody else; meanwhile its groups are told so.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet.defer import Deferred

from odradek.coordinator.group_shard import GroupShard, Phase
from odradek.coordinator.partitioning import partition_for
from odradek.coordinator.result import CoordinatorRecord, Result
from odradek.coordinator.settings import GroupSettings
from odradek.log.validation import Origin
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import (
    ControlType,
    build_batch,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
)
from odradek.replication.topic_names import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from odradek.replication.partition import Partition

logger = logging.getLogger(__name__)

R = TypeVar("R")
_LOAD_CHUNK_BYTES: Final = 1048576
_MAX_TIMER_S: Final = 3600.0
_RECORDS_PER_BATCH: Final = 1000
"""Of records that need not be written together, such as the tombstones of many expired offsets."""


class PendingReply:
    """A token: holds the response if it comes at once, else hands out a Deferred for it."""

    __slots__ = ("_deferred", "_response")

    def __init__(self) -> None:
        self._deferred: Deferred[Any] | None = None
        self._response: Any = None

    def answer(self, response: Any) -> None:
        """Called once, when the coordinator has answered."""
        if self._deferred is None:
            self._response = response
        else:
            self._deferred.callback(response)

    def outcome(self) -> Any:
        """The response, or a Deferred that will have it."""
        if self._response is not None:
            return self._response
        self._deferred = Deferred()
        return self._deferred


class _Led:
    """A shard that is led here, with the results that wait for replication and its alarm."""

    __slots__ = ("alarm", "alarm_ms", "on_wake", "partition", "shard", "waiting")

    def __init__(self, partition: "Partition", shard: GroupShard, on_wake: "Callable[[_Led], None]") -> None:
        self.on_wake = on_wake
        self.partition = partition
        self.shard = shard
        self.alarm: Any = None
        self.alarm_ms = 0
        self.waiting: deque[tuple[Result, int, int]] = deque()

    def wake(self) -> None:
        """The partition calls this when its high watermark has moved."""
        if self.waiting:
            self.on_wake(self)


class GroupCoordinatorRuntime:
    """The group coordinators of this broker.

    `partition_count` says how many partitions `__consumer_offsets` has, or 0 while it does not exist.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        reactor: Any,
        now_ms: Callable[[], int],
        random_uuid: Callable[[], str],
        partition_count: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._reactor = reactor
        self._now_ms = now_ms
        self._random_uuid = random_uuid
        self._partition_count = partition_count
        self._led: dict[int, _Led] = {}
        self._absent = GroupShard.absent(settings)

    # -- requests --------------------------------------------------------------------------------------------------

    def index_of(self, group_id: str) -> int:
        """The partition that coordinates a group; -1 while there is none at all."""
        count = self._partition_count()
        return partition_for(group_id, count) if count else -1

    def shard(self, index: int) -> GroupShard:
        """The shard of a partition; one that refuses everything if it is led elsewhere."""
        led = self._led.get(index)
        return self._absent if led is None else led.shard

    def shards(self) -> list[GroupShard]:
        """All shards led here."""
        return [led.shard for led in self._led.values()]

    def run(self, group_id: str, decide: Callable[[GroupShard, PendingReply, int], Result]) -> Any:
        """Let the group's shard decide a request; its response, or a Deferred that will have it."""
        return self.run_on(self.index_of(group_id), decide)

    def run_on(self, index: int, decide: Callable[[GroupShard, PendingReply, int], Result]) -> Any:
        """`run` for a shard that is already known."""
        token = PendingReply()
        led = self._led.get(index)
        now_ms = self._now_ms()
        if led is None:
            _send(decide(self._absent, token, now_ms))
        else:
            self._carry_out(led, decide(led.shard, token, now_ms))
        return token.outcome()

    def topics_deleted(self, deleted: list[tuple[str, bytes]]) -> None:
        """Topics, by name and id, are gone: forget their offsets."""
        for led in list(self._led.values()):
            self._carry_out(led, led.shard.topics_deleted(deleted))

    # -- leadership --------------------------------------------------------------------------------------------------

    def lead(self, partition: "Partition") -> None:
        """This broker has become the leader of a partition of `__consumer_offsets`: load its shard."""
        if partition.index in self._led:
            return
        led = self._led[partition.index] = _Led(
            partition, GroupShard(self._settings, self._random_uuid), self._replicated
        )
        partition.watchers[led] = None
        self._load(led, _replay_all(led))

    def resign(self, index: int) -> None:
        """Another broker leads the partition now."""
        led = self._led.pop(index, None)
        if led is None:
            return
        led.partition.watchers.pop(led, None)
        if led.alarm is not None:
            led.alarm.cancel()
        _send(led.shard.resign(self._now_ms()))
        while led.waiting:
            result = led.waiting.popleft()[0]
            _send(led.shard.on_write_failed(result, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._now_ms()))

    def stop(self) -> None:
        """Answer whoever still waits, and set no more alarms."""
        for index in list(self._led):
            self.resign(index)

    def _load(self, led: _Led, steps: Iterator[None]) -> None:
        if self._led.get(led.partition.index) is not led:
            return
        try:
            next(steps)
        except StopIteration:
            self._carry_out(led, led.shard.finish_loading(self._now_ms()))
        except Exception:
            logger.exception(
                "group coordinator cannot load; its groups stay unavailable; check the partition's log "
                "partition=%s-%d", GROUP_METADATA_TOPIC, led.partition.index,
            )
        else:
            self._reactor.callLater(0, self._load, led, steps)

    # -- carrying out ------------------------------------------------------------------------------------------------

    def _carry_out(self, led: _Led, result: Result) -> None:
        """Write what the result wants written and send what it wants sent, and so on with what follows from it."""
        shard = led.shard
        while result.records:
            now_ms = self._now_ms()
            try:
                first_offset, last_offset = _append(led.partition, result, now_ms)
            except KafkaError as error:
                logger.warning(
                    "coordinator records not written partition=%d error=%s", led.partition.index, error
                )
                result = shard.on_write_failed(result, error.code, now_ms)
                continue
            if led.waiting or not _is_replicated(led.partition, last_offset):
                led.waiting.append((result, first_offset, last_offset))
                return
            result = shard.on_written(result, first_offset, now_ms)
        _send(result)
        self._set_alarm(led)

    def _replicated(self, led: _Led) -> None:
        while led.waiting and _is_replicated(led.partition, led.waiting[0][2]):
            result, first_offset, _ = led.waiting.popleft()
            self._carry_out(led, led.shard.on_written(result, first_offset, self._now_ms()))

    def _set_alarm(self, led: _Led) -> None:
        """Wake when the shard's next deadline is due; an alarm that is set too early does no harm."""
        deadline_ms = led.shard.next_deadline_ms()
        if deadline_ms is None or led.shard.phase is not Phase.ACTIVE:
            return
        if led.alarm is not None:
            if led.alarm_ms <= deadline_ms:
                return
            led.alarm.cancel()
        delay_s = min(max(0, deadline_ms - self._now_ms()) / 1000, _MAX_TIMER_S)
        led.alarm_ms = deadline_ms
        led.alarm = self._reactor.callLater(delay_s, self._alarm_rings, led)

    def _alarm_rings(self, led: _Led) -> None:
        led.alarm = None
        while (deadline_ms := led.shard.next_deadline_ms()) is not None and deadline_ms <= self._now_ms():
            self._carry_out(led, led.shard.tick(self._now_ms()))
        self._set_alarm(led)


def _is_replicated(partition: "Partition", offset: int) -> bool:
    log = partition.log
    return log is not None and log.high_watermark > offset


def _send(result: Result) -> None:
    for token, response in result.replies:
        token.answer(response)


def _append(partition: "Partition", result: Result, now_ms: int) -> tuple[int, int]:
    """Append a result's records, as one batch or as several; the first and the last offset."""
    records = result.records
    size = len(records) if result.is_atomic else _RECORDS_PER_BATCH
    offsets: list[int] = []
    for start in range(0, len(records), size):
        info = partition.append_as_leader(
            memoryview(_batch(records[start : start + size], now_ms)),
            required_acks=-1,
            now_ms=now_ms,
            origin=Origin.COORDINATOR,
        )
        offsets += (info.first_offset, info.last_offset)
    return offsets[0], offsets[-1]


def _batch(records: list[CoordinatorRecord], now_ms: int) -> bytes:
    return build_batch((now_ms, record.key, record.value, ()) for record in records)


def _replay_all(led: _Led) -> Iterator[None]:
    """Replay the partition from start to end, a chunk of the log at each step."""
    log = led.partition.leading_log()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, _LOAD_CHUNK_BYTES, upper_offset=log.log_end_offset, at_least_one=True)
        if region is None:
            break
        for batch in iter_batches(region.read()):
            header = read_header(batch)
            offset = header.next_offset
            if header.is_control:
                _replay_marker(led.shard, batch, header.producer_id)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in iter_records(batch):
                if record.key is not None:
                    led.shard.replay(record.key, record.value, record.offset, producer_id)
        yield


def _replay_marker(shard: GroupShard, batch: memoryview, producer_id: int) -> None:
    for record in iter_records(batch):
        kind = parse_control_record(record).control_type
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            shard.replay_end_of_transaction(producer_id, kind is ControlType.COMMIT)
