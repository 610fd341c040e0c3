"""A transactional id: its producer, its transaction, and its state machine.

Sources: KIP-98, KIP-360 (epochs), KIP-890 (an epoch for every transaction); behaviour as of Apache Kafka 4.3.

A request creates a `Change`, which is written as a record. The replay of the record at append keeps it as
`unreplicated`; it becomes the transaction's state when it is replicated. Until then requests that change the state get
CONCURRENT_TRANSACTIONS, so that at most one record of a transaction is above the high watermark.
"""

import logging
from enum import Enum
from typing import Any, Final, NamedTuple

from odradek.coordinator.transactions.records import TransactionLogValue, TransactionLogValuePartitionsSchema
from odradek.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIME: Final = -1
MAX_EPOCH: Final = 32_767
"""Never returned to a client, so that the client with the highest epoch can still be fenced."""
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
NO_TIMEOUT_MS: Final = 2_147_483_647
"""The timeout of a producer with two-phase commit (KIP-939), whose transactions the coordinator does not abort."""
EPOCH_BUMP_SINCE: Final = 2
"""From this transaction version on, every end of a transaction increments the epoch (KIP-890)."""

Partitions = dict[tuple[str, int], None]
"""A set of (topic, partition index) in insertion order, which does not depend on hashing."""


class TransactionState(Enum):
    """State of a transaction. The value is its number in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


EMPTY: Final = TransactionState.EMPTY
ONGOING: Final = TransactionState.ONGOING
PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT
DEAD: Final = TransactionState.DEAD
PREPARE_EPOCH_FENCE: Final = TransactionState.PREPARE_EPOCH_FENCE

STATE_NAMES: Final[dict[TransactionState, str]] = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    PREPARE_COMMIT: "PrepareCommit",
    PREPARE_ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
    DEAD: "Dead",
    PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
"""The names in responses (KIP-664)."""

TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    DEAD: frozenset(),
    PREPARE_EPOCH_FENCE: frozenset(),
}
"""The allowed transitions from each state.

PrepareCommit and PrepareAbort have one successor each, so a decision is final. KIP-890 allows the abort of a
transaction that has not started, because a client cannot determine whether its request reached the coordinator. Dead
and PrepareEpochFence are not used: a tombstone removes a transactional id, and one record both fences and aborts.
"""

UNDECIDED: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""States without an open transaction: a new one may start, or the transactional id may expire."""
PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})


class Change(NamedTuple):
    """The next state of a transaction, and the reason. The fields are those of `Transaction`."""

    state: TransactionState
    why: str
    producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: Partitions
    start_ms: int
    last_update_ms: int
    client_version: int
    open_since_ms: int


class UnreplicatedRecord(NamedTuple):
    """A record of a transactional id that is in the log and not replicated; a value of None is a tombstone.

    `change` is None if the record was loaded.
    """

    value: TransactionLogValue | None
    change: Change | None


class Transaction:
    """A transactional id, in the state of its last replicated record.

    These attributes are not in the record and are lost when the coordinator ends: `last_producer_epoch` (a retried
    InitProducerId is then fenced, as in Kafka), `open_since_ms`, and the progress of markers (`end`, `unmarked`,
    `marker_pause_ms`). All times except `open_since_ms` are wall-clock times.
    """

    __slots__ = (
        "client_version",
        "end",
        "last_producer_epoch",
        "last_update_ms",
        "marker_pause_ms",
        "next_producer_id",
        "open_since_ms",
        "partitions",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "unmarked",
        "unreplicated",
    )

    def __init__(
        self, transactional_id: str, producer_id: int, timeout_ms: int, last_update_ms: int, state: TransactionState
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.previous_producer_id = NO_PRODUCER_ID
        """The producer id in the record before the last one; it differs only after the epochs were exhausted."""
        self.next_producer_id = NO_PRODUCER_ID
        """The producer id after the completion of this transaction, if the epochs of the current one are exhausted."""
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.last_producer_epoch = NO_PRODUCER_EPOCH
        """The epoch before the last bump that the producer requested; it identifies retries (KIP-360)."""
        self.timeout_ms = timeout_ms
        self.state = state
        self.partitions: Partitions = {}
        self.start_ms = NO_TIME
        self.open_since_ms = 0
        """When this coordinator started the transaction, on the monotonic clock; valid while it is ongoing."""
        self.last_update_ms = last_update_ms
        self.client_version = 0
        """Transaction version of the client, determined from its requests."""
        self.unreplicated: UnreplicatedRecord | None = None
        self.end: Change | None = None
        """The completion of a decided transaction, from the decision until its record is replicated."""
        self.unmarked: dict[tuple[str, int], bool] | None = None
        """Partitions without a marker, and whether one is in flight; set from the decision to the end."""
        self.marker_pause_ms = 0
        """The pause after the next failure of a marker."""

    @classmethod
    def of_first_record(cls, transactional_id: str, value: TransactionLogValue) -> "Transaction":
        """Return a transactional id whose first record is not replicated yet: its producer id has no epoch."""
        return cls(
            transactional_id,
            value.producer_id,
            value.transaction_timeout_ms,
            value.transaction_last_update_timestamp_ms,
            EMPTY,
        )

    # -- state ---------------------------------------------------------------------------------------------------

    def change_state(self, new: TransactionState, why: str) -> None:
        """Change the state."""
        if new not in TRANSITIONS[self.state]:
            raise RuntimeError(
                f"transaction {self.transactional_id} cannot change from {STATE_NAMES[self.state]} to "
                f"{STATE_NAMES[new]} ({why})"
            )
        logger.debug(
            "transaction state changed transactional_id=%s old=%s new=%s producer_id=%d producer_epoch=%d why=%s",
            self.transactional_id, STATE_NAMES[self.state], STATE_NAMES[new], self.producer_id, self.producer_epoch,
            why,
        )  # fmt: skip
        self.state = new

    @property
    def is_pending(self) -> bool:
        """Return whether a record is unreplicated or a decided transaction is incomplete: other changes must wait."""
        return self.unreplicated is not None or self.end is not None

    def check(self, change: Change) -> None:
        """Raise KafkaError UNKNOWN_SERVER_ERROR if the transition is not allowed, RuntimeError if one is pending."""
        if self.unreplicated is not None:
            raise RuntimeError(
                f"transaction {self.transactional_id} cannot become {STATE_NAMES[change.state]}: "
                "its last record is not replicated"
            )
        if change.state not in TRANSITIONS[self.state] or change.producer_epoch < 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"transaction {self.transactional_id} cannot change from {STATE_NAMES[self.state]} to "
                f"{STATE_NAMES[change.state]} with epoch {change.producer_epoch}",
            )

    def apply(self, value: TransactionLogValue, change: Change | None) -> None:
        """Apply a replicated record. `change` has the fields that are not in the record; None if it was loaded."""
        self._set_fields(value)
        new = TransactionState(value.transaction_status)
        if change is None:
            self.state = new
            return
        self.last_producer_epoch = change.last_producer_epoch
        self.open_since_ms = change.open_since_ms
        self.change_state(new, change.why)

    def _set_fields(self, value: TransactionLogValue) -> None:
        self.producer_id = value.producer_id
        self.previous_producer_id = value.previous_producer_id
        self.next_producer_id = value.next_producer_id
        self.producer_epoch = value.producer_epoch
        self.timeout_ms = value.transaction_timeout_ms
        self.partitions = {
            (topic.topic, index): None
            for topic in value.transaction_partitions or ()
            for index in topic.partition_ids
        }
        self.start_ms = value.transaction_start_timestamp_ms
        self.last_update_ms = value.transaction_last_update_timestamp_ms
        self.client_version = value.client_transaction_version

    def log_value(self, change: Change) -> TransactionLogValue:
        """Return the record's value for a change."""
        partitions: list[TransactionLogValuePartitionsSchema] | None = None
        if change.state is not EMPTY:
            by_topic: dict[str, list[int]] = {}
            for topic, index in change.partitions:
                by_topic.setdefault(topic, []).append(index)
            partitions = [
                TransactionLogValuePartitionsSchema(topic=topic, partition_ids=indexes)
                for topic, indexes in by_topic.items()
            ]
        return TransactionLogValue(
            producer_id=change.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=change.next_producer_id,
            producer_epoch=change.producer_epoch,
            transaction_timeout_ms=change.timeout_ms,
            transaction_status=change.state.value,
            transaction_partitions=partitions,
            transaction_last_update_timestamp_ms=change.last_update_ms,
            transaction_start_timestamp_ms=change.start_ms,
            client_transaction_version=change.client_version,
        )

    # -- changes -------------------------------------------------------------------------------------------------

    def plan_change(self, state: TransactionState, why: str, **fields: Any) -> Change:
        """Return a change to `state` in which only `fields` differ from the current values."""
        change = Change(
            state,
            why,
            self.producer_id,
            self.next_producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            self.partitions,
            self.start_ms,
            self.last_update_ms,
            self.client_version,
            self.open_since_ms,
        )
        return change._replace(**fields)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Return whether no higher epoch of this producer id may be returned to a client."""
        return is_epoch_exhausted(self.producer_epoch)

    def plan_initialization(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Change:
        """Return the change for InitProducerId: a new epoch, or the current one if the request is a retry (KIP-360).

        `expected_epoch` is the epoch in the request, None if it has none. Raises PRODUCER_FENCED.
        """
        if self.is_epoch_exhausted:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"producer id {self.producer_id} has no epoch left")
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None:
            if expected_epoch == self.producer_epoch or self.producer_epoch == NO_PRODUCER_EPOCH:
                last_epoch = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
            else:
                raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return self.plan_change(
            EMPTY,
            "producer initialized",
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions={},
            start_ms=NO_TIME,
            last_update_ms=now_ms,
        )

    def plan_replacement(self, producer_id: int, timeout_ms: int, *, is_expected: bool, now_ms: int) -> Change:
        """Return the change to a new producer id, because the epochs of the current one are exhausted."""
        return self.plan_change(
            EMPTY,
            "producer id replaced",
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=self.producer_epoch if is_expected else NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            partitions={},
            start_ms=NO_TIME,
            last_update_ms=now_ms,
        )

    def plan_extension(self, added: Partitions, client_version: int, now_ms: int, monotonic_ms: int) -> Change:
        """Return the change that adds partitions, and starts the transaction if it is not ongoing."""
        return self.plan_change(
            ONGOING,
            "partitions added",
            partitions=self.partitions | added,
            start_ms=now_ms if self.state in UNDECIDED else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
            open_since_ms=self.open_since_ms if self.state is ONGOING else monotonic_ms,
        )

    def plan_decision(
        self,
        *,
        is_commit: bool,
        client_version: int,
        next_producer_id: int,
        why: str,
        is_begun: bool,
        now_ms: int,
        fences_producer: bool = False,
    ) -> Change:
        """Return the decision to commit or abort, with a new epoch for transaction version 2 or for fencing."""
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= EPOCH_BUMP_SINCE:
            last_epoch = epoch
            if epoch < MAX_EPOCH:
                epoch += 1
            elif is_commit:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"producer id {self.producer_id} has no epoch left")
        elif fences_producer:
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), NO_PRODUCER_EPOCH
        return self.plan_change(
            PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            why,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if is_begun else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def plan_completion(self, now_ms: int) -> Change:
        """Return the end of a decided transaction, to be written when every partition has its marker."""
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.client_version >= EPOCH_BUMP_SINCE and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self.plan_change(
            COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            "all markers written",
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions={},
            last_update_ms=now_ms,
        )


def is_epoch_exhausted(epoch: int) -> bool:
    """Return whether no epoch above this one may be returned to a client."""
    return epoch >= LAST_CLIENT_EPOCH
