"""Indexes of a history for the checks: senders of values, final reads, outcomes of transactions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

from odradek.simulation.history import (
    TRANSACTIONS_TOPIC,
    FinalLog,
    FinalState,
    History,
    Isolation,
    LossyCrashes,
    Moment,
    Outcome,
    Partition,
    Poll,
    ReadRecord,
    Send,
    Transaction,
)
from odradek.simulation.topic_lives import TopicLife


class ViolationKind(Enum):
    """Kind of a violation of Kafka's guarantees."""

    LOST_WRITE = "lost acknowledged write"
    TWO_VALUES = "one offset with two values"
    WRONG_OFFSET = "acknowledged with a wrong offset"
    HOLE = "a record is lost but a later one is not"
    REFUSED_WRITE = "a refused write was written"
    UNKNOWN_VALUE = "value never sent"
    ALTERED_RECORD = "record is not as it was sent"
    SHARED_ID = "producer id of two producers"
    DUPLICATE = "duplicate record"
    REORDERED = "reordered record"
    ABORTED_READ = "aborted read"
    DIRTY_READ = "dirty read"
    TORN_TRANSACTION = "torn transaction"
    LOST_TRANSACTION = "lost transaction"
    HANGING_TRANSACTION = "transaction left open"
    POLL_ORDER = "non-monotonic poll"
    SKIPPED = "skipped record"
    BEYOND_BOUND = "read beyond the high watermark or last stable offset"
    END_FELL = "end of a partition went back"
    OFFSET_BACK = "committed offset went back"
    OFFSET_INVENTED = "committed offset that was never committed"
    UNREAD_COMMIT = "committed past records that no member got"
    TWO_OWNERS = "two members own one partition"
    COPY_MISSING = "input was not copied"
    COPY_DUPLICATE = "input was copied more than once"
    COPY_UNCOMMITTED = "input was copied but not committed"
    WRONG_LOOKUP = "ListOffsets disagrees with the records"
    RESURRECTED = "deleted topic is back"
    REUSED_ID = "topic id of two topics"
    FOREIGN_TOPIC = "topic that was never created"
    DELETION_UNDONE = "deleted records are back"
    UNREADABLE = "partition cannot be read at the end"
    INVALID_RESPONSE = "response that a broker must never send"


@dataclass(slots=True, frozen=True)
class Violation:
    """A violation; the text names partition, offset, value and client."""

    kind: ViolationKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


class Evidence:
    """A history with its final reads, indexed. It makes no checks itself.

    partitions: all partitions except those with unclean elections, `unclean_partitions`
    """

    def __init__(self, history: History, final: FinalState) -> None:
        self.history = history
        self.final = final
        self.senders: dict[bytes, tuple[Send, int]] = {}
        self.sends: dict[Partition, list[Send]] = defaultdict(list)
        for send in history.sends:
            self.sends[send.partition].append(send)
            for number, record in enumerate(send.records):
                self.senders[record.value] = send, number
        self.polls: dict[Partition, list[Poll]] = defaultdict(list)
        for poll in history.polls:
            self.polls[poll.partition].append(poll)
        everything = dict.fromkeys([*self.sends, *self.polls, *final.partitions()])
        unclean = history.settings.unclean
        self.partitions = [partition for partition in everything if partition[0] not in unclean]
        self.unclean_partitions = [partition for partition in everything if partition[0] in unclean]
        self._deleted_before: dict[Partition, int] = {}
        for deletion in history.topics.record_deletions:
            before = self._deleted_before.get(deletion.partition, 0)
            self._deleted_before[deletion.partition] = max(before, deletion.offset)
        self._gone = {life.name for life in history.topics.lives if life.deletion is not None or self._is_lost(life)}
        self._crashes: dict[str, LossyCrashes] = {}
        self._final_by_offset: dict[tuple[Partition, Isolation], dict[int, ReadRecord]] = {}
        self._unreached: dict[Partition, set[bytes | None]] = {}
        self._superseding: dict[Partition, dict[bytes | None, int]] = {}
        self._visible: dict[Partition, set[bytes]] = {}

    def _is_lost(self, life: TopicLife) -> bool:
        """Return whether the topic may have been lost with the metadata store, since it was empty."""
        sends = [send for index in range(life.partitions) for send in self.sends.get(life.partition(index), ())]
        is_empty = not any(send.outcome is Outcome.OK for send in sends)
        return is_empty and any(loss.order > life.created.order for loss in self.history.store_losses)

    def crashes(self, topic: str) -> LossyCrashes:
        """Return the crashes that may have lost acknowledged records of the topic."""
        found = self._crashes.get(topic)
        if found is None:
            found = self._crashes[topic] = self.history.lossy_crashes(topic)
        return found

    def final_log(self, partition: Partition, isolation: Isolation) -> FinalLog | None:
        return self.final.logs.get((partition, isolation))

    def final_records(self, partition: Partition, isolation: Isolation) -> dict[int, ReadRecord]:
        """Return the final records by offset; empty if the partition was not read."""
        found = self._final_by_offset.get((partition, isolation))
        if found is None:
            log = self.final_log(partition, isolation)
            found = {} if log is None else {record.offset: record for record in log.records}
            self._final_by_offset[partition, isolation] = found
        return found

    def is_visible(self, partition: Partition, value: bytes) -> bool:
        """Return whether the final READ_COMMITTED read has the value."""
        found = self._visible.get(partition)
        if found is None:
            records = self.final_records(partition, Isolation.READ_COMMITTED).values()
            found = self._visible[partition] = {record.value for record in records if record.value is not None}
        return value in found

    def is_out_of_reach(self, partition: Partition, value: bytes) -> bool:
        """Return whether the value is above the last stable offset, behind an open transaction."""
        log = self.final_log(partition, Isolation.READ_COMMITTED)
        if log is None:
            return True
        found = self._unreached.get(partition)
        if found is None:
            records = self.final_records(partition, Isolation.READ_UNCOMMITTED)
            found = {record.value for offset, record in records.items() if offset >= log.end_offset}
            self._unreached[partition] = found
        return value in found

    def superseding(self, partition: Partition) -> dict[bytes | None, int]:
        """Return the last committed offset of each key of a compacted topic: earlier records may be removed."""
        if partition[0] not in self.history.settings.compacted:
            return {}
        found = self._superseding.get(partition)
        if found is None:
            found = self._superseding[partition] = {}
            for record in self.final_records(partition, Isolation.READ_COMMITTED).values():
                found[record.key] = max(found.get(record.key, -1), record.offset)
        return found

    def is_deleted(self, topic: str) -> bool:
        """Return whether the topic's deletion was requested, or it may have existed in the lost metadata store only."""
        return topic in self._gone

    def is_clock_set(self, after: Moment, before: Moment) -> bool:
        """Return whether the broker's wall clock was set forward in between, so that retention ends earlier."""
        return any(
            step_ms > 0 and after.order < moment.order < before.order
            for moment, step_ms in self.history.clock_steps
        )

    def may_be_gone(self, partition: Partition, offset: int, timestamp: int) -> bool:
        """Return whether the deletion of a record was requested, or retention may have removed it.

        A record without a timestamp is removed with its segment.
        """
        if offset < self._deleted_before.get(partition, -1):
            return True
        settings = self.history.settings
        if partition[0] not in settings.aged:
            return False
        return timestamp < 0 or self.history.now_ms - timestamp > settings.retention_ms

    def transaction_of(self, value: bytes | None) -> Transaction | None:
        """Return the transaction in which a value was sent."""
        sender = self.senders.get(value) if value is not None else None
        return None if sender is None else sender[0].transaction

    def is_excused(self, transaction: Transaction) -> bool:
        """Return whether a crash may have lost a part of the transaction, so that it cannot be checked.

        The log of a partition or of the coordinator may have lost its tail while another log has not. Then records of
        an aborted transaction may become visible, as in Kafka without flushes. See also `is_trusted`.
        """
        if len(self.crashes(TRANSACTIONS_TOPIC)):
            return True
        topics = dict.fromkeys(send.partition[0] for send in transaction.sends)
        return any(self.crashes(topic).era(transaction.invoked) < self.crashes(topic).last_era for topic in topics)

    def is_trusted(self, send: Send) -> bool:
        """Return whether an acknowledgement is reliable.

        A coordinator whose log has lost its tail allocates producer epochs a second time. A partition with state of the
        first epoch regards new batches as duplicates, and acknowledges them with the offsets of the old ones. Kafka
        without flushes does the same.
        """
        return send.transaction is None or self.crashes(TRANSACTIONS_TOPIC).era(send.invoked) == 0


def effective_outcome(transaction: Transaction) -> Outcome:
    """Return the outcome; a transaction without a commit request is FAILED."""
    if transaction.commit_invoked is None:
        return Outcome.FAILED
    if transaction.outcome is Outcome.PENDING:
        return Outcome.UNKNOWN
    return transaction.outcome
