"""AlterPartition 2-3, ControlledShutdown 3, AllocateProducerIds 0: requests of brokers to the controller of a cluster.

A broker that is not the controller answers NOT_CONTROLLER.
"""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from odradek.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.controller import Controller
    from odradek.server.request import RequestContext


class ControllerRequestServices(Protocol):
    """The parts of a broker that requests to the controller need."""

    controller: "Controller"


def alter_partition(
    services: ControllerRequestServices, context: "RequestContext", request: AlterPartitionRequest
) -> "Deferred[AlterPartitionResponse]":
    """Change the ISRs of partitions. Each partition has its own error."""
    return carry_through(services.controller.alter_partition(request))


def alter_partition_error(request: AlterPartitionRequest, version: int, error: KafkaError) -> AlterPartitionResponse:
    """Return `error` for the whole request."""
    return AlterPartitionResponse(error_code=error.code)


def controlled_shutdown(
    services: ControllerRequestServices, context: "RequestContext", request: ControlledShutdownRequest
) -> "Deferred[ControlledShutdownResponse]":
    """Move the leaderships of the broker to others."""
    return carry_through(services.controller.controlled_shutdown(request))


def controlled_shutdown_error(
    request: ControlledShutdownRequest, version: int, error: KafkaError
) -> ControlledShutdownResponse:
    """Return `error` for the whole request."""
    return ControlledShutdownResponse(error_code=error.code)


def allocate_producer_ids(
    services: ControllerRequestServices, context: "RequestContext", request: AllocateProducerIdsRequest
) -> "Deferred[AllocateProducerIdsResponse]":
    """Reserve a block of producer ids."""
    return carry_through(services.controller.allocate_producer_ids(request))


def allocate_producer_ids_error(
    request: AllocateProducerIdsRequest, version: int, error: KafkaError
) -> AllocateProducerIdsResponse:
    """Return `error` for the whole request."""
    return AllocateProducerIdsResponse(error_code=error.code)
