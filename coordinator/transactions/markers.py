"""Completion of a decided transaction: a marker in every partition, then a record of CompleteCommit or CompleteAbort.

A failed write of a marker or of the record is retried after a pause, or as soon as the metadata of its topic changes,
because the partition may have a leader then. Only an error that proves that another broker is the coordinator ends the
retries.
"""

import logging
from collections.abc import Set
from typing import Final

from odradek.coordinator.result import Completion, CoordinatorResult, TransactionOutcome
from odradek.coordinator.steps import Steps, pieces
from odradek.coordinator.transactions.shard_state import TransactionShardState, completion_key
from odradek.coordinator.transactions.transaction import PREPARE_COMMIT, PREPARED, STATE_NAMES, Change, Transaction
from odradek.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

STATE_TOPIC: Final = "__transaction_state"

DONE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""The partition has its marker, or supports no markers and therefore has no records of the transaction."""

SUPERSEDED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A newer coordinator has written a marker for this producer."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Expected errors. Others are retried too, and logged as errors."""


def start(state: TransactionShardState, transaction: Transaction, result: CoordinatorResult, now_ms: int) -> Change:
    """Request the markers of a replicated decision, or write its end if it has no partitions. Return the end."""
    change = transaction.plan_completion(now_ms)
    transaction.unmarked = dict.fromkeys(transaction.partitions, False)
    transaction.marker_pause_ms = state.settings.marker_retry_backoff_ms
    transaction.end = change
    _request_markers(state, transaction, result)
    return change


def resume(state: TransactionShardState, transaction: Transaction, result: CoordinatorResult, now_ms: int) -> None:
    """Complete a transaction whose decision was loaded."""
    logger.info(
        "completing a decided transaction transactional_id=%s state=%s partitions=%d",
        transaction.transactional_id, STATE_NAMES[transaction.state], len(transaction.partitions),
    )  # fmt: skip
    if transaction.partitions:
        start(state, transaction, result, now_ms)
    else:
        transaction.end = transaction.plan_completion(now_ms)
        transaction.unmarked = {}
        transaction.marker_pause_ms = state.settings.marker_retry_backoff_ms
        _schedule_retry(state, transaction, 0)


def marker_written(
    state: TransactionShardState,
    transaction: Transaction,
    partition: tuple[str, int],
    error: ErrorCode,
    result: CoordinatorResult,
    now_ms: int,
) -> None:
    """Handle the result of a marker. Repeated and late results have no effect."""
    unmarked = transaction.unmarked
    if transaction.state not in PREPARED or unmarked is None or not unmarked.get(partition):
        return
    if error in DONE:
        del unmarked[partition]
        if not unmarked:
            state.timers.cancel(completion_key(transaction.transactional_id))
            _write_end(state, transaction, result)
    elif error in SUPERSEDED:
        logger.error(
            "another broker is the coordinator now, so this one does not complete the transaction transactional_id=%s "
            "partition=%s-%d error=%s", transaction.transactional_id, *partition, error.name,
        )  # fmt: skip
        # All markers count as in flight, so none is sent again; DescribeTransactions still lists their partitions.
        unmarked.update(dict.fromkeys(unmarked, True))
        state.timers.cancel(completion_key(transaction.transactional_id))
    else:
        logger.log(
            logging.INFO if error in RETRIABLE else logging.ERROR,
            "cannot write transaction marker, will retry transactional_id=%s partition=%s-%d error=%s",
            transaction.transactional_id, *partition, error.name,
        )  # fmt: skip
        unmarked[partition] = False
        _pause(state, transaction, partition[0])


def hasten(state: TransactionShardState, topics: Set[str] | None) -> Steps[None]:
    """Retry the writes that failed in these topics (None: in all) immediately instead of after their pause."""
    for topic in [topic for topic in state.postponed if topics is None or topic in topics]:
        for transactional_ids in pieces(state.postponed.pop(topic, ())):
            for transactional_id in transactional_ids:
                transaction = state.transactions.get(transactional_id)
                if transaction is not None and completion_key(transactional_id) in state.timers:
                    transaction.marker_pause_ms = state.settings.marker_retry_backoff_ms
                    _schedule_retry(state, transaction, 0)
            yield


def _pause(state: TransactionShardState, transaction: Transaction, topic: str) -> None:
    """Retry a write to a topic after a pause, which doubles with each failure."""
    state.postponed.setdefault(topic, {})[transaction.transactional_id] = None
    if completion_key(transaction.transactional_id) not in state.timers:
        pause_ms = transaction.marker_pause_ms
        transaction.marker_pause_ms = min(2 * pause_ms, state.settings.marker_retry_backoff_max_ms)
        _schedule_retry(state, transaction, pause_ms)


def _schedule_retry(state: TransactionShardState, transaction: Transaction, delay_ms: int) -> None:
    """Schedule a retry, in place of one that is scheduled already."""
    key = completion_key(transaction.transactional_id)
    state.timers.schedule(key, delay_ms, lambda result, now_ms: _request_markers(state, transaction, result))


def _request_markers(state: TransactionShardState, transaction: Transaction, result: CoordinatorResult) -> None:
    """Request the markers that are neither written nor in flight; write the end if all markers are written.

    A partition never has two markers in flight: below transaction version 2 the second one could arrive during the next
    transaction of the same epoch and end it.
    """
    unmarked = transaction.unmarked
    if transaction.state not in PREPARED or unmarked is None:
        return
    if not unmarked:
        _write_end(state, transaction, result)
        return
    partitions = [partition for partition, is_in_flight in unmarked.items() if not is_in_flight]
    if partitions:
        unmarked.update(dict.fromkeys(partitions, True))
        result.outcomes.append(_outcome(state, transaction, partitions))


def _outcome(
    state: TransactionShardState, transaction: Transaction, partitions: list[tuple[str, int]]
) -> TransactionOutcome:
    return TransactionOutcome(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        coordinator_epoch=state.coordinator_epoch,
        is_commit=transaction.state is PREPARE_COMMIT,
        transaction_version=transaction.client_version,
        partitions=tuple(partitions),
    )


def _write_end(state: TransactionShardState, transaction: Transaction, result: CoordinatorResult) -> None:
    if transaction.end is not None and transaction.unreplicated is None:
        state.write(transaction, transaction.end, result, _End(state, transaction))


class _End(Completion):
    """Completion of the last record of a transaction, which is pending until the record is replicated."""

    __slots__ = ("state", "transaction")

    def __init__(self, state: TransactionShardState, transaction: Transaction) -> None:
        self.state = state
        self.transaction = transaction

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        self.transaction.end = self.transaction.unmarked = None

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        logger.warning(
            "cannot write the end of a transaction, will retry transactional_id=%s error=%s",
            self.transaction.transactional_id, error.name,
        )  # fmt: skip
        _pause(self.state, self.transaction, STATE_TOPIC)
