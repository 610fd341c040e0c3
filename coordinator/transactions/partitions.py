"""AddPartitionsToTxn 0-5 and AddOffsetsToTxn 0-4 (KIP-98, KIP-890)."""

from collections.abc import Callable
from typing import Final

from odradek.coordinator.result import CoordinatorResult, Response, Token
from odradek.coordinator.transactions.shard_state import ReplyOnce, TransactionShardState
from odradek.coordinator.transactions.transaction import EPOCH_BUMP_SINCE, ONGOING, PREPARED, Partitions, Transaction
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequestAddPartitionsToTxnTopic

BROKER_API_VERSION: Final = 4
"""AddPartitionsToTxn versions from here on come from brokers, for clients of transaction version 2."""


def client_version_of(add_partitions_api_version: int) -> int:
    """The transaction version of the client behind an AddPartitionsToTxn."""
    return EPOCH_BUMP_SINCE if add_partitions_api_version >= BROKER_API_VERSION else 0


def partitions_of(topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic]) -> Partitions:
    """The partitions that a request names, each once."""
    return {(topic.name, index): None for topic in topics for index in topic.partitions}


def add_partitions(
    state: TransactionShardState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Partitions,
    client_version: int,
    token: Token,
    answer: Callable[[ErrorCode], Response],
    now_ms: int,
) -> CoordinatorResult:
    """Decide on adding partitions. What is in the transaction already needs no record."""
    result = CoordinatorResult()
    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        transaction = state.transaction(transactional_id)
        if transaction.is_pending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check(transaction, producer_id, producer_epoch)
        if transaction.state is ONGOING and partitions.keys() <= transaction.partitions.keys():
            result.reply(token, answer(ErrorCode.NONE))
            return result
        change = transaction.extended(partitions, client_version, now_ms, state.timers.monotonic_ms())
        state.write(transaction, change, result, ReplyOnce(token, answer))
    except KafkaError as error:
        result.reply(token, answer(error.code))
    return result


def verify_partitions(
    state: TransactionShardState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Partitions,
) -> dict[tuple[str, int], ErrorCode]:
    """Return NONE for each partition that is in the transaction, else TRANSACTION_ABORTABLE. Raises KafkaError.

    A record that is not replicated does not count: the partition's leader checks once more when it appends.
    """
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    transaction = state.transaction(transactional_id)
    _check(transaction, producer_id, producer_epoch)
    return {
        partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def _check(transaction: Transaction, producer_id: int, producer_epoch: int) -> None:
    if transaction.producer_id != producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.producer_epoch != producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
