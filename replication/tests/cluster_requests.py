"""Requests to the controller of a `World`, and the state that they leave in the store."""



from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
)
from odradek.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from odradek.replication.controller.states.partition_states import new_partition
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata.image import TopicMetadata
from odradek.replication.metadata.loader import load_topic
from odradek.replication.metadata.store import run_now

E = ErrorCode


def topic_id(name):
    return name.encode().rjust(16, b"_")


def create(world, name, *replicas):
    controller = world.active.controller
    partitions = tuple(new_partition(row, controller.image.brokers, controller.epoch) for row in replicas)
    errors = world.run(
        controller.create_topics([NewTopic(TopicMetadata(name, topic_id(name), partitions), {})])
    )
    assert errors == {}


def states(world, name):
    topic = run_now(load_topic(world.server.connect(), name))
    return [(p.leader, p.leader_epoch, p.isr) for p in topic.partitions]


def nodes(world, path):
    return run_now(world.server.connect().get_children(path))


def delete(world, *names):
    return world.run(world.active.controller.delete_topics(names))


def alter(world, name, index, isr, *, leader=1, leader_epoch=0, partition_epoch=0, recovery=0, epoch=None, version=3,
          members=None):
    if epoch is None:
        epoch = world.fakes[leader].epoch
    epochs = members or dict.fromkeys(isr, -1)
    members = [AlterPartitionRequestBrokerState(broker_id=one, broker_epoch=epochs[one]) for one in isr]
    row = AlterPartitionRequestPartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        new_isr=isr if version < 3 else [],
        new_isr_with_epochs=members if version >= 3 else [],
        leader_recovery_state=recovery,
        partition_epoch=partition_epoch,
    )
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=epoch,
        topics=[AlterPartitionRequestTopicData(topic_id=topic_id(name), partitions=[row])],
    )
    return world.run(world.active.controller.alter_partition(request))


def alter_row(*arguments, **options):
    response = alter(*arguments, **options)
    assert response.error_code == 0
    [topic] = response.topics
    [row] = topic.partitions
    return row


def shut_down(world, broker_id, epoch=None):
    epoch = world.fakes[broker_id].epoch if epoch is None else epoch
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch)
    response = world.run(world.active.controller.controlled_shutdown(request))
    return response.error_code, [(row.topic_name, row.partition_index) for row in response.remaining_partitions]
