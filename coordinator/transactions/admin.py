"""DescribeTransactions and ListTransactions inside one shard (KIP-664, KIP-994, KIP-1152)."""

from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from odradek.coordinator.linear_pattern import LinearPattern
from odradek.coordinator.steps import Steps, pieces
from odradek.coordinator.transactions.shard_state import TransactionShardState
from odradek.coordinator.transactions.transaction import STATE_NAMES, Transaction
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
)
from odradek.protocol.messages.list_transactions import ListTransactionsResponseTransactionState

_STATE_NAMES: Final = frozenset(STATE_NAMES.values())


def count(state: TransactionShardState) -> Steps[Counter[str]]:
    """Return the number of transactional ids in each state, by the state's name."""
    counts: Counter[str] = Counter()
    for transactions in pieces(state.transactions.values()):
        counts.update(STATE_NAMES[one.state] for one in transactions)
        yield
    return counts


def unknown_states(names: Collection[str]) -> list[str]:
    """Return the names that are not those of a state, each once, for the response of ListTransactions."""
    return [name for name in dict.fromkeys(names) if name not in _STATE_NAMES]


def describe(state: TransactionShardState, transactional_id: str) -> DescribeTransactionsResponseTransactionState:
    """Return one transaction; while its markers are being written, with the partitions that have no marker yet."""
    if not transactional_id:
        return describe_error(transactional_id, ErrorCode.INVALID_REQUEST)
    transaction = state.transactions.get(transactional_id)
    if transaction is None:
        return describe_error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions if transaction.unmarked is None else transaction.unmarked:
        by_topic.setdefault(topic, []).append(index)
    return DescribeTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[transaction.state],
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            DescribeTransactionsResponseTopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
        ],
    )


def describe_error(transactional_id: str, error: ErrorCode) -> DescribeTransactionsResponseTransactionState:
    """Return the result for a transaction that cannot be described."""
    return DescribeTransactionsResponseTransactionState(transactional_id=transactional_id, error_code=error)


def list_transactions(
    state: TransactionShardState,
    states: Collection[str],
    producer_ids: Collection[int],
    duration_ms: int,
    pattern: str | None,
    now_ms: int,
) -> Steps[list[ListTransactionsResponseTransactionState]]:
    """Return the transactions that match all filters; an empty filter matches all.

    `duration_ms` matches transactions that started longer ago, -1 all; `pattern` must match the whole transactional
    id. Raises INVALID_REGULAR_EXPRESSION.
    """
    compiled = _compile(pattern) if pattern else None

    def matches(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or STATE_NAMES[transaction.state] in states)
            and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
        )

    listed: list[ListTransactionsResponseTransactionState] = []
    for transactions in pieces(state.transactions.values()):
        for transaction in filter(matches, transactions):
            if compiled is not None and not (yield from compiled.match(transaction.transactional_id)):
                continue
            listed.append(
                ListTransactionsResponseTransactionState(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=STATE_NAMES[transaction.state],
                )
            )
        yield
    return listed


@lru_cache(maxsize=1)
def _compile(pattern: str) -> LinearPattern:
    try:
        return LinearPattern(pattern)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Transaction ID pattern `{pattern}` is not a valid regular expression: {error}.",
        ) from error
