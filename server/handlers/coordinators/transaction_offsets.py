"""TxnOffsetCommit 0-5: commits a group's offsets as part of a transaction (KIP-98).

From version 3 on the request contains the consumer's group member (KIP-447). Before the offsets are written, the
transaction is verified, or from 5 on the group's partition is added to it (KIP-890). Topics that are deleted meanwhile
get UNKNOWN_TOPIC_OR_PARTITION, even if topics with the same names have been created. Clients before version 2 crash on
COORDINATOR_LOAD_IN_PROGRESS and get COORDINATOR_NOT_AVAILABLE (KAFKA-7296).
"""

from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from odradek.coordinator.result import CoordinatorResult, client_error
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.protocol.schema import rows
from odradek.replication.metadata.topic_names import GROUP_METADATA_TOPIC
from odradek.replication.replicas.partition import Partition
from odradek.server.coordinators.transaction_verification import (
    NO_SEQUENCE,
    ClientSupport,
    TransactionWriter,
    VerificationResult,
)
from odradek.server.work.waits import map_reply

if TYPE_CHECKING:
    from odradek.coordinator.groups.shard import GroupShard
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.coordinators.context import PendingReply
    from odradek.server.coordinators.groups import GroupCoordinatorRuntime
    from odradek.server.coordinators.interfaces import TransactionVerification
    from odradek.server.request import Reply, RequestContext

LOADING_KNOWN_SINCE: Final = 2

TopicIds = dict[str, bytes]
"""Topic id by name."""


class TransactionOffsetServices(Protocol):
    """The parts of a broker that TxnOffsetCommit needs."""

    metadata: "ClusterMetadata"
    replicas: "ReplicaManager"

    @property
    def groups(self) -> "GroupCoordinatorRuntime": ...

    @property
    def verifier(self) -> "TransactionVerification": ...


def txn_offset_commit(
    services: TransactionOffsetServices, context: "RequestContext", request: TxnOffsetCommitRequest
) -> "Reply[TxnOffsetCommitResponse]":
    """Commit offsets of existing topics in the group's shard; if no topic exists, the shard is not called."""
    version = context.api_version
    topic_ids = _find_topic_ids(services, request)
    remaining, refused = _split_request(services, request, topic_ids)
    if not remaining.topics:
        return refused

    def merge(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        return _merge_responses(refused, response, version)

    def failed(failure: Failure) -> "TxnOffsetCommitResponse | Failure":
        error = failure.value
        return merge(txn_offset_commit_error(remaining, version, error)) if isinstance(error, KafkaError) else failure

    try:
        outcome = _verify_and_commit(services, context, remaining, topic_ids)
    except KafkaError as error:
        return merge(txn_offset_commit_error(remaining, version, error))
    if isinstance(outcome, Deferred):
        merged: Deferred[TxnOffsetCommitResponse] = outcome.addCallbacks(merge, failed)
        return merged
    return merge(outcome)


def _verify_and_commit(
    services: TransactionOffsetServices, context: "RequestContext", request: TxnOffsetCommitRequest, topic_ids: TopicIds
) -> "Reply[TxnOffsetCommitResponse]":
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    index = services.groups.index_of(request.group_id)
    if index < 0:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {GROUP_METADATA_TOPIC} does not exist")
    partition = services.replicas.get(GROUP_METADATA_TOPIC, index)
    support = ClientSupport.for_offset_commit(context.api_version)
    writer = TransactionWriter(request.transactional_id, request.producer_id, request.producer_epoch, support)

    def commit(verified: VerificationResult) -> "Reply[TxnOffsetCommitResponse]":
        code = verified.errors.get(partition)
        if code is not None:
            raise KafkaError(code)
        remaining, refused = _split_request(services, request, topic_ids)
        if not remaining.topics:
            return refused
        outcome: Reply[TxnOffsetCommitResponse] = services.groups.run_on(
            index,
            lambda shard, token, now_ms: _decide(
                shard, context, remaining, token, now_ms, verified, partition, topic_ids
            ),
        )
        if not refused.topics:
            return outcome
        return map_reply(outcome, lambda response: _merge_responses(refused, response, context.api_version))

    verified = services.verifier.verify(writer, {partition: NO_SEQUENCE})
    return verified.addCallback(commit) if isinstance(verified, Deferred) else commit(verified)


def _decide(
    shard: "GroupShard",
    context: "RequestContext",
    request: TxnOffsetCommitRequest,
    token: "PendingReply[TxnOffsetCommitResponse]",
    now_ms: int,
    verified: VerificationResult,
    partition: Partition,
    topic_ids: TopicIds,
) -> CoordinatorResult:
    """Call the shard. Its records are written only if the verification or the transaction on this partition is open."""
    result = shard.commit_offsets_in_transaction(request, context, token, now_ms, topic_ids)
    if not result.records or verified.may_append(partition):
        return result
    try:
        partition.leading_log().producer_state.check_in_transaction(request.producer_id, request.producer_epoch)
    except KafkaError as error:
        return shard.on_write_failed(result, error.code, now_ms)
    return result


def _find_topic_ids(services: TransactionOffsetServices, request: TxnOffsetCommitRequest) -> TopicIds:
    """Return the ids of the topics that exist."""
    topics = services.metadata.topics
    return {topic.name: topics[topic.name].topic_id for topic in request.topics if topic.name in topics}


def _split_request(
    services: TransactionOffsetServices, request: TxnOffsetCommitRequest, topic_ids: TopicIds
) -> tuple[TxnOffsetCommitRequest, TxnOffsetCommitResponse]:
    """Return a request for the partitions that exist under these topic ids, and the response for the others."""
    topics = services.metadata.topics
    refused = TxnOffsetCommitResponse(topics=[])
    remaining = TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[],
    )
    for topic in request.topics:
        present = topics.get(topic.name)
        has_id = present is not None and present.topic_id == topic_ids.get(topic.name)
        count = len(present.partitions) if present is not None and has_id else 0
        exists = [0 <= item.partition_index < count for item in topic.partitions]
        kept = topic.partitions if all(exists) else list(compress(topic.partitions, exists))
        if kept:
            remaining.topics.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=kept))
        if len(kept) < len(topic.partitions) or not kept:
            rows = [
                TxnOffsetCommitResponsePartition(
                    partition_index=item.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for item in compress(topic.partitions, map(not_, exists))
            ]
            refused.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=rows))
    return remaining, refused


def _merge_responses(
    refused: TxnOffsetCommitResponse, committed: TxnOffsetCommitResponse, version: int
) -> TxnOffsetCommitResponse:
    by_name = {topic.name: topic for topic in refused.topics}
    for topic in committed.topics:
        if version < LOADING_KNOWN_SINCE:
            for row in topic.partitions:
                if row.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if topic.name in by_name:
            by_name[topic.name].partitions += topic.partitions
        else:
            refused.topics.append(topic)
    return refused


def txn_offset_commit_error(
    request: TxnOffsetCommitRequest, version: int, error: KafkaError
) -> TxnOffsetCommitResponse:
    """Return `error` for every partition."""
    code = client_error(error.code)
    if code is ErrorCode.NETWORK_EXCEPTION:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_KNOWN_SINCE:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=rows(
            lambda topic: TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
                    for item in topic.partitions
                ],
            ),
            request.topics,
        )
    )
