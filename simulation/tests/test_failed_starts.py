"""Starts that fail, and starts with an older metadata store: the evidence of what happened before is kept."""

import pytest

from odradek.log.storage import checkpoints
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.simulation.tests.test_world import finish
from odradek.simulation.world import World


def start(world):
    world.broker.start()
    assert world.run(lambda: world.broker.is_up, 60), world.failures


def stop(world):
    world.broker.stop()
    assert world.run(lambda: not world.broker.is_alive, 60)


def restart(world):
    stop(world)
    start(world)


def started(**properties):
    world = World(1, {name.replace("_", "."): value for name, value in properties.items()}, looks_inside=False)
    start(world)
    return world


def ask(world, message, version):
    async def go():
        connection = await world.connect()
        response = await connection.request(message, version, client_id="test")
        connection.close()
        return response

    return finish(world, go())


def create(world, name, partition_count=1):
    topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=partition_count, replication_factor=1)
    response = ask(world, CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    assert response.topics[0].error_code == 0
    world.run(lambda: False, 5)  # threads have made the new directories durable


def produce(world, topic, *values, partition=0, **producer):
    batch = build_batch([(world.now_ms(), b"k", value, ()) for value in values], **producer)
    data = ProduceRequestPartitionProduceData(index=partition, records=batch)
    topic_data = ProduceRequestTopicProduceData(name=topic, partition_data=[data])
    response = ask(world, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic_data]), 9)
    row = response.responses[0].partition_responses[0]
    return row.error_code, row.base_offset


def end_of_epoch(world, topic, epoch, partition=0):
    asked = OffsetForLeaderEpochRequestOffsetForLeaderPartition(
        partition=partition, current_leader_epoch=-1, leader_epoch=epoch
    )
    topics = [OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=topic, partitions=[asked])]
    row = ask(world, OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions[0]
    return row.leader_epoch, row.end_offset


def lose_power_and_unsynced_data(world):
    world.disk._random = None
    world.broker.lose_power(lose_names=False)


def fail_start(world, *, at_transaction=0):
    """Start the broker; the start fails with a transaction of the store."""
    reasons = []
    world.on_start_failure = reasons.append
    world.metadata.fail(at_transaction, 1, after_commit=False)
    world.broker.start()
    assert world.run(lambda: not world.broker.is_alive, 60)
    assert len(reasons) == 1
    world.metadata.repair()


def clean_marks(world):
    world.disk.come_up()
    marks = [checkpoints.read_clean_shutdown(world.disk, path) for path in world.broker.directories]
    world.disk.come_down(is_power_loss=False)
    return marks


def test_a_failed_start_after_an_unclean_stop_leaves_it_to_the_next_one_to_begin_new_leader_epochs():
    world = started()
    create(world, "t")
    produce(world, "t", b"a")
    restart(world)
    assert produce(world, "t", b"b", b"c", b"d") == (0, 1)
    lose_power_and_unsynced_data(world)
    fail_start(world)
    start(world)
    assert produce(world, "t", b"B", b"C", b"D", b"E") == (0, 1)
    assert end_of_epoch(world, "t", 0) == (0, 1), "what was read behind it is not what is there now"
    stop(world)
    assert clean_marks(world) != [None]


@pytest.mark.parametrize("at_transaction", range(4))
def test_a_failed_adoption_after_an_unclean_stop_marks_no_directory_as_clean(at_transaction):
    world = started(log_dirs="/data1,/data2")
    create(world, "t", 2)
    restart(world)
    world.broker.kill()
    world.metadata.lose()
    world.broker.properties["log.dirs.adopt"] = "true"
    fail_start(world, at_transaction=at_transaction)
    assert clean_marks(world) == [None, None]


def test_a_failed_start_after_a_clean_stop_leaves_the_mark_as_it_was():
    world = started()
    create(world, "t")
    stop(world)
    marks = clean_marks(world)
    fail_start(world)
    assert clean_marks(world) == marks
    assert marks != [-1]


def new_producer_ids(world, count=1):
    async def go():
        connection = await world.connect()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        responses = [await connection.request(request, 4, client_id="test") for _ in range(count)]
        connection.close()
        assert {response.error_code for response in responses} == {0}
        return [response.producer_id for response in responses]

    return finish(world, go())


def die_while_starting(world, change):
    """Kill the process at a change of the disk or of the store during its start."""
    world.disk.crash_at(change)
    world.broker.start()
    assert world.run(lambda: not world.broker.is_alive, 60)
    world.disk.come_down(is_power_loss=False)


@pytest.mark.parametrize("how", ["at once", "after a failed start", "after a start that is killed"])
@pytest.mark.parametrize("end", [stop, lambda world: world.broker.kill()], ids=["stopped", "killed"])
def test_an_older_store_gives_no_producer_id_out_again(end, how):
    world = started()
    create(world, "t")
    new_producer_ids(world)
    stop(world)
    backup = world.metadata.copy()
    start(world)
    before = new_producer_ids(world)
    end(world)
    world.metadata.restore(backup)
    if how == "after a failed start":
        fail_start(world)
    elif how == "after a start that is killed":
        die_while_starting(world, 5)
    start(world)
    assert not set(before) & set(new_producer_ids(world, 3))


@pytest.mark.parametrize("end", [stop, lambda world: world.broker.kill()], ids=["stopped", "killed"])
def test_a_store_copied_since_the_last_start_gives_no_producer_id_out_again(end):
    world = started()
    create(world, "t")
    new_producer_ids(world)
    backup = world.metadata.copy()
    before = new_producer_ids(world, 1000)
    end(world)
    world.metadata.restore(backup)
    start(world)
    assert not set(before) & set(new_producer_ids(world, 3))
