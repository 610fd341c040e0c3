"""ElectLeaders 0-2: elects preferred leaders (KIP-183), or leaders outside the ISR (KIP-460).

A request for all partitions gets no rows for those that need no election.
"""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)
from odradek.protocol.schema import rows
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.admin.elections import ElectionAdmin
    from odradek.server.request import RequestContext


class ElectionServices(Protocol):
    """The parts of a broker that ElectLeaders needs."""

    @property
    def election_admin(self) -> "ElectionAdmin": ...


def elect_leaders(
    services: ElectionServices, context: "RequestContext", request: ElectLeadersRequest
) -> "Deferred[ElectLeadersResponse]":
    """Elect leaders. Each partition has its own error."""
    return carry_through(services.election_admin.elect(request))


def elect_leaders_error(request: ElectLeadersRequest, version: int, error: KafkaError) -> ElectLeadersResponse:
    """Return `error` for the request and for every partition of it."""

    def make_partition(index: int) -> ElectLeadersResponsePartitionResult:
        return ElectLeadersResponsePartitionResult(
            partition_id=index, error_code=error.code, error_message=error.message
        )

    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=rows(
            lambda requested: ElectLeadersResponseReplicaElectionResult(
                topic=requested.topic, partition_result=rows(make_partition, requested.partitions)
            ),
            request.topic_partitions or [],
        ),
    )
