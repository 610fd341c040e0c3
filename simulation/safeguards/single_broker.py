"""Safeguards that runs with a single broker show."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from odradek.coordinator.groups import offset_commands, transactional_offsets
from odradek.coordinator.groups.offsets import CommittedOffset, OffsetStore
from odradek.coordinator.transactions import markers as transaction_markers
from odradek.log.flush import LogSync
from odradek.log.producers import replay as producer_replay
from odradek.log.producers.entry import ProducerEntry
from odradek.log.producers.state import ProducerState
from odradek.log.read import LogReader
from odradek.log.recovery import _Loader
from odradek.log.segments import segment_scan
from odradek.log.segments.segment import Segment
from odradek.log.state import LogState
from odradek.log.storage import found_directories
from odradek.log.storage.filesystem import is_disk_full
from odradek.log.validation import batch as validation
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin import topics
from odradek.replication.replicas import adoption
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators.marker_sender import MarkerSender
from odradek.server.handlers.records.delete_records import _PendingRequest
from odradek.server.membership import embedded
from odradek.simulation.checks.checker import ViolationKind
from odradek.simulation.machine.broker_process import SimulatedEnvironment
from odradek.simulation.safeguards.definition import Safeguard, nothing, replaced_by
from odradek.simulation.scenario import RETENTION_MS, Scenario


class _AnyChecksum:
    """A checksum that is equal to every other."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _no_producers(old: Any) -> Any:
    """Load a log without producer state."""

    def rebuild(state: ProducerState, segments: list[Segment], start: int, end: int, now_ms: int, **_: Any) -> None:
        state.end_offset = end

    return rebuild


def _old_epochs_pass(old: Any) -> Any:
    def check_data(self: ProducerState, producer_id: int, epoch: int, sequence: int, **keywords: Any) -> None:
        entry = self.producers.get(producer_id)
        if entry is None or epoch >= entry.epoch:
            old(self, producer_id, epoch, sequence, **keywords)

    return check_data


def _old_epochs_are_in_transactions(old: Any) -> Any:
    def begin_verification(
        self: ProducerState, producer_id: int, epoch: int, sequence: int, now_ms: int, *, adds_partition: bool
    ) -> Any:
        entry = self.producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            return None
        return old(self, producer_id, epoch, sequence, now_ms, adds_partition=adds_partition)

    return begin_verification


def _old_epochs_need_no_transaction(old: Any) -> Any:
    def check_in_transaction(self: ProducerState, producer_id: int, epoch: int) -> None:
        entry = self.producers.get(producer_id)
        if entry is None or epoch >= entry.epoch:
            old(self, producer_id, epoch)

    return check_in_transaction


def _epochs_never_fall(old: Any) -> Any:
    def set_epoch(self: ProducerEntry, epoch: int) -> None:
        old(self, max(epoch, self.epoch))

    return set_epoch


def _last_marker_lost(old: Any) -> Any:
    """Skip the marker of one partition of each transaction and report it as written."""

    def send(self: MarkerSender, outcome: Any, done: Callable[[Any, ErrorCode], None]) -> Iterator[None]:
        *others, last = outcome.partitions
        yield from old(self, outcome._replace(partitions=others) if others else outcome, done)
        if others:
            done(last, ErrorCode.NONE)

    return send


def _synced_at_once(old: Any) -> Any:
    """Advance the high watermark without waiting for the sync."""

    def configure(self: Partition, *arguments: Any) -> None:
        old(self, *arguments)
        self._syncs_before_acks = False

    return configure


def _first_offset_wins(old: Any) -> Any:
    def replay(
        self: OffsetStore,
        group_id: str,
        topic: str,
        partition: int,
        value: Any,
        offset: int,
        producer_id: int,
        *,
        is_replicated: bool = True,
    ) -> None:
        current = self.visible.get(group_id, topic, partition)
        if isinstance(current, CommittedOffset) and value is not None and producer_id < 0:
            return
        old(self, group_id, topic, partition, value, offset, producer_id, is_replicated=is_replicated)

    return replay


def _cut_nothing_behind(old: Any) -> Any:
    """Truncate a segment at its first invalid byte and keep the segments after it."""

    def recover_from(self: _Loader, first: int, log_start_offset: int) -> None:
        for index in range(first, len(self.segments)):
            self._recover(self.segments[index], log_start_offset, index)

    return recover_from


def _any_generation(old: Any) -> Any:
    """Accept a commit by a member of an earlier generation."""

    def check(*arguments: Any) -> None:
        try:
            old(*arguments)
        except KafkaError as error:
            if error.code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
                raise

    return check


def _failed_writes_count(old: Any) -> Any:
    """Acknowledge an append that failed on the disk."""

    def append(self: Segment, pieces: Any, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        try:
            old(self, pieces, size_bytes, last_offset, max_timestamp)
        except OSError as error:
            if not is_disk_full(error):
                raise

    return append


def _failed_syncs_count(old: Any) -> Any:
    def run(self: LogSync) -> None:
        with suppress(OSError):
            self._sync()

    return run


def _stated_timestamps_count(old: Any) -> Any:
    """Use the largest timestamp that the batch header states."""

    def check_batch_records(header: Any, *arguments: Any) -> tuple[int, bool, int]:
        _, is_numbered, size_bytes = old(header, *arguments)
        return header.max_timestamp, is_numbered, size_bytes

    return check_batch_records


def _answered_before_it_is_saved(old: Any) -> Any:
    def wait(self: _PendingRequest, timeout_ms: int) -> Any:
        for deletion in self._pending.values():
            deletion.row.low_watermark = deletion.offset
        return self._response

    return wait


async def _settle_nothing(*arguments: Any, **options: Any) -> int:
    """Allocate producer ids from the metadata store only."""
    return 0


def _loses_unsynced_data(scenario: Scenario) -> bool:
    """Return whether a power loss may follow a failed sync of acknowledged records."""
    weights, interval_s = scenario.faults
    return (
        scenario.properties["flush.before.acks"] == "true"
        and interval_s == 0.5
        and "fail_sync" in weights
        and ("lose_power" in weights or "lose_power_while_writing" in weights)
    )


def _loses_store(scenario: Scenario) -> bool:
    """Return whether the metadata store, which has the next producer id, may be lost."""
    return "lose_store" in scenario.faults.weights


def _adopts_aged_topics(scenario: Scenario) -> bool:
    """Return whether retention by the broker's configuration would delete records of an adopted topic in time."""
    return (
        "lose_store" in scenario.faults.weights
        and any(topic.is_aged for topic in scenario.topics)
        and scenario.properties["log.retention.ms"] == str(RETENTION_MS)
        and scenario.properties["log.retention.check.interval.ms"] == "500"
    )


_K: Final = ViolationKind

SINGLE_BROKER_SAFEGUARDS: Final = (
    Safeguard(
        "checksum",
        "Recovery checks the CRC of every batch.",
        ((segment_scan, "crc32c", replaced_by(lambda data: _AnyChecksum())),),
        (_K.UNREADABLE, "wrong checksum", _K.LOST_WRITE, _K.ALTERED_RECORD),
        7,
    ),
    Safeguard(
        "cut",
        "Recovery removes the segments after an invalid byte.",
        ((_Loader, "_recover_from", _cut_nothing_behind),),
        (_K.HOLE, _K.UNREADABLE, _K.LOST_WRITE),
        7,
    ),
    Safeguard(
        "producer-state",
        "A loaded log has its producer state, from the snapshot and the batches after it.",
        ((producer_replay, "rebuild", _no_producers),),
        (_K.DUPLICATE, _K.REORDERED),
        1,
    ),
    Safeguard(
        "sequences",
        "A duplicate batch is acknowledged and not written again; a batch with a sequence gap is rejected.",
        (
            (ProducerState, "find_duplicate", replaced_by(nothing)),
            (ProducerState, "check_data", replaced_by(nothing)),
        ),
        (_K.DUPLICATE, _K.REORDERED),
        1,
    ),
    Safeguard(
        "fencing",
        "A partition rejects a producer with an old epoch.",
        (
            (ProducerState, "check_data", _old_epochs_pass),
            (ProducerState, "begin_verification", _old_epochs_are_in_transactions),
            (ProducerState, "check_in_transaction", _old_epochs_need_no_transaction),
            (ProducerEntry, "set_epoch", _epochs_never_fall),
        ),
        (_K.ABORTED_READ, _K.HANGING_TRANSACTION, _K.TORN_TRANSACTION, _K.DUPLICATE),
        0,
    ),
    Safeguard(
        "markers",
        "A transaction is complete when all its partitions have the marker.",
        ((MarkerSender, "send", _last_marker_lost),),
        (_K.HANGING_TRANSACTION, _K.TORN_TRANSACTION, _K.ABORTED_READ),
        0,
    ),
    Safeguard(
        "resume",
        "A starting coordinator completes transactions whose outcome is decided.",
        ((transaction_markers, "resume", replaced_by(nothing)),),
        (_K.HANGING_TRANSACTION, _K.TORN_TRANSACTION, "gave up on"),
        23,
    ),
    Safeguard(
        "flush-before-acks",
        "With flush.before.acks the high watermark, and with it each response, waits for the sync.",
        ((Partition, "configure", _synced_at_once),),
        (_K.LOST_WRITE, _K.LOST_TRANSACTION, _K.OFFSET_BACK),
        17,
    ),
    Safeguard(
        "sync-errors",
        "A failed sync takes the log directory offline.",
        ((LogSync, "run", _failed_syncs_count),),
        (_K.LOST_WRITE, _K.LOST_TRANSACTION, _K.OFFSET_BACK, _K.TWO_VALUES),
        627,
        _loses_unsynced_data,
    ),
    Safeguard(
        "write-errors",
        "A failed write is not acknowledged.",
        ((Segment, "append", _failed_writes_count),),
        (_K.LOST_WRITE, _K.UNREADABLE, _K.LOST_TRANSACTION),
        19,
    ),
    Safeguard(
        "last-stable-offset",
        "A READ_COMMITTED fetch returns no records of an open transaction.",
        ((LogState, "last_stable_offset", replaced_by(property(lambda self: self.high_watermark))),),
        (_K.DIRTY_READ, _K.ABORTED_READ),
        1,
    ),
    Safeguard(
        "aborted-list",
        "A READ_COMMITTED fetch returns the list of aborted transactions.",
        ((LogReader, "aborted_transactions", replaced_by(lambda self, offset, region, may_wait: [])),),
        (_K.ABORTED_READ,),
        0,
    ),
    Safeguard(
        "offset-replay",
        "The later of two offset commits takes effect.",
        ((OffsetStore, "replay", _first_offset_wins),),
        (_K.OFFSET_BACK, _K.COPY_DUPLICATE),
        1,
    ),
    Safeguard(
        "generations",
        "Only members of the current generation can commit offsets.",
        (
            (offset_commands, "_check_commit", _any_generation),
            (transactional_offsets, "_check", _any_generation),
        ),
        (_K.OFFSET_BACK, _K.COPY_DUPLICATE),
        3,
    ),
    Safeguard(
        "largest-timestamps",
        "The header of a stored batch states the largest timestamp of its records.",
        ((validation, "check_batch_records", _stated_timestamps_count),),
        (_K.WRONG_LOOKUP, _K.LOST_WRITE),
        0,
    ),
    Safeguard(
        "producer-ids",
        "Producer ids are allocated above those in the logs.",
        ((embedded, "settle_producer_ids", replaced_by(_settle_nothing)),),
        (_K.SHARED_ID,),
        14,
        _loses_store,
    ),
    Safeguard(
        "suspended-retention",
        "Topics that are adopted without their configuration keep all records.",
        ((adoption, "SUSPENDED", replaced_by({})),),
        (_K.LOST_WRITE,),
        14,
        _adopts_aged_topics,
    ),
    Safeguard(
        "internal-topics",
        "Internal topics keep their number of partitions.",
        ((topics, "is_internal", replaced_by(lambda name: False)),),
        (_K.INVALID_RESPONSE, _K.OFFSET_BACK, _K.OFFSET_INVENTED),
        1,
    ),
    Safeguard(
        "foreign-directories",
        "A directory counts as a partition only if it holds a topic id or a segment.",
        ((found_directories, "is_partition", replaced_by(lambda *arguments: True)),),
        (_K.FOREIGN_TOPIC, "which is no partition, has been changed"),
        20,
    ),
    Safeguard(
        "delete-records",
        "A log start offset is on disk before the response to DeleteRecords.",
        (
            (_PendingRequest, "save", replaced_by(lambda self: None)),
            (_PendingRequest, "wait", _answered_before_it_is_saved),
        ),
        (_K.DELETION_UNDONE,),
        253,
    ),
    Safeguard(
        "topic-ids",
        "Offsets of an earlier topic of the same name are not returned.",
        ((offset_commands, "_is_other_topic", replaced_by(lambda *arguments: False)),),
        (_K.OFFSET_INVENTED,),
        202,
    ),
    Safeguard(
        "monotonic-clock",
        "Timeouts of sessions and rebalances use the monotonic clock.",
        ((SimulatedEnvironment, "monotonic_ms", replaced_by(lambda self: self.now_ms())),),
        ("expelled from", "no response in", "gave up on", "still has members"),
        22,
    ),
)
