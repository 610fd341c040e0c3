"""Decisions of transactions: EndTxn 0-5, and aborts by the coordinator (KIP-98, KIP-360, KIP-890).

The record of state Prepare is the decision. The response is sent when it is replicated; markers follow.
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
"""EndTxn versions from here on come from clients of transaction version 2."""

Answer = Callable[[CoordinatorResult, ErrorCode, int, int], None]
"""Adds the response: for an error or NONE, and the producer id and epoch from then on."""


def end_txn(
    state: TransactionShardState, request: EndTxnRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Decide an EndTxn."""
    result = CoordinatorResult()
    bumps_epoch = context.api_version >= EPOCH_BUMP_API_VERSION

    def answer(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        if bumps_epoch:
            response = end_txn_response(error, context.api_version, producer_id, producer_epoch)
        else:
            response = end_txn_response(error, context.api_version)
        result.reply(token, response)

    try:
        transaction = state.transaction(request.transactional_id)
        check = _check_with_epoch_bump if bumps_epoch else _check
        if check(transaction, request):
            answer(result, ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch)
            return result
        _decide(
            state,
            transaction,
            is_commit=request.committed,
            client_version=EPOCH_BUMP_SINCE if bumps_epoch else 0,
            why="commit requested" if request.committed else "abort requested",
            answer=answer,
            result=result,
            now_ms=now_ms,
        )
    except KafkaError as error:
        answer(result, error.code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    return result


def _check(transaction: Transaction, request: EndTxnRequest) -> bool:
    """Return whether a request up to version 4 repeats one that is complete. Raises KafkaError."""
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
    raise _cannot_end_so(transaction, request)


def _check_with_epoch_bump(transaction: Transaction, request: EndTxnRequest) -> bool:
    """`_check` from version 5 on, where a repetition is known by its epoch: the one before the present one.

        state \\ request    abort, repeated   abort     commit, repeated   commit
        Empty              90                decided   90                 48
        Ongoing            90                decided   90                 decided
        CompleteAbort      done              decided   48                 48
        CompleteCommit     48                decided   done               48

    A decided transaction is pending until its end, and this is checked first: a producer may already use the id that it
    gets when its transaction is complete.
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
        raise _cannot_end_so(transaction, request)
    if transaction.producer_epoch != request.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is ONGOING or not request.committed:
        return False
    raise _cannot_end_so(transaction, request)


def _cannot_end_so(transaction: Transaction, request: EndTxnRequest) -> KafkaError:
    logger.warning(
        "transaction cannot be ended so transactional_id=%s state=%s requested=%s",
        transaction.transactional_id, STATE_NAMES[transaction.state], "commit" if request.committed else "abort",
    )  # fmt: skip
    return KafkaError(ErrorCode.INVALID_TXN_STATE)


def fence_and_abort(
    state: TransactionShardState,
    transaction: Transaction,
    why: str,
    answer: Answer,
    result: CoordinatorResult,
    now_ms: int,
) -> None:
    """Abort an ongoing transaction under an epoch that its producer does not have.

    With an epoch for every transaction the abort itself takes the new one; without, fencing does. If the record is not
    written, the next attempt takes the same epoch.
    """
    version = state.settings.transaction_version
    try:
        _decide(
            state,
            transaction,
            is_commit=False,
            client_version=version if version >= EPOCH_BUMP_SINCE else 0,
            why=why,
            answer=answer,
            result=result,
            now_ms=now_ms,
            fences_producer=True,
        )
    except KafkaError as error:
        answer(result, error.code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _decide(
    state: TransactionShardState,
    transaction: Transaction,
    *,
    is_commit: bool,
    client_version: int,
    why: str,
    answer: Answer,
    result: CoordinatorResult,
    now_ms: int,
    fences_producer: bool = False,
) -> None:
    next_producer_id = NO_PRODUCER_ID
    if client_version >= EPOCH_BUMP_SINCE and transaction.is_epoch_exhausted:
        next_producer_id = state.take_producer_id()
    change = transaction.decided(
        is_commit=is_commit,
        client_version=client_version,
        next_producer_id=next_producer_id,
        why=why,
        is_begun=transaction.state is ONGOING,
        now_ms=now_ms,
        fences_producer=fences_producer,
    )
    state.write(transaction, change, result, _Decision(state, transaction, change, answer))


class _Decision(Completion):
    """The record of state Prepare. Once it is replicated the transaction has one possible end."""

    __slots__ = ("answer", "change", "state", "transaction")

    def __init__(
        self, state: TransactionShardState, transaction: Transaction, change: Change, answer: Answer
    ) -> None:
        self.state = state
        self.transaction = transaction
        self.change = change
        self.answer = answer

    def written(self, result: CoordinatorResult, now_ms: int) -> None:
        end = transaction_markers.start(self.state, self.transaction, result, now_ms)
        self.answer(result, ErrorCode.NONE, end.producer_id, end.producer_epoch)

    def failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        logger.warning(
            "decision on a transaction not written transactional_id=%s state=%s error=%s",
            self.transaction.transactional_id, STATE_NAMES[self.change.state], error.name,
        )  # fmt: skip
        self.answer(result, error, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

    def timed_out(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
        self.answer(result, error, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.answer = _send_no_response


def _send_no_response(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
    pass
