"""Responses of the transaction APIs, by error and API version.

Clients before KIP-588 do not support PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH instead.
"""

from typing import Final

from odradek.coordinator.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponseAddPartitionsToTxnResult,
    AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult,
)
from odradek.protocol.messages.end_txn import EndTxnResponse
from odradek.protocol.messages.init_producer_id import InitProducerIdResponse

INIT_FENCED_SINCE: Final = 4
OTHERS_FENCED_SINCE: Final = 2


def _supported_error(error: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def init_producer_id_response(
    error: ErrorCode,
    api_version: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> InitProducerIdResponse:
    """Return the response to InitProducerId: an error, or a producer id and its epoch."""
    return InitProducerIdResponse(
        error_code=_supported_error(error, api_version, INIT_FENCED_SINCE),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def end_txn_response(
    error: ErrorCode,
    api_version: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> EndTxnResponse:
    """Return the response to EndTxn, from version 5 on with producer id and epoch for the next transaction."""
    return EndTxnResponse(
        error_code=_supported_error(error, api_version, OTHERS_FENCED_SINCE),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def add_offsets_response(error: ErrorCode, api_version: int) -> AddOffsetsToTxnResponse:
    """Return the response to AddOffsetsToTxn."""
    return AddOffsetsToTxnResponse(error_code=_supported_error(error, api_version, OTHERS_FENCED_SINCE))


def add_partitions_topics(
    topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic], error: ErrorCode, api_version: int
) -> list[AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult]:
    """Return the results of AddPartitionsToTxn with the same error for every partition."""
    code = _supported_error(error, api_version, OTHERS_FENCED_SINCE)
    return [
        AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=code
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def add_partitions_response(
    topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic], error: ErrorCode, api_version: int
) -> AddPartitionsToTxnResponse:
    """Return the response to AddPartitionsToTxn up to version 3."""
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=add_partitions_topics(topics, error, api_version))


def add_partitions_result(
    transactional_id: str,
    topics: list[AddPartitionsToTxnRequestAddPartitionsToTxnTopic],
    error: ErrorCode,
    api_version: int,
) -> AddPartitionsToTxnResponseAddPartitionsToTxnResult:
    """Return the result of one transaction in AddPartitionsToTxn from version 4 on."""
    return AddPartitionsToTxnResponseAddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=add_partitions_topics(topics, error, api_version)
    )


def verified_result(
    transactional_id: str, errors: dict[tuple[str, int], ErrorCode]
) -> AddPartitionsToTxnResponseAddPartitionsToTxnResult:
    """Return the result of one transaction in AddPartitionsToTxn with an error per partition."""
    by_topic: dict[str, AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult] = {}
    for (name, index), error in errors.items():
        topic = by_topic.get(name)
        if topic is None:
            topic = by_topic[name] = AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
                name=name, results_by_partition=[]
            )
        topic.results_by_partition.append(
            AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=error
            )
        )
    return AddPartitionsToTxnResponseAddPartitionsToTxnResult(
        transactional_id=transactional_id, topic_results=list(by_topic.values())
    )
