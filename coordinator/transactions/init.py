"""InitProducerId 0-6 for transactional ids (KIP-98, KIP-360, KIP-939)."""

import logging

from odradek.coordinator.request_context import RequestContext
from odradek.coordinator.result import CoordinatorResult, Token
from odradek.coordinator.transactions import ending as transaction_ending
from odradek.coordinator.transactions.responses import init_producer_id_response
from odradek.coordinator.transactions.settings import TransactionSettings
from odradek.coordinator.transactions.shard_state import ReplyOnce, TransactionShardState
from odradek.coordinator.transactions.transaction import (
    EMPTY,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    ONGOING,
    Change,
    Transaction,
    is_epoch_exhausted,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)


def request_error(settings: TransactionSettings, request: InitProducerIdRequest) -> ErrorCode:
    """Validate the fields of the request, in Kafka's order."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.enable2_pc and not settings.is_two_phase_commit_enabled:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared_txn:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= settings.max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def init_producer_id(
    state: TransactionShardState, request: InitProducerIdRequest, context: RequestContext, token: Token, now_ms: int
) -> CoordinatorResult:
    """Handle an InitProducerId without `request_error`.

    An ongoing transaction is aborted with a new epoch, which no producer receives. This fences its producer, and the
    request gets CONCURRENT_TRANSACTIONS.
    """
    result = CoordinatorResult()
    api_version = context.api_version
    try:
        timeout_ms = NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms
        transaction = _find_or_create(state, request.transactional_id or "", timeout_ms, now_ms)
        _check(transaction, request)
        if transaction.state is ONGOING:
            respond = _respond_concurrent_transactions(token, api_version)
            transaction_ending.fence_and_abort(
                state, transaction, "InitProducerId from its producer", respond, result, now_ms
            )
            return result
        change = _next_epoch(state, transaction, request, timeout_ms, now_ms)

        def make_response(error: ErrorCode) -> InitProducerIdResponse:
            if error:
                return init_producer_id_response(error, api_version)
            return init_producer_id_response(error, api_version, change.producer_id, change.producer_epoch)

        state.write(transaction, change, result, ReplyOnce(token, make_response))
    except KafkaError as error:
        result.reply(token, init_producer_id_response(error.code, api_version))
    return result


def _find_or_create(state: TransactionShardState, transactional_id: str, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the transaction, or a new one, which is added to the shard when its first record is appended."""
    transaction = state.transactions.get(transactional_id)
    if transaction is None:
        transaction = Transaction(transactional_id, state.take_producer_id(), timeout_ms, now_ms, EMPTY)
    return transaction


def _check(transaction: Transaction, request: InitProducerIdRequest) -> None:
    """Raise CONCURRENT_TRANSACTIONS if the transaction is pending, PRODUCER_FENCED for another producer.

    A decided transaction is pending until its end, so its state is not checked. A producer with the previous producer
    id and its last epoch is accepted, because it may not have received its new id.
    """
    if transaction.is_pending:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if request.producer_id != NO_PRODUCER_ID and not (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or request.producer_id == transaction.producer_id
        or (request.producer_id == transaction.previous_producer_id and is_epoch_exhausted(request.producer_epoch))
    ):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _next_epoch(
    state: TransactionShardState,
    transaction: Transaction,
    request: InitProducerIdRequest,
    timeout_ms: int,
    now_ms: int,
) -> Change:
    expected_epoch = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
    if transaction.is_epoch_exhausted and expected_epoch in (None, transaction.producer_epoch):
        return transaction.plan_replacement(
            state.take_producer_id(), timeout_ms, is_expected=expected_epoch is not None, now_ms=now_ms
        )
    return transaction.plan_initialization(timeout_ms, expected_epoch, now_ms)


def _respond_concurrent_transactions(token: Token, api_version: int) -> transaction_ending.Respond:
    def respond(result: CoordinatorResult, error: ErrorCode, producer_id: int, producer_epoch: int) -> None:
        reported = error or ErrorCode.CONCURRENT_TRANSACTIONS
        result.reply(token, init_producer_id_response(reported, api_version))

    return respond
