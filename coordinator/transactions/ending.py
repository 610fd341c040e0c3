"""End of transactions: EndTxn 0-5, and aborts by the coordinator (KIP-98, KIP-360, KIP-890).

The record of state PrepareCommit or PrepareAbort is the decision to commit or to abort. When it is replicated, the
response is sent, and the markers are written.
"""

import logging
from collections.abc import Callable
from typing import Final

from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import Completion, CoordinatorResult, Token
from odradek.coordinator.transactions import markers as transaction_markers
from odradek.coordinator.transactions.responses import end_txn_response
from odradek.coordinator.transactions.shard_state import TransactionShardState
from odradek.coordinator.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EPOCH_BUMP_SINCE,
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    STATE_NAMES,
    Change,
    Transaction,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.end_txn import EndTxnRequest

logger = logging.getLogger(__name__)

EPOCH_BUMP_API_VERSION: Final = 5
"""From this version of EndTxn on, clients have transaction version 2."""

Respond = Callable[[CoordinatorResult, ErrorCode, int, int], None]
"""Add the response, with an error or NONE, and the producer id and epoch for the next transaction."""


def end_txn(
    state: TransactionShardState, request: EndTxnRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Handle an EndTxn."""
    result = CoordinatorResult()
    bumps_epoch = context.api_version >= EPOCH_BUMP_API_VERSION

    def respond(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if bumps_epoch:
            response = end_txn_response(error, context.api_version, producer_id, producer_epoch)
        else:
            response = end_txn_response(error, context.api_version)
        result.reply(token, response)

    try:
        transaction = state.transaction(request.transactional_id)
        check = _check_with_epoch_bump if bumps_epoch else _check
        if check(transaction, request):
            respond(result, ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch)
            return result
        _decide(
            state,
            transaction,
            is_commit=request.committed,
            client_version=EPOCH_BUMP_SINCE if bumps_epoch else 0,
            why="commit requested" if request.committed else "abort requested",
            respond=respond,
            result=result,
            now_ms=now_ms,
        )
    except KafkaError as error:
        respond(result, error.code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    return result


def _check(transaction: Transaction, request: EndTxnRequest) -> bool:
    """Return whether a request up to version 4 is a retry of one whose transaction is complete. Raises KafkaError."""
    if transaction.producer_id != request.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.producer_epoch != request.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.is_pending:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is ONGOING:
        return False
    if transaction.state is (COMPLETE_COMMIT if request.committed else COMPLETE_ABORT):
        return True
    raise _invalid_state(transaction, request)


def _check_with_epoch_bump(transaction: Transaction, request: EndTxnRequest) -> bool:
    """Return the result of `_check` for versions from 5 on, in which a retry has the epoch before the current one.

        state \\ request    retried abort        abort      retried commit       commit
        Empty              PRODUCER_FENCED      decided    PRODUCER_FENCED      INVALID_TXN_STATE
        Ongoing            PRODUCER_FENCED      decided    PRODUCER_FENCED      decided
        CompleteAbort      NONE                 decided    INVALID_TXN_STATE    INVALID_TXN_STATE
        CompleteCommit     INVALID_TXN_STATE    decided    NONE                 INVALID_TXN_STATE

    A decided transaction is pending until its end. This is checked first, because the producer may already use the
    producer id that becomes valid at the end.
    """
    if transaction.is_pending:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_replaced = (
        transaction.previous_producer_id == request.producer_id
        and request.producer_epoch == LAST_CLIENT_EPOCH
        and transaction.producer_epoch == 0
    )
    if transaction.producer_id != request.producer_id and not is_replaced:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_bumped = transaction.producer_epoch == request.producer_epoch + 1
    if transaction.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and (is_bumped or is_replaced):
        if transaction.state is (COMPLETE_COMMIT if request.committed else COMPLETE_ABORT):
            return True
        raise _invalid_state(transaction, request)
    if transaction.producer_epoch != request.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is ONGOING or not request.committed:
        return False
    raise _invalid_state(transaction, request)


def _invalid_state(transaction: Transaction, request: EndTxnRequest) -> KafkaError:
    logger.warning(
        "EndTxn rejected in this state transactional_id=%s state=%s requested=%s",
        transaction.transactional_id, STATE_NAMES[transaction.state], "commit" if request.committed else "abort",
    )  # fmt: skip
    return KafkaError(ErrorCode.INVALID_TXN_STATE)


def fence_and_abort(
    state: TransactionShardState,
    transaction: Transaction,
    why: str,
    respond: Respond,
    result: CoordinatorResult,
    now_ms: int,
) -> None:
    """Abort an ongoing transaction with a new epoch, which fences its producer.

    With transaction version 2 every decision increments the epoch; with lower versions only this function does.
    If the record is not written, the next attempt uses the same epoch.
    """
    version = state.settings.transaction_version
    try:
        _decide(
            state,
            transaction,
            is_commit=False,
            client_version=version if version >= EPOCH_BUMP_SINCE else 0,
            why=why,
            respond=respond,
            result=result,
            now_ms=now_ms,
            fences_producer=True,
        )
    except KafkaError as error:
        respond(result, error.code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _decide(
    state: TransactionShardState,
    transaction: Transaction,
    *,
    is_commit: bool,
    client_version: int,
    why: str,
    respond: Respond,
    result: CoordinatorResult,
    now_ms: int,
    fences_producer: bool = False,
) -> None:
    next_producer_id = NO_PRODUCER_ID
    if client_version >= EPOCH_BUMP_SINCE and transaction.is_epoch_exhausted:
        next_producer_id = state.take_producer_id()
    change = transaction.plan_decision(
        is_commit=is_commit,
        client_version=client_version,
        next_producer_id=next_producer_id,
        why=why,
        is_begun=transaction.state is ONGOING,
        now_ms=now_ms,
        fences_producer=fences_producer,
    )
    state.write(transaction, change, result, _Decision(state, transaction, change, respond))


class _Decision(Completion):
    """Starts the markers and sends the response when the record of state Prepare is replicated."""

    __slots__ = ("change", "respond", "state", "transaction")

    def __init__(
        self, state: TransactionShardState, transaction: Transaction, change: Change, respond: Respond
    ) -> None:
        self.state = state
        self.transaction = transaction
        self.change = change
        self.respond = respond

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        end = transaction_markers.start(self.state, self.transaction, result, now_ms)
        self.respond(result, ErrorCode.NONE, end.producer_id, end.producer_epoch)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        logger.warning(
            "cannot write the decision on a transaction transactional_id=%s state=%s error=%s",
            self.transaction.transactional_id, STATE_NAMES[self.change.state], error.name,
        )  # fmt: skip
        self.respond(result, error, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self.respond(result, error, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.respond = _send_no_response


def _send_no_response(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
    pass
