"""LeaderAndIsr 5-7, UpdateMetadata 7-8 and StopReplica 3-4: requests of the controller to the brokers of a cluster.

A Kafka 3.9 controller in ZooKeeper mode sends the last of these versions without asking for the supported ones.
"""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import KafkaError
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrResponseLeaderAndIsrPartitionError,
    LeaderAndIsrResponseLeaderAndIsrTopicError,
)
from odradek.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaResponseStopReplicaPartitionError,
)
from odradek.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from odradek.protocol.schema import rows
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.replicas.broker_control import BrokerControl
    from odradek.server.request import RequestContext


class BrokerControlServices(Protocol):
    """The part of a cluster member that executes requests of the controller."""

    @property
    def broker_control(self) -> "BrokerControl": ...


def leader_and_isr(
    services: BrokerControlServices, context: "RequestContext", request: LeaderAndIsrRequest
) -> "Deferred[LeaderAndIsrResponse]":
    """Take the assigned roles; answer when all of them are taken."""
    return carry_through(services.broker_control.leader_and_isr(request))


def leader_and_isr_error(request: LeaderAndIsrRequest, version: int, error: KafkaError) -> LeaderAndIsrResponse:
    """Return `error` for the whole request and for every partition."""
    return LeaderAndIsrResponse(
        error_code=error.code,
        topics=rows(
            lambda topic: LeaderAndIsrResponseLeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=rows(
                    lambda state: LeaderAndIsrResponseLeaderAndIsrPartitionError(
                        partition_index=state.partition_index, error_code=error.code
                    ),
                    topic.partition_states,
                ),
            ),
            request.topic_states,
        ),
    )


def update_metadata(
    services: BrokerControlServices, context: "RequestContext", request: UpdateMetadataRequest
) -> "Deferred[UpdateMetadataResponse]":
    """Update the metadata cache."""
    return carry_through(services.broker_control.update_metadata(request))


def update_metadata_error(request: UpdateMetadataRequest, version: int, error: KafkaError) -> UpdateMetadataResponse:
    """Return `error` for the whole request."""
    return UpdateMetadataResponse(error_code=error.code)


def stop_replica(
    services: BrokerControlServices, context: "RequestContext", request: StopReplicaRequest
) -> "Deferred[StopReplicaResponse]":
    """Stop or delete replicas; answer when that is done."""
    return carry_through(services.broker_control.stop_replica(request))


def stop_replica_error(request: StopReplicaRequest, version: int, error: KafkaError) -> StopReplicaResponse:
    """Return `error` for the whole request and for every partition."""
    partitions = [(topic.topic_name, state) for topic in request.topic_states for state in topic.partition_states]
    return StopReplicaResponse(
        error_code=error.code,
        partition_errors=rows(
            lambda named: StopReplicaResponseStopReplicaPartitionError(
                topic_name=named[0], partition_index=named[1].partition_index, error_code=error.code
            ),
            partitions,
        ),
    )
