"""AlterPartitionReassignments 0-1, ListPartitionReassignments 0 (KIP-455, KIP-860)."""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponseReassignablePartitionResponse,
    AlterPartitionReassignmentsResponseReassignableTopicResponse,
)
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from odradek.protocol.schema import rows
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.reassignments import ReassignmentAdmin
    from odradek.server.request import RequestContext


class ReassignmentServices(Protocol):
    """The parts of a broker that requests about reassignments need."""

    @property
    def reassignment_admin(self) -> "ReassignmentAdmin": ...


def alter_partition_reassignments(
    services: ReassignmentServices, context: "RequestContext", request: AlterPartitionReassignmentsRequest
) -> "Deferred[AlterPartitionReassignmentsResponse]":
    """Begin, change or cancel reassignments. Each partition has its own error."""
    return carry_through(services.reassignment_admin.alter(request))


def alter_partition_reassignments_error(
    request: AlterPartitionReassignmentsRequest, version: int, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    """Return `error` for the request and for every partition of it."""

    def make_partition(
        partition: AlterPartitionReassignmentsRequestReassignablePartition,
    ) -> AlterPartitionReassignmentsResponseReassignablePartitionResponse:
        return AlterPartitionReassignmentsResponseReassignablePartitionResponse(
            partition_index=partition.partition_index, error_code=error.code, error_message=error.message
        )

    return AlterPartitionReassignmentsResponse(
        error_code=error.code,
        error_message=error.message,
        responses=rows(
            lambda topic: AlterPartitionReassignmentsResponseReassignableTopicResponse(
                name=topic.name, partitions=rows(make_partition, topic.partitions)
            ),
            request.topics,
        ),
    )


def list_partition_reassignments(
    services: ReassignmentServices, context: "RequestContext", request: ListPartitionReassignmentsRequest
) -> "Deferred[ListPartitionReassignmentsResponse]":
    """Return the reassignments in progress."""
    return carry_through(services.reassignment_admin.list(request))


def list_partition_reassignments_error(
    request: ListPartitionReassignmentsRequest, version: int, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    """Return `error` for the whole request."""
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
