"""AddPartitionsToTxn 0-5 and AddOffsetsToTxn 0-4 (KIP-98, KIP-890)."""

from collections.abc import Callable
from typing import Final

from odradek.coordinator.result import CoordinatorResult, Response, Token
from odradek.coordinator.transactions.shard_state import ReplyOnce, TransactionShardState
from odradek.coordinator.transactions.transaction import EPOCH_BUMP_SINCE, ONGOING, PREPARED, Partitions, Transaction
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequestAddPartitionsToTxnTopic

BROKER_API_VERSION: Final = 4
"""From this version on, AddPartitionsToTxn is sent by brokers, for clients with transaction version 2."""


def client_version_of(add_partitions_api_version: int) -> int:
    """Return the transaction version of the client for which an AddPartitionsToTxn was sent."""
    return EPOCH_BUMP_SINCE if add_partitions_api_version >= BROKER_API_VERSION else 0


def partitions_of(topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic]) -> Partitions:
    """Return the partitions in a request, each once."""
    return {(topic.name, index): None for topic in topics for index in topic.partitions}


def add_partitions(
    state: TransactionShardState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Partitions,
    client_version: int,
    token: Token,
    make_response: Callable[[ErrorCode], Response],
    now_ms: int,
) -> CoordinatorResult:
    """Add partitions to a transaction. No record is written if it contains all of them."""
    result = CoordinatorResult()
    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        transaction = state.transaction(transactional_id)
        if transaction.is_pending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check(transaction, producer_id, producer_epoch)
        if transaction.state is ONGOING and partitions.keys() <= transaction.partitions.keys():
            result.reply(token, make_response(ErrorCode.NONE))
            return result
        change = transaction.plan_extension(partitions, client_version, now_ms, state.timers.monotonic_ms())
        state.write(transaction, change, result, ReplyOnce(token, make_response))
    except KafkaError as error:
        result.reply(token, make_response(error.code))
    return result


def verify_partitions(
    state: TransactionShardState,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Partitions,
) -> dict[tuple[str, int], ErrorCode]:
    """Return NONE for each partition in the transaction, TRANSACTION_ABORTABLE for others. Raises KafkaError.

    A change that is not replicated is ignored; the partition's leader checks again when it appends.
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
