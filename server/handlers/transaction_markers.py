"""WriteTxnMarkers 1-2: the coordinator of transactions has their outcome written to partitions led here.

From version 2 on it says by which version of transactions the producer worked, and so which epochs may follow which
(KIP-1228).
"""

from typing import TYPE_CHECKING, Any

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseWritableTxnMarkerPartitionResult,
    WriteTxnMarkersResponseWritableTxnMarkerResult,
    WriteTxnMarkersResponseWritableTxnMarkerTopicResult,
)
from odradek.server.marker_sender import Marker, TopicPartition
from odradek.server.waits import Wait

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

Errors = dict[int, dict[TopicPartition, ErrorCode]]
"""By producer id and partition."""


def write_txn_markers(services: "Services", context: "RequestContext", request: WriteTxnMarkersRequest) -> Any:
    """Write each marker to each of its partitions, and answer when all of them are replicated or have failed.

    Raises KafkaError E-1, with nothing written, if one of them names no producer or no epoch: no batch can bear it.
    """
    errors: Errors = {}
    unfinished = 0
    finished: Wait[None] = Wait(lambda: f"{unfinished} markers to be written and replicated")

    def done(producer_id: int, name: TopicPartition, error: ErrorCode) -> None:
        nonlocal unfinished
        errors[producer_id][name] = error
        unfinished -= 1
        if not unfinished and not finished.called:
            finished.callback(None)

    work = []
    for entry in request.markers:
        marker = Marker(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.transaction_result,
            entry.transaction_version,
        )
        errors.setdefault(entry.producer_id, {})
        work += [(marker, (topic.name, index)) for topic in entry.topics for index in topic.partition_indexes]
    for marker, name in work:
        if min(marker.producer_id, marker.producer_epoch) < 0 and name in services.replicas.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a marker without a producer id or epoch")
    unfinished = len(work)
    for marker, name in work:
        if name in services.replicas.partitions:
            services.markers.write(
                name, marker, lambda error, marker=marker, name=name: done(marker.producer_id, name, error)  # type: ignore[misc]
            )
        else:
            done(marker.producer_id, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not unfinished:
        return _response(errors)
    return finished.addCallback(lambda _: _response(errors))


def _response(errors: Errors) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_result(producer_id, rows) for producer_id, rows in errors.items()])


def _result(
    producer_id: int, rows: dict[TopicPartition, ErrorCode]
) -> WriteTxnMarkersResponseWritableTxnMarkerResult:
    topics: dict[str, WriteTxnMarkersResponseWritableTxnMarkerTopicResult] = {}
    for (topic, index), error in rows.items():
        if topic not in topics:
            topics[topic] = WriteTxnMarkersResponseWritableTxnMarkerTopicResult(name=topic, partitions=[])
        topics[topic].partitions.append(
            WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
        )
    return WriteTxnMarkersResponseWritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))


def write_txn_markers_error(
    request: WriteTxnMarkersRequest, version: int, error: KafkaError
) -> WriteTxnMarkersResponse:
    """The error at every partition."""
    return _response(
        {
            entry.producer_id: {
                (topic.name, index): error.code for topic in entry.topics for index in topic.partition_indexes
            }
            for entry in request.markers
        }
    )
