"""LeaderAndIsr, UpdateMetadata and StopReplica requests, built from metadata.

Versions are those that Kafka 3.9 sends without ApiVersions negotiation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrRequestLeaderAndIsrLiveLeader,
    LeaderAndIsrRequestLeaderAndIsrPartitionState,
    LeaderAndIsrRequestLeaderAndIsrTopicState,
)
from odradek.protocol.messages.stop_replica import (
    StopReplicaRequest,
    StopReplicaRequestStopReplicaPartitionState,
    StopReplicaRequestStopReplicaTopicState,
)
from odradek.protocol.messages.update_metadata import (
    UpdateMetadataRequest,
    UpdateMetadataRequestUpdateMetadataBroker,
    UpdateMetadataRequestUpdateMetadataEndpoint,
    UpdateMetadataRequestUpdateMetadataPartitionState,
    UpdateMetadataRequestUpdateMetadataTopicState,
)
from odradek.replication.metadata.image import (
    SECURITY_PROTOCOL_IDS,
    BrokerMetadata,
    PartitionMetadata,
    TopicMetadata,
    offline_replicas,
)

LEADER_AND_ISR_VERSION: Final = 7
UPDATE_METADATA_VERSION: Final = 8
STOP_REPLICA_VERSION: Final = 4

LEADER_DURING_DELETE: Final = -2
"""The leader of a deleted topic's partitions in UpdateMetadata."""

EPOCH_DURING_DELETE: Final = -2
"""The leader epoch in StopReplica for a topic that is deleted; brokers accept it whatever epoch they have."""

REQUEST_TYPE: Final = 0
"""The type of LeaderAndIsr and UpdateMetadata: a controller in ZooKeeper mode sends none (UNKNOWN)."""

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest


class ReplicaToStop(NamedTuple):
    """A replica that its broker stops. With `delete` the broker deletes its log, too.

    leader_epoch: brokers refuse an older one than they have, except EPOCH_DURING_DELETE and -1
    """

    topic: str
    partition: int
    leader_epoch: int
    delete: bool


class ControlBatch:
    """LeaderAndIsr per broker, and UpdateMetadata for a common set of brokers, of the same publication.

    partitions: number of partitions added, for splitting
    """

    def __init__(self) -> None:
        self.partitions = 0
        self._roles: dict[int, dict[str, LeaderAndIsrRequestLeaderAndIsrTopicState]] = {}
        self._leaders: dict[int, set[int]] = {}
        self._updates: dict[str, UpdateMetadataRequestUpdateMetadataTopicState] = {}

    def add_roles(
        self, topic: TopicMetadata, index: int, recipients: Iterable[int], new_on: Sequence[int] = ()
    ) -> None:
        """Add a partition to LeaderAndIsr of the recipients; the replicas `new_on` are new."""
        partition = topic.partitions[index]
        states: dict[bool, LeaderAndIsrRequestLeaderAndIsrPartitionState] = {}
        for broker_id in recipients:
            is_new = broker_id in new_on
            state = states.get(is_new)
            if state is None:
                state = states[is_new] = _make_role(index, partition, is_new)
            topics = self._roles.setdefault(broker_id, {})
            row = topics.get(topic.name)
            if row is None:
                row = topics[topic.name] = LeaderAndIsrRequestLeaderAndIsrTopicState(
                    topic_name=topic.name, topic_id=topic.topic_id, partition_states=[]
                )
            row.partition_states.append(state)
            self._leaders.setdefault(broker_id, set()).add(partition.leader)
        self.partitions += 1

    def add_update(self, topic: TopicMetadata, index: int, brokers: Mapping[int, BrokerMetadata]) -> None:
        """Add a partition to UpdateMetadata."""
        partition = topic.partitions[index]
        self._add_update(
            topic,
            UpdateMetadataRequestUpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=partition.controller_epoch,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                isr=list(partition.isr),
                zk_version=partition.partition_epoch,
                replicas=list(partition.replicas),
                offline_replicas=offline_replicas(partition, brokers),
            ),
        )

    def add_deletion(self, topic: TopicMetadata, index: int, brokers: Mapping[int, BrokerMetadata]) -> None:
        """Add a partition of a deleted topic to UpdateMetadata."""
        partition = topic.partitions[index]
        self._add_update(
            topic,
            UpdateMetadataRequestUpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=partition.controller_epoch,
                leader=LEADER_DURING_DELETE,
                leader_epoch=0,
                isr=list(partition.isr),
                zk_version=0,
                replicas=list(partition.replicas),
                offline_replicas=offline_replicas(partition, brokers),
            ),
        )

    def _add_update(self, topic: TopicMetadata, state: UpdateMetadataRequestUpdateMetadataPartitionState) -> None:
        row = self._updates.get(topic.name)
        if row is None:
            row = self._updates[topic.name] = UpdateMetadataRequestUpdateMetadataTopicState(
                topic_name=topic.name, topic_id=topic.topic_id, partition_states=[]
            )
        row.partition_states.append(state)
        self.partitions += 1

    def leader_and_isr(
        self, controller_id: int, controller_epoch: int, brokers: Mapping[int, BrokerMetadata], listener: str
    ) -> Iterator[tuple[int, LeaderAndIsrRequest]]:
        """Yield LeaderAndIsr for each live recipient. Leaders have the addresses of the inter-broker listener."""
        for broker_id, topics in self._roles.items():
            broker = brokers.get(broker_id)
            if broker is None:
                continue
            leaders = [brokers[leader] for leader in sorted(self._leaders[broker_id]) if leader in brokers]
            yield (
                broker_id,
                LeaderAndIsrRequest(
                    controller_id=controller_id,
                    is_kraft_controller=False,
                    controller_epoch=controller_epoch,
                    broker_epoch=broker.epoch,
                    type=REQUEST_TYPE,
                    topic_states=list(topics.values()),
                    live_leaders=[
                        LeaderAndIsrRequestLeaderAndIsrLiveLeader(
                            broker_id=leader.broker_id, host_name=endpoint.host, port=endpoint.port
                        )
                        for leader in leaders
                        if (endpoint := leader.endpoint(listener)) is not None
                    ],
                ),
            )

    def update_metadata(
        self,
        controller_id: int,
        controller_epoch: int,
        brokers: Mapping[int, BrokerMetadata],
        recipients: Iterable[int],
    ) -> Iterator[tuple[int, UpdateMetadataRequest]]:
        """Yield UpdateMetadata with all live brokers and the added partitions, which the requests share."""
        live = [_make_live_broker(broker) for broker in brokers.values()]
        topics = list(self._updates.values())
        for broker_id in recipients:
            broker = brokers.get(broker_id)
            if broker is not None:
                yield (
                    broker_id,
                    UpdateMetadataRequest(
                        controller_id=controller_id,
                        is_kraft_controller=False,
                        type=REQUEST_TYPE,
                        controller_epoch=controller_epoch,
                        broker_epoch=broker.epoch,
                        topic_states=topics,
                        live_brokers=live,
                    ),
                )


def make_stop_replica(
    controller_id: int, controller_epoch: int, broker_epoch: int, replicas: Iterable[ReplicaToStop]
) -> StopReplicaRequest:
    """Return StopReplica for distinct replicas."""
    topics: dict[str, StopReplicaRequestStopReplicaTopicState] = {}
    for replica in replicas:
        row = topics.get(replica.topic)
        if row is None:
            row = topics[replica.topic] = StopReplicaRequestStopReplicaTopicState(
                topic_name=replica.topic, partition_states=[]
            )
        row.partition_states.append(
            StopReplicaRequestStopReplicaPartitionState(
                partition_index=replica.partition, leader_epoch=replica.leader_epoch, delete_partition=replica.delete
            )
        )
    return StopReplicaRequest(
        controller_id=controller_id,
        is_kraft_controller=False,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=list(topics.values()),
    )


def _make_role(index: int, partition: PartitionMetadata, is_new: bool) -> LeaderAndIsrRequestLeaderAndIsrPartitionState:
    return LeaderAndIsrRequestLeaderAndIsrPartitionState(
        partition_index=index,
        controller_epoch=partition.controller_epoch,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        partition_epoch=partition.partition_epoch,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
        is_new=is_new,
        leader_recovery_state=partition.leader_recovery_state,
    )


def _make_live_broker(broker: BrokerMetadata) -> UpdateMetadataRequestUpdateMetadataBroker:
    return UpdateMetadataRequestUpdateMetadataBroker(
        id=broker.broker_id,
        endpoints=[
            UpdateMetadataRequestUpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=SECURITY_PROTOCOL_IDS[endpoint.security_protocol],
            )
            for endpoint in broker.endpoints
        ],
        rack=broker.rack,
    )
