"""WriteTxnMarkers 1-2: writes COMMIT and ABORT markers of a transaction coordinator to local partitions (KIP-98).

From version 2 on a marker contains the transaction version of the producer, which determines the valid epochs
(KIP-1228).
"""

from functools import partial
from typing import TYPE_CHECKING, Protocol

from odradek.coordinator.steps import Steps, pieces
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseWritableTxnMarkerPartitionResult,
    WriteTxnMarkersResponseWritableTxnMarkerResult,
    WriteTxnMarkersResponseWritableTxnMarkerTopicResult,
)
from odradek.server.coordinators.marker_sender import TopicPartition, TransactionMarker
from odradek.server.work.waits import Wait, carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinators.interfaces import MarkerWriter
    from odradek.server.request import RequestContext
    from odradek.server.work.clock import Clock
    from odradek.server.work.slices import Slices

Errors = dict[int, dict[TopicPartition, ErrorCode]]
"""By producer id and partition."""


class MarkerServices(Protocol):
    """The parts of a broker that WriteTxnMarkers needs."""

    config: "BrokerConfig"
    reactor: "Clock"
    replicas: "ReplicaManager"
    slices: "Slices"

    @property
    def markers(self) -> "MarkerWriter": ...


def write_txn_markers(
    services: MarkerServices, context: "RequestContext", request: WriteTxnMarkersRequest
) -> "Deferred[WriteTxnMarkersResponse]":
    """Write each marker to each of its partitions, and respond when all of them are replicated or have failed.

    A partition whose marker is not replicated within `request.timeout.ms` has REQUEST_TIMED_OUT, as in Kafka, and the
    coordinator sends the marker again. All markers are written even if the connection is lost, except those that the
    coordinator sends again meanwhile: after the repeated one a marker could end the producer's next transaction. Raises
    KafkaError UNKNOWN_SERVER_ERROR, with nothing written, if a marker has no producer id or no epoch.
    """
    return carry_through(_write_all(services, request))


async def _write_all(services: MarkerServices, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    requested = services.markers.requested
    last = requested.last
    # In the order of arrival: a request whose connection was lost must not seem to be later than its repetition. One
    # that waits begins in a later iteration: within the end of the one before, many would exceed the recursion limit.
    run = services.slices.run_later if requested.order.locked else services.slices.run
    work = await requested.order.run(run, _collect_markers(services, request))
    errors: Errors = {entry.producer_id: {} for entry in request.markers}
    for marker, name in work:
        errors[marker.producer_id][name] = ErrorCode.REQUEST_TIMED_OUT
    unfinished = len(work)
    finished: Wait[None] = Wait(lambda: f"{unfinished} markers to be written and replicated")

    def done(producer_id: int, name: TopicPartition, error: ErrorCode) -> None:
        nonlocal unfinished
        errors[producer_id][name] = error
        unfinished -= 1
        if not unfinished and not finished.called:
            finished.callback(None)

    def expire() -> None:
        finished.callback(None)

    def write() -> Steps[None]:
        for marker, name in work:
            key = (marker.producer_id, *name)
            if last.get(key) is not request:
                # Its coordinator has sent the marker again.
                done(marker.producer_id, name, ErrorCode.REQUEST_TIMED_OUT)
                yield
                continue
            del last[key]
            if name in services.replicas.partitions:
                services.markers.write(name, marker, partial(done, marker.producer_id, name))
            else:
                done(marker.producer_id, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield

    if work:
        await services.slices.run(write())
        if not finished.called:
            timer = services.reactor.callLater(services.config.request_timeout_ms / 1000, expire)
            await finished
            if timer.active():
                timer.cancel()
    return _make_response(errors)


def _collect_markers(
    services: MarkerServices, request: WriteTxnMarkersRequest
) -> Steps[list[tuple[TransactionMarker, TopicPartition]]]:
    """Return the markers, and register them when none of them is refused."""
    work: list[tuple[TransactionMarker, TopicPartition]] = []
    for entry in request.markers:
        marker = TransactionMarker(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.transaction_result,
            entry.transaction_version,
        )
        for topic in entry.topics:
            for indexes in pieces(topic.partition_indexes):
                names = [(topic.name, index) for index in indexes]
                is_bad = min(marker.producer_id, marker.producer_epoch) < 0
                if is_bad and any(name in services.replicas.partitions for name in names):
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"a marker needs a producer id and epoch, not {marker.producer_id} and {marker.producer_epoch}",
                    )
                work += [(marker, name) for name in names]
                yield
    for some in pieces(work):
        services.markers.requested.last.update({(marker.producer_id, *name): request for marker, name in some})
        yield
    return work


def _make_response(errors: Errors) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_make_result(producer_id, rows) for producer_id, rows in errors.items()])


def _make_result(
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
    """Return `error` for every partition."""
    return _make_response(
        {
            entry.producer_id: {
                (topic.name, index): error.code for topic in entry.topics for index in topic.partition_indexes
            }
            for entry in request.markers
        }
    )
