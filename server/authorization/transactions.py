"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions, ListTransactions."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from odradek.coordinator.transactions.admin import describe_error
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from odradek.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)
from odradek.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.protocol.schema import rows
from odradek.replication.metadata.topic_names import is_internal
from odradek.server.authorization.guarding import GuardServices, Proceed, divide, finish, then
from odradek.server.handlers.coordinators.transactions import BATCHED_SINCE, refuse_topics
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.request import Reply, RequestContext


class TransactionGuardServices(GuardServices, Protocol):
    """The parts of a broker that these guards need."""

    metadata: "ClusterMetadata"


def add_partitions_to_txn(
    rights: Rights,
    services: TransactionGuardServices,
    context: "RequestContext",
    request: AddPartitionsToTxnRequest,
    proceed: Proceed[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse],
) -> "Reply[AddPartitionsToTxnResponse]":
    """Check the rights to the transactional id and the topics. Only brokers may send versions from 4 on.

    If the client may not write to a topic, no partition is added.
    """
    if context.api_version >= BATCHED_SINCE:
        rights.check_cluster()
        return proceed(request)
    transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
    rights.check(ResourceType.TRANSACTIONAL_ID, transactional_id)
    names = dict.fromkeys(topic.name for topic in topics if not is_internal(topic.name))

    def add(allowed: list[str], refused: list[str]) -> "Reply[AddPartitionsToTxnResponse]":
        if not refused:
            return proceed(request)
        result = refuse_topics(services.metadata, transactional_id, topics, is_client=True, unwritable=set(refused))
        assert result is not None
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)

    return divide(services, rights, ResourceType.TOPIC, names, str, add)


def add_offsets_to_txn(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: AddOffsetsToTxnRequest,
    proceed: Proceed[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse],
) -> "Reply[AddOffsetsToTxnResponse]":
    """Check the rights to the transactional id and the group."""
    rights.check(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    rights.check(ResourceType.GROUP, request.group_id)
    return proceed(request)


def end_txn(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: EndTxnRequest,
    proceed: Proceed[EndTxnRequest, EndTxnResponse],
) -> "Reply[EndTxnResponse]":
    """Check the right to the transactional id."""
    rights.check(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    return proceed(request)


def describe_transactions(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: DescribeTransactionsRequest,
    proceed: Proceed[DescribeTransactionsRequest, DescribeTransactionsResponse],
) -> "Reply[DescribeTransactionsResponse]":
    """Describe the transactions that the client may describe, without the topics that it may not describe."""

    def describe(allowed: list[str], refused: list[str]) -> "Reply[DescribeTransactionsResponse]":
        denied = set(refused)
        if not allowed:
            return merge(DescribeTransactionsResponse(), denied)
        described = proceed(DescribeTransactionsRequest(transactional_ids=allowed))
        return map_reply(
            described,
            lambda response: then(services, hide_topics(response), lambda visible: merge(visible, denied)),
        )

    def hide_topics(response: DescribeTransactionsResponse) -> Generator[None, None, DescribeTransactionsResponse]:
        for state in response.transaction_states:
            state.topics, _ = yield from rights.divide(ResourceType.TOPIC, state.topics, lambda topic: topic.topic)
        return response

    def merge(response: DescribeTransactionsResponse, denied: set[str]) -> DescribeTransactionsResponse:
        states = iter(response.transaction_states)
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        found = [name if name in denied else next(states) for name in request.transactional_ids]

        def make_row(
            state: DescribeTransactionsResponseTransactionState | str,
        ) -> DescribeTransactionsResponseTransactionState:
            return describe_error(state, code) if isinstance(state, str) else state

        return DescribeTransactionsResponse(transaction_states=rows(make_row, found))

    return divide(services, rights, ResourceType.TRANSACTIONAL_ID, request.transactional_ids, str, describe)


def list_transactions(
    rights: Rights,
    services: GuardServices,
    context: "RequestContext",
    request: ListTransactionsRequest,
    proceed: Proceed[ListTransactionsRequest, ListTransactionsResponse],
) -> "Reply[ListTransactionsResponse]":
    """List the transactions that the client may describe."""

    def select(response: ListTransactionsResponse) -> Generator[None, None, ListTransactionsResponse]:
        response.transaction_states, _ = yield from rights.divide(
            ResourceType.TRANSACTIONAL_ID,
            response.transaction_states,
            lambda state: state.transactional_id,
            audits_denial=False,
        )
        return response

    return map_reply(proceed(request), lambda response: finish(services, select(response)))
