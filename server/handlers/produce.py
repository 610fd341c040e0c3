"""Produce 3-13: appends one record batch to each partition named.

acks: 0 gets no response at all, and a failure closes the connection; 1 is answered once the leader has appended, -1
once all replicas in sync have (KIP-679 makes that the clients' default). Anything else is INVALID_REQUIRED_ACKS.
Topics go by id from version 13 on (KIP-516). From 8 on an error names the records that caused it (KIP-467), from 10 on
NOT_LEADER_OR_FOLLOWER says who leads (KIP-951). A batch that was appended before is answered with the offsets of
that time (KIP-98). A transaction's first batch on a partition is verified by the transaction's coordinator, or from 12
on adds the partition to it (KIP-890). Where flush.messages or flush.before.acks asks for it, the answer waits for the
disk.
"""

from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from odradek.log.log_append import AppendInfo
from odradek.log.validation import NotOneBatchError, RejectedRecordsError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponseBatchIndexAndErrorMessage,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.protocol.schema import rows
from odradek.server.purgatory import DelayedOperation
from odradek.server.request import NO_RESPONSE, CloseConnection
from odradek.server.waits import wait_for_all

if TYPE_CHECKING:
    from odradek.replication.partition import Partition
    from odradek.server.request import RequestContext
    from odradek.server.services import Services
    from odradek.server.transaction_verification import Verified

TOPIC_IDS_SINCE: Final = 13
ADMIN_CLIENT_ID: Final = "__admin_client"
"""The one client that may write to internal topics, as in Kafka."""

_ATTRIBUTES_AT: Final = 22
_MAGIC_AT: Final = 16
_TRANSACTIONAL: Final = 0x10
"""In the lower byte of a batch's attributes."""

_VALID_ACKS: Final = (-1, 1, 0)
_WITHOUT_LOG_START: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors of an append that Kafka answers without the log start."""

_Unfinished = tuple["Partition", int, ProduceResponsePartitionProduceResponse]
_EMPTY_RECORDS: Final = memoryview(b"")


def produce(services: "Services", context: "RequestContext", request: ProduceRequest) -> Any:
    """Append what each partition was sent; wait for replicas and for the disk where that was asked for."""
    if len(request.topic_data) > 1 or (request.topic_data and len(request.topic_data[0].partition_data) > 1):
        _drop_repeated(request, context.api_version)
    if request.transactional_id is None:
        if _is_transactional(request):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return _append_all(services, context, request, None)
    verified = services.verifier.before_produce(request, context.api_version)
    if isinstance(verified, Deferred):
        return verified.addCallback(lambda outcome: _append_all(services, context, request, outcome))
    return _append_all(services, context, request, verified)


def _append_all(
    services: "Services", context: "RequestContext", request: ProduceRequest, verified: "Verified | None"
) -> Any:
    version = context.api_version
    acks = request.acks
    now_ms = services.now_ms()
    topics = []
    unfinished: list[_Unfinished] | None = None
    flushes: list[Deferred[Any]] | None = None
    failed = False
    for topic in request.topic_data:
        answered = []
        for data in topic.partition_data:
            partition: Partition | None = None
            try:
                partition = _find_writable(services, context, request, topic, data.index, verified)
                # The log is what it was then: whom the append wakes may find its disk broken.
                log: Any = partition.log
                info = partition.append_as_leader(
                    data.records or _EMPTY_RECORDS,  # type: ignore[arg-type] # decoded: a view of the frame
                    required_acks=acks,
                    now_ms=now_ms,
                    produce_version=version,
                    is_verified=verified is not None and verified.may_append(partition),
                )
            except KafkaError as error:
                failed = True
                answered.append(_failed_row(data.index, error, partition))
                continue
            row = _row(data.index, info)
            answered.append(row)
            if acks == -1 and log.high_watermark <= info.last_offset:
                unfinished = unfinished or []
                unfinished.append((partition, info.last_offset + 1, row))
            if info.flush_due and partition.waits_for_sync(info, acks):
                flushes = flushes or []
                flushes.append(_flush(services, partition, row))
        topics.append(
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answered)
        )
    if acks == 0:
        if failed:
            raise CloseConnection(f"a produce with acks=0 failed: {_first_error(topics)}")
        return NO_RESPONSE
    response = ProduceResponse(responses=topics)
    if failed and version >= 10:
        _name_leaders(services, context, response)
    if flushes is None and unfinished is None:
        return response
    return _when_done(services, request, response, unfinished or [], flushes or [])


def _find_writable(
    services: "Services",
    context: "RequestContext",
    request: ProduceRequest,
    topic: ProduceRequestTopicProduceData,
    index: int,
    verified: "Verified | None",
) -> "Partition":
    """Return the partition to append to. Raises KafkaError if the request may not write to it."""
    partition = find_partition(services, topic, index, context.api_version)
    if request.acks not in _VALID_ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if partition.is_internal and context.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
    if verified is not None:
        error = verified.error(partition)
        if error is not None:
            raise error
    return partition


def _drop_repeated(request: ProduceRequest, version: int) -> None:
    """Of a partition that is named twice, the last word counts."""
    seen: set[tuple[str | bytes, int]] = set()
    is_repeated = False
    for topic in reversed(request.topic_data):
        name = topic.topic_id if version >= TOPIC_IDS_SINCE else topic.name
        for position in range(len(topic.partition_data) - 1, -1, -1):
            key = name, topic.partition_data[position].index
            if key in seen:
                is_repeated = True
                del topic.partition_data[position]
            seen.add(key)
    if is_repeated:
        request.topic_data = [topic for topic in request.topic_data if topic.partition_data]


def _is_transactional(request: ProduceRequest) -> bool:
    """Whether any batch says that it belongs to a transaction."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if is_transactional_batch(data.records):
                return True
    return False


def is_transactional_batch(records: Any) -> bool:
    """Whether a produced batch says that it belongs to a transaction."""
    return bool(
        records
        and len(records) > _ATTRIBUTES_AT
        and records[_MAGIC_AT] == 2
        and records[_ATTRIBUTES_AT] & _TRANSACTIONAL
    )


def find_partition(
    services: "Services", topic: ProduceRequestTopicProduceData, index: int, version: int
) -> "Partition":
    """The partition that a request means. Raises as `ReplicaManager.get` and `get_by_id`."""
    if version >= TOPIC_IDS_SINCE:
        return services.replicas.get_by_id(topic.topic_id, index)
    return services.replicas.get(topic.name, index)


def finish_one(
    services: "Services",
    partition: "Partition",
    topic: ProduceRequestTopicProduceData,
    request: ProduceRequest,
    info: AppendInfo,
) -> "Deferred[ProduceResponse]":
    """The response to a request for one partition whose batch is appended, but has to be waited for."""
    row = _row(partition.index, info)
    response = ProduceResponse(
        responses=[
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])
        ]
    )
    unfinished = [(partition, info.last_offset + 1, row)] if request.acks == -1 else []
    flushes = [_flush(services, partition, row)] if partition.waits_for_sync(info, request.acks) else []
    return _when_done(services, request, response, unfinished, flushes)


def failed_after_append(
    topic: ProduceRequestTopicProduceData, index: int, info: AppendInfo, error: KafkaError
) -> ProduceResponse:
    """The response to a request for one partition whose batch was appended, but not replicated or synced."""
    row = _row(index, info)
    _fail_row(row, error)
    return ProduceResponse(
        responses=[
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])
        ]
    )


def _row(index: int, info: AppendInfo) -> ProduceResponsePartitionProduceResponse:
    return ProduceResponsePartitionProduceResponse(
        index=index,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
    )


def produce_error(request: ProduceRequest, version: int, error: KafkaError) -> ProduceResponse | None:
    """The error at every partition; with acks=0 the connection is closed instead."""
    if request.acks == 0:
        return None
    return ProduceResponse(
        responses=rows(
            lambda topic: ProduceResponseTopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=rows(lambda data: _failed_row(data.index, error, None), topic.partition_data),
            ),
            request.topic_data,
        )
    )


def _failed_row(
    index: int, error: KafkaError, partition: "Partition | None"
) -> ProduceResponsePartitionProduceResponse:
    """The error of one partition; `partition` if it refused the batch itself, whose log start is in the row then."""
    row = ProduceResponsePartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    log = None if partition is None else partition.log
    if log is not None and error.code not in _WITHOUT_LOG_START and not isinstance(error, NotOneBatchError):
        row.log_start_offset = log.log_start_offset
    if isinstance(error, RejectedRecordsError):
        row.record_errors = [
            ProduceResponseBatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=message)
            for number, message in error.record_errors
        ]
    return row


def _first_error(topics: list[ProduceResponseTopicProduceResponse]) -> str:
    for topic in topics:
        for row in topic.partition_responses:
            if row.error_code:
                return f"{topic.name or topic.topic_id.hex()}-{row.index} {ErrorCode(row.error_code).name}"
    return "unknown"


def _name_leaders(services: "Services", context: "RequestContext", response: ProduceResponse) -> None:
    """Tell who leads the partitions that are not led here (KIP-951)."""
    nodes: dict[int, ProduceResponseNodeEndpoint] = {}
    for topic in response.responses:
        for row in topic.partition_responses:
            if row.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            leader = services.current_leader(topic.name, topic.topic_id, row.index, context.listener_name)
            if leader is None:
                continue
            row.current_leader = ProduceResponseLeaderIdAndEpoch(
                leader_id=leader.broker_id, leader_epoch=leader.leader_epoch
            )
            nodes[leader.broker_id] = ProduceResponseNodeEndpoint(
                node_id=leader.broker_id, host=leader.host, port=leader.port, rack=leader.rack
            )
    response.node_endpoints = list(nodes.values())


def _when_done(
    services: "Services",
    request: ProduceRequest,
    response: ProduceResponse,
    unfinished: list[_Unfinished],
    flushes: list["Deferred[Any]"],
) -> "Deferred[ProduceResponse]":
    """The response once every partition is replicated as far as asked, or failed, or time is up, and synced."""

    def settled() -> ProduceResponse | None:
        for entry in list(unfinished):
            partition, offset, row = entry
            try:
                if not partition.has_reached(offset):
                    continue
            except KafkaError as error:
                _fail_row(row, error)
            unfinished.remove(entry)
        return None if unfinished else response

    def timed_out() -> ProduceResponse:
        for _, _, row in unfinished:
            _fail_row(row, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        return response

    waits: list[Deferred[Any]] = list(flushes)
    if settled() is None:
        operation = DelayedOperation(settled, timed_out)
        waits.append(
            operation.wait(services.reactor, request.timeout_ms, dict.fromkeys(entry[0] for entry in unfinished))
        )
    return wait_for_all(waits).addCallback(lambda _: response)


def _flush(
    services: "Services", partition: "Partition", row: ProduceResponsePartitionProduceResponse
) -> "Deferred[None]":
    def synced(is_synced: bool) -> None:
        if not is_synced:
            _fail_row(row, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))

    return services.flusher.flush(partition).addCallback(synced)


def _fail_row(row: ProduceResponsePartitionProduceResponse, error: KafkaError) -> None:
    """The batch was appended: as in Kafka, the row has its offset although the request failed."""
    row.error_code = error.code
    row.error_message = error.message
