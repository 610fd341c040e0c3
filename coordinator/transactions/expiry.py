"""Transaction timeouts, and expiry of unused transactional ids.

A search visits some transactions in each `tick`. The result of a `tick` has either the record of one decision, which is
written alone, so that its success or failure is certain, or tombstones, which are written in batches that fit into the
log.

The age of a transaction is measured on the monotonic clock, so that a change of the wall clock aborts none. For a
transaction that was loaded, the start in its record is used, which is wall-clock time; Apache Kafka always uses the
wall clock. The expiry of transactional ids uses the wall clock.
"""

import logging
from collections import deque
from typing import Final

from odradek.coordinator.result import Completion, CoordinatorResult
from odradek.coordinator.timers import DeadlineKey
from odradek.coordinator.transactions import ending as transaction_ending
from odradek.coordinator.transactions.records import transaction_tombstone
from odradek.coordinator.transactions.shard_state import TransactionShardState
from odradek.coordinator.transactions.transaction import NO_TIMEOUT_MS, ONGOING, UNDECIDED, Transaction
from odradek.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

TIMEOUT_KEY: Final[DeadlineKey] = ("timeouts",)
EXPIRY_KEY: Final[DeadlineKey] = ("expiry",)
MAX_TOMBSTONES_BYTES: Final = 8_192
TRANSACTIONS_PER_STEP: Final = 1_000
"""A step with this many takes about 200 us."""


def resume_timeout(state: TransactionShardState, transaction: Transaction, now_ms: int) -> None:
    """Continue the timeout of a transaction that was open when the shard was loaded."""
    transaction.open_since_ms = state.timers.monotonic_ms() - max(0, now_ms - transaction.start_ms)


def begin(state: TransactionShardState) -> None:
    """Schedule the first searches."""
    _schedule_timeouts(state)
    _schedule_expiry(state)


# -- timeouts --------------------------------------------------------------------------------------------------------


def _schedule_timeouts(state: TransactionShardState) -> None:
    state.timers.schedule(
        TIMEOUT_KEY,
        state.settings.abort_timed_out_interval_ms,
        lambda result, now_ms: _abort_next(state, deque(state.transactions), result, now_ms),
    )


def _is_timed_out(transaction: Transaction, monotonic_ms: int) -> bool:
    return (
        transaction.state is ONGOING
        and not transaction.is_pending
        and transaction.timeout_ms != NO_TIMEOUT_MS
        and transaction.open_since_ms + transaction.timeout_ms < monotonic_ms
    )


def _abort_next(state: TransactionShardState, remaining: deque[str], result: CoordinatorResult, now_ms: int) -> None:
    """Run one step of a search: visit some transactions, and abort the first that has timed out."""
    monotonic_ms = state.timers.monotonic_ms()
    timed_out = None
    for _ in range(min(len(remaining), TRANSACTIONS_PER_STEP)):
        transaction = state.transactions.get(remaining.popleft())
        if transaction is not None and _is_timed_out(transaction, monotonic_ms):
            timed_out = transaction
            break
    if remaining:
        state.timers.schedule(
            TIMEOUT_KEY, 0, lambda result, now_ms: _abort_next(state, remaining, result, now_ms)
        )
    else:
        _schedule_timeouts(state)
    if timed_out is not None:
        _abort(state, timed_out, result, now_ms)


def _abort(state: TransactionShardState, transaction: Transaction, result: CoordinatorResult, now_ms: int) -> None:
    def respond(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        logger.log(
            logging.WARNING if error else logging.INFO,
            "aborting a transaction because its timeout has expired transactional_id=%s result=%s",
            transaction.transactional_id, error.name,
        )  # fmt: skip

    transaction_ending.fence_and_abort(state, transaction, "transaction timeout expired", respond, result, now_ms)


# -- expiry of transactional ids -------------------------------------------------------------------------------------


def _schedule_expiry(state: TransactionShardState) -> None:
    state.timers.schedule(
        EXPIRY_KEY,
        state.settings.remove_expired_interval_ms,
        lambda result, now_ms: _remove_expired(state, deque(state.transactions), result, now_ms),
    )


def _is_expired(state: TransactionShardState, transaction: Transaction, now_ms: int) -> bool:
    return (
        transaction.state in UNDECIDED
        and not transaction.is_pending
        and transaction.last_update_ms <= now_ms - state.settings.transactional_id_expiration_ms
    )


def _remove_expired(
    state: TransactionShardState, remaining: deque[str], result: CoordinatorResult, now_ms: int
) -> None:
    """Run one step of a search: visit some transactional ids, and remove those that are expired."""
    size_bytes = visited = 0
    while remaining and visited < TRANSACTIONS_PER_STEP and size_bytes < MAX_TOMBSTONES_BYTES:
        visited += 1
        transaction = state.transactions.get(remaining.popleft())
        if transaction is None or not _is_expired(state, transaction, now_ms):
            continue
        record = transaction_tombstone(transaction.transactional_id)
        result.records.append(record)
        size_bytes += len(record.key)
    if result.records:
        result.is_atomic = False
        logger.info("expired transactional ids count=%d", len(result.records))
        result.completions.append(_Removal(len(result.records)))
    if remaining:
        state.timers.schedule(
            EXPIRY_KEY, 0, lambda result, now_ms: _remove_expired(state, remaining, result, now_ms)
        )
    else:
        _schedule_expiry(state)


class _Removal(Completion):
    """Completion of the tombstones of `count` expired ids. The next search retries a failed write."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        pass

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        logger.warning(
            "cannot remove expired transactional ids; the next search retries count=%d error=%s", self.count, error.name
        )
