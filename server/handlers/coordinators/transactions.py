"""Transactions: AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, EndTxn 0-5, DescribeTransactions 0, ListTransactions 0-2.

Up to version 3 producers send AddPartitionsToTxn; from 4 on brokers send it for several transactions, and may only
verify partitions (KIP-890). If a partition does not exist, or clients may not write to it, no partition of its
transaction is added. From version 5 on the EndTxn response has the epoch of the next transaction. KIP-98, KIP-664
(describe and list), KIP-994 (filter by duration), KIP-1152 (filter by pattern).
"""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.defer import Deferred, succeed

from odradek.coordinator.steps import Steps
from odradek.coordinator.transactions.admin import describe_error, unknown_states
from odradek.coordinator.transactions.responses import (
    add_offsets_response,
    add_partitions_response,
    end_txn_response,
    verified_result,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseAddPartitionsToTxnResult,
)
from odradek.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from odradek.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from odradek.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC, is_internal
from odradek.server.work.waits import carry_through, wait_for_all

if TYPE_CHECKING:
    from odradek.replication.controller.admin.auto_creation import AutoCreation
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.slices import Slices

BATCHED_SINCE: Final = 4

Topics = list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic]


class TransactionServices(Protocol):
    """The parts of a broker that requests about transactions need."""

    metadata: "ClusterMetadata"
    now_ms: Callable[[], int]
    slices: "Slices"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...

    @property
    def auto_creation(self) -> "AutoCreation": ...

    @property
    def transactions(self) -> "TransactionCoordinatorRuntime": ...


def add_partitions_to_txn(
    services: TransactionServices, context: "RequestContext", request: AddPartitionsToTxnRequest
) -> "Reply[AddPartitionsToTxnResponse]":
    """Add partitions to transactions, or verify that they were added.

    Each partition has its own error. If one does not exist, the others get OPERATION_NOT_ATTEMPTED.
    """
    version = context.api_version
    if version >= BATCHED_SINCE:
        return carry_through(_add_batched(services, context, request))
    transactional_id = request.v3_and_below_transactional_id
    missing = refuse_topics(services.metadata, transactional_id, request.v3_and_below_topics, is_client=True)
    if missing is not None:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=missing.topic_results)
    return services.transactions.run(
        transactional_id,
        lambda shard, token, now_ms: shard.add_partitions(request, context, token, now_ms),
    )


async def _add_batched(
    services: TransactionServices, context: "RequestContext", request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Process one transaction in each step."""

    def add() -> Steps[list[Deferred[AddPartitionsToTxnResponseAddPartitionsToTxnResult]]]:
        waits: list[Deferred[AddPartitionsToTxnResponseAddPartitionsToTxnResult]] = []
        for transaction in request.transactions:
            result = _add_one(services, context, transaction)
            waits.append(result if isinstance(result, Deferred) else succeed(result))
            yield
        return waits

    waits = await services.slices.run(add())
    results = await wait_for_all(waits) if waits else []
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _add_one(
    services: TransactionServices,
    context: "RequestContext",
    transaction: AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
) -> "Reply[AddPartitionsToTxnResponseAddPartitionsToTxnResult]":
    missing = refuse_topics(services.metadata, transaction.transactional_id, transaction.topics, is_client=False)
    if missing is not None:
        return missing
    return services.transactions.run(
        transaction.transactional_id,
        lambda shard, token, now_ms: shard.add_or_verify_partitions(transaction, context, token, now_ms),
    )


def refuse_topics(
    metadata: "ClusterMetadata",
    transactional_id: str,
    topics: Topics,
    *,
    is_client: bool,
    unwritable: Container[str] = (),
) -> AddPartitionsToTxnResponseAddPartitionsToTxnResult | None:
    """Return the errors of a transaction if a partition does not exist, or if clients may not write to it.

    The other partitions get OPERATION_NOT_ATTEMPTED. None if all partitions are accepted.

    is_client: a client sent the request, and may not write to internal topics
    unwritable: topics to which the client may not write
    """
    if not unwritable and all(_accepts_all(metadata, topic, is_client=is_client) for topic in topics):
        return None
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic in topics:
        for index in topic.partitions:
            error = ErrorCode.OPERATION_NOT_ATTEMPTED
            if topic.name in unwritable or (is_client and is_internal(topic.name)):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif metadata.partition(topic.name, index) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors[topic.name, index] = error
    return verified_result(transactional_id, errors)


def _accepts_all(
    metadata: "ClusterMetadata", topic: AddPartitionsToTxnRequestAddPartitionsToTxnTopic, *, is_client: bool
) -> bool:
    """Return whether all requested partitions of a topic are accepted. There may be 10,000."""
    if not topic.partitions:
        return True
    known = metadata.topics.get(topic.name)
    exist = known is not None and min(topic.partitions) >= 0 and max(topic.partitions) < len(known.partitions)
    return exist and not (is_client and is_internal(topic.name))


def add_partitions_to_txn_error(
    request: AddPartitionsToTxnRequest, version: int, error: KafkaError
) -> AddPartitionsToTxnResponse:
    """Return `error` for every partition; from version 4 on for the whole request."""
    if version < BATCHED_SINCE:
        return add_partitions_response(request.v3_and_below_topics, error.code, version)
    return AddPartitionsToTxnResponse(error_code=error.code)


def add_offsets_to_txn(
    services: TransactionServices, context: "RequestContext", request: AddOffsetsToTxnRequest
) -> "Reply[AddOffsetsToTxnResponse]":
    """Add the partition with the group's offsets to a transaction.

    `__consumer_offsets` is created if it is missing, because this may be the client's first request that needs it.
    """
    if GROUP_METADATA_TOPIC in services.metadata.topics:
        return _add_offsets(services, context, request)
    return carry_through(services.auto_creation.auto_create([GROUP_METADATA_TOPIC])).addCallback(
        lambda _: _add_offsets(services, context, request)
    )


def _add_offsets(
    services: TransactionServices, context: "RequestContext", request: AddOffsetsToTxnRequest
) -> "Reply[AddOffsetsToTxnResponse]":
    index = services.groups.index_of(request.group_id)
    if index < 0:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {GROUP_METADATA_TOPIC} could not be created")
    return services.transactions.run(
        request.transactional_id,
        lambda shard, token, now_ms: shard.add_offsets(request, context, token, now_ms, offsets_partition=index),
    )


def add_offsets_to_txn_error(
    request: AddOffsetsToTxnRequest, version: int, error: KafkaError
) -> AddOffsetsToTxnResponse:
    """Return `error` for the whole request."""
    return add_offsets_response(error.code, version)


def end_txn(
    services: TransactionServices, context: "RequestContext", request: EndTxnRequest
) -> "Reply[EndTxnResponse]":
    """Commit or abort a transaction. The response follows the coordinator's record; the markers are written later."""
    return services.transactions.run(
        request.transactional_id, lambda shard, token, now_ms: shard.end_txn(request, context, token, now_ms)
    )


def end_txn_error(request: EndTxnRequest, version: int, error: KafkaError) -> EndTxnResponse:
    """Return `error` for the whole request."""
    return end_txn_response(error.code, version)


def describe_transactions(
    services: TransactionServices, context: "RequestContext", request: DescribeTransactionsRequest
) -> "Deferred[DescribeTransactionsResponse]":
    """Return the state of each transactional id, from its shard."""
    return services.slices.run(_describe_transactions(services, request))


def _describe_transactions(
    services: TransactionServices, request: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    coordinators = services.transactions
    states = []
    for transactional_id in request.transactional_ids:
        states += coordinators.shard(coordinators.index_of(transactional_id)).describe([transactional_id])
        yield
    return DescribeTransactionsResponse(transaction_states=states)


def describe_transactions_error(
    request: DescribeTransactionsRequest, version: int, error: KafkaError
) -> DescribeTransactionsResponse:
    """Return `error` for every transactional id."""
    return DescribeTransactionsResponse(
        transaction_states=[describe_error(name, error.code) for name in request.transactional_ids]
    )


def list_transactions(
    services: TransactionServices, context: "RequestContext", request: ListTransactionsRequest
) -> "Deferred[ListTransactionsResponse]":
    """Return the transactions of this broker's shards that pass the filters, and the unknown states in the filters."""
    return services.slices.run(_list_transactions(services, request))


def _list_transactions(
    services: TransactionServices, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    now_ms = services.now_ms()
    found = []
    for shard in services.transactions.shards():
        found += yield from shard.list_transactions(
            request.state_filters,
            request.producer_id_filters,
            request.duration_filter,
            request.transactional_id_pattern,
            now_ms,
        )
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request.state_filters), transaction_states=found
    )


def list_transactions_error(
    request: ListTransactionsRequest, version: int, error: KafkaError
) -> ListTransactionsResponse:
    """Return `error` for the whole request."""
    return ListTransactionsResponse(error_code=error.code)
