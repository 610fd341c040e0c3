"""Produce 3-13: appends one record batch to each partition named.

acks: 0 gets no response at all, and a failure closes the connection; 1 is answered once the leader has appended, -1
once all replicas in sync have (KIP-679 makes that the clients' default). Anything else is INVALID_REQUIRED_ACKS.
Topics go by id from version 13 on (KIP-516). From 8 on an error names the records that caused it (KIP-467), from 10 on
NOT_LEADER_OR_FOLLOWER says who leads (KIP-951). A batch that was appended before is answered with the offsets of
that time (KIP-98). A transaction's first batch on a partition is verified by the transaction's coordinator, or from 12
on adds the partition to it (KIP-890). Where flush.messages or flush.before.acks asks for it, the answer waits for the
disk. A batch that takes long to check is checked in steps between other requests; all that may change
meanwhile (leadership, properties, transaction, sequence) is looked at when it is appended.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted.internet.defer import Deferred

from odradek.log.log_append import AppendInfo
from odradek.log.record_check import RejectedRecordsError
from odradek.log.validation import CheckedRecords, LongValidation
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponseBatchIndexAndErrorMessage,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.protocol.streaming import Step
from odradek.server.purgatory import DelayedOperation
from odradek.server.request import NO_RESPONSE, CloseConnection
from odradek.server.waits import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Generator

    from odradek.log.partition_log import PartitionLog
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
_Unfinished = tuple["Partition", int, ProduceResponsePartitionProduceResponse]
_Appended = tuple["Partition", "PartitionLog", AppendInfo]
_EMPTY_RECORDS: Final = memoryview(b"")


class _Later(NamedTuple):
    """A batch that takes long to check, and the row of the response for its partition."""

    topic: ProduceRequestTopicProduceData
    data: ProduceRequestPartitionProduceData
    row: ProduceResponsePartitionProduceResponse
    validation: LongValidation


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
    acks = request.acks
    now_ms = services.now_ms()
    topics = []
    unfinished: list[_Unfinished] | None = None
    flushes: list[Deferred[Any]] | None = None
    later: list[_Later] | None = None
    failed = False
    for topic in request.topic_data:
        rows = []
        for data in topic.partition_data:
            try:
                partition, log, info = _append(services, context, request, topic, data, now_ms, verified)
            except KafkaError as error:
                failed = True
                rows.append(_failed_row(data.index, error))
                continue
            except LongValidation as validation:
                row = ProduceResponsePartitionProduceResponse(index=data.index)
                rows.append(row)
                later = later or []
                later.append(_Later(topic, data, row, validation))
                continue
            row = _row(data.index, info)
            rows.append(row)
            if acks == -1 and log.high_watermark <= info.last_offset:
                unfinished = unfinished or []
                unfinished.append((partition, info.last_offset + 1, row))
            if info.flush_due and partition.waits_for_sync(info, acks):
                flushes = flushes or []
                flushes.append(_flush(services, partition, row))
        topics.append(
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=rows)
        )
    response = ProduceResponse(responses=topics)
    if later is None:
        return _respond(services, context, request, response, failed, unfinished, flushes)
    waits = [
        services.record_work.run(_check_and_append(services, context, request, one, verified), ends_with_client=False)
        for one in later
    ]

    def all_appended(outcomes: list[_Appended | KafkaError]) -> Any:
        has_failed, not_replicated, not_synced = failed, unfinished or [], flushes or []
        for one, outcome in zip(later, outcomes, strict=True):
            row = one.row
            if isinstance(outcome, KafkaError):
                has_failed = True
                _fail_row(row, outcome)
                continue
            partition, log, info = outcome
            row.base_offset = info.first_offset
            row.log_append_time_ms, row.log_start_offset = info.log_append_time_ms, info.log_start_offset
            if acks == -1 and log.high_watermark <= info.last_offset:
                not_replicated.append((partition, info.last_offset + 1, row))
            if info.flush_due and partition.waits_for_sync(info, acks):
                not_synced.append(_flush(services, partition, row))
        return _respond(services, context, request, response, has_failed, not_replicated, not_synced)

    return wait_for_all(waits).addCallback(all_appended)


def _check_and_append(
    services: "Services",
    context: "RequestContext",
    request: ProduceRequest,
    one: _Later,
    verified: "Verified | None",
) -> "Generator[Step, None, _Appended | KafkaError]":
    """Check a large batch in steps, then append it if that may still be done."""
    from odradek.log.long_validation import check_in_steps

    validation = one.validation
    while True:
        try:
            checked = yield from check_in_steps(validation.batch, validation.config, services.now_ms())
            return _append(services, context, request, one.topic, one.data, services.now_ms(), verified, checked)
        except LongValidation as again:
            # The topic's properties have changed meanwhile, or it is another topic of that name.
            validation = again
        except KafkaError as error:
            return error


def _respond(
    services: "Services",
    context: "RequestContext",
    request: ProduceRequest,
    response: ProduceResponse,
    failed: bool,
    unfinished: list[_Unfinished] | None,
    flushes: "list[Deferred[Any]] | None",
) -> Any:
    """The response to what has been appended, or a Deferred of it."""
    if request.acks == 0:
        if failed:
            raise CloseConnection(f"a produce with acks=0 failed: {_first_error(response.responses)}")
        return NO_RESPONSE
    if failed and context.api_version >= 10:
        _name_leaders(services, context, response)
    if not flushes and not unfinished:
        return response
    return _when_done(services, request, response, unfinished or [], flushes or [])


def _append(
    services: "Services",
    context: "RequestContext",
    request: ProduceRequest,
    topic: ProduceRequestTopicProduceData,
    data: ProduceRequestPartitionProduceData,
    now_ms: int,
    verified: "Verified | None",
    checked: CheckedRecords | None = None,
) -> "_Appended":
    """Append one partition's batch. Raises KafkaError, LongValidation.

    The log is what it was then: whom the append wakes may find its disk broken.
    """
    partition = find_partition(services, topic, data.index, context.api_version)
    if request.acks not in _VALID_ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if partition.is_internal and context.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
    if verified is not None:
        error = verified.error(partition)
        if error is not None:
            raise error
    log: Any = partition.log
    info = partition.append_as_leader(
        data.records or _EMPTY_RECORDS,  # type: ignore[arg-type] # decoded: a view of the frame
        required_acks=request.acks,
        now_ms=now_ms,
        produce_version=context.api_version,
        is_verified=verified is not None and verified.may_append(partition),
        checked=checked,
    )
    return partition, log, info


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
        responses=[
            ProduceResponseTopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_failed_row(data.index, error) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


def _failed_row(index: int, error: KafkaError) -> ProduceResponsePartitionProduceResponse:
    row = ProduceResponsePartitionProduceResponse(index=index)
    _fail_row(row, error)
    return row


def _fail_row(row: ProduceResponsePartitionProduceResponse, error: KafkaError) -> None:
    row.error_code = error.code
    row.error_message = error.message
    row.base_offset = -1
    row.log_append_time_ms = row.log_start_offset = -1
    if isinstance(error, RejectedRecordsError):
        row.record_errors = [
            ProduceResponseBatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=message)
            for number, message in error.record_errors
        ]


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
