"""InitProducerId 0-5 and DescribeProducers 0: producer ids and producer state (KIP-98, KIP-360, KIP-664, KIP-939).

An idempotent producer gets a new id from the broker, a transactional one its id from its transaction coordinator.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from odradek.coordinator.steps import Steps
from odradek.log.producers.table import RECORD
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartitionResponse,
    DescribeProducersResponseProducerState,
    DescribeProducersResponseTopicResponse,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.protocol.schema import rows
from odradek.replication.metadata.topic_names import check_topic_name
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.coordinator.transactions.producer_ids import ProducerIdManager
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.slices import Slices

NO_PRODUCER: Final = -1


class ProducerServices(Protocol):
    """The parts of a broker that InitProducerId and DescribeProducers need."""

    producer_ids: "ProducerIdManager"
    replicas: "ReplicaManager"
    slices: "Slices"

    @property
    def transactions(self) -> "TransactionCoordinatorRuntime": ...


def init_producer_id(
    services: ProducerServices, context: "RequestContext", request: InitProducerIdRequest
) -> "Reply[InitProducerIdResponse]":
    """Return a producer id and epoch.

    Without a transactional id they are a new id and epoch 0, whatever id the request contains. Raises KafkaError
    INVALID_REQUEST if only one of producer id and epoch is set.
    """
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == NO_PRODUCER):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        if services.producer_ids.is_empty and services.transactions.lacks_producer(request.transactional_id):
            # A shard cannot wait for the metadata store or the controller.
            return carry_through(services.producer_ids.prefetch()).addCallback(
                lambda _: _init_transactional(services, context, request)
            )
        return _init_transactional(services, context, request)
    return carry_through(services.producer_ids.next_id()).addCallback(
        lambda producer_id: InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    )


def _init_transactional(
    services: ProducerServices, context: "RequestContext", request: InitProducerIdRequest
) -> "Deferred[InitProducerIdResponse]":
    return services.transactions.run(
        request.transactional_id or "",
        lambda shard, token, now_ms: shard.init_producer_id(request, context, token, now_ms),
    )


def init_producer_id_error(
    request: InitProducerIdRequest, version: int, error: KafkaError
) -> InitProducerIdResponse:
    """Return `error` and no id."""
    return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER, producer_epoch=NO_PRODUCER)


def describe_producers(
    services: ProducerServices, context: "RequestContext", request: DescribeProducersRequest
) -> "Deferred[DescribeProducersResponse]":
    """Return the state of the active producers of each partition."""
    return services.slices.run(_describe_producers(services, request))


def _describe_producers(
    services: ProducerServices, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """Copy the packed producer state of one partition in each step; its rows are made when they are encoded."""
    response = DescribeProducersResponse(topics=[])
    described: dict[tuple[str, int], DescribeProducersResponsePartitionResponse] = {}
    for topic in request.topics:
        partitions: list[DescribeProducersResponsePartitionResponse] = []
        response.topics.append(DescribeProducersResponseTopicResponse(name=topic.name, partitions=partitions))
        for index in topic.partition_indexes:
            key = (topic.name, index)
            if key not in described:
                described[key] = _describe_partition(services, *key)
            partitions.append(described[key])
            yield
        yield
    return response


def describe_producers_error(
    request: DescribeProducersRequest, version: int, error: KafkaError
) -> DescribeProducersResponse:
    """Return `error` for every partition."""
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponseTopicResponse(
                name=topic.name, partitions=[_make_error_row(index, error) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe_partition(
    services: ProducerServices, topic: str, index: int
) -> DescribeProducersResponsePartitionResponse:
    try:
        check_topic_name(topic)
        log = services.replicas.get(topic, index).leading_log()
    except KafkaError as error:
        return _make_error_row(index, error)
    records = bytes(log.producer_state.producers.records)
    return DescribeProducersResponsePartitionResponse(
        partition_index=index,
        active_producers=rows(partial(_make_producer_row, records), range(len(records) // RECORD.size)),
    )


def _make_producer_row(records: bytes, position: int) -> DescribeProducersResponseProducerState:
    producer_id, epoch, last_sequence, _, _, last_timestamp, coordinator_epoch, transaction_start = (
        RECORD.unpack_from(records, position * RECORD.size)
    )
    return DescribeProducersResponseProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=last_sequence,
        last_timestamp=last_timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_start_offset=transaction_start,
    )


def _make_error_row(index: int, error: KafkaError) -> DescribeProducersResponsePartitionResponse:
    return DescribeProducersResponsePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )
