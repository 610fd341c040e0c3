"""Adoption with a crash at each change of the disk or of the metadata store in turn."""

import pytest

from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch
from odradek.replication.metadata.kraft_metadata import DIRECTORY
from odradek.replication.tests import kraft
from odradek.simulation.tests.test_world import finish
from odradek.simulation.world import World

pytestmark = pytest.mark.slow

TOPICS = {"kept": 2, "other": 1, "__consumer_offsets": 2}
DAY_MS = 86_400_000
SUSPENDED = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
PROPERTIES = {
    "log.dirs": "/data1,/data2",
    "offsets.topic.num.partitions": "2",
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "100",
}


async def fill(world):
    connection = await world.connect()

    async def ask(message, version):
        return await connection.request(message, version, client_id="test")

    configs = [CreateTopicsRequestCreatableTopicConfig(name="retention.ms", value="-1")]
    topics = [
        CreateTopicsRequestCreatableTopic(name=name, num_partitions=count, replication_factor=1, configs=configs)
        for name, count in TOPICS.items()
    ]
    await ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7)
    batch = build_batch([(world.now_ms() - 30 * DAY_MS, b"k", b"v", ())])
    data = [ProduceRequestPartitionProduceData(index=index, records=batch) for index in range(2)]
    topic = ProduceRequestTopicProduceData(name="kept", partition_data=data)
    return await ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)


def with_topics_and_no_store(seed):
    """Return a world whose broker is stopped and without a store, with records that default retention would delete."""
    world = World(seed, PROPERTIES)
    world.broker.start()
    assert world.run(lambda: world.broker.is_up, 60)
    produced = finish(world, fill(world)).responses[0].partition_responses
    assert [row.error_code for row in produced] == [0, 0]
    topics = dict(world.broker.broker.services.metadata.topics_by_id)
    world.run(lambda: False, 5)  # threads have made the topic ids durable
    world.broker.stop()
    assert world.run(lambda: not world.broker.is_alive, 60)
    world.metadata.lose()
    return world, {topic.name: topic_id for topic_id, topic in topics.items()}


def directories(world):
    return sorted(name for path in ("/data1", "/data2") for name in world.broker.disk.list_names(path))


def put_kraft_metadata(world, ids):
    """Write the metadata of a Kafka broker that has two of the topics and has deleted the other."""
    records = [
        *kraft.topic("kept", ids["kept"], 2, leader_epoch=5),
        kraft.config(kraft.TOPIC, "kept", "retention.ms", "-1"),
        *kraft.topic("__consumer_offsets", ids["__consumer_offsets"], 2),
    ]
    world.broker.disk.is_down = False
    kraft.put_log(world.broker.disk, records, log_directory="/data2")
    world.broker.disk.sync_path(f"/data2/{DIRECTORY}/{0:020d}.log")
    for path in ("/data2", f"/data2/{DIRECTORY}"):
        world.broker.disk.sync_directory(path)
    world.broker.disk.is_down = True


def adopt_with_a_crash_at(change, *, is_power_loss, with_kraft):
    """Return whether the crash happened before the broker was up."""
    world, ids = with_topics_and_no_store(change)
    if with_kraft:
        put_kraft_metadata(world, ids)
    world.broker.properties["log.dirs.adopt"] = "true"
    ends = []

    def ended(how):
        ends.append(how)
        world.broker.disk.come_down(is_power_loss=is_power_loss, lose_names=is_power_loss)

    world.broker.on_end = ended
    world.broker.disk.crash_at(change)
    world.broker.start()
    world.run(lambda: world.broker.is_up or bool(ends) or bool(world.failures), 60)
    assert world.failures == []
    crashed = bool(ends)
    if crashed:
        world.broker.start()
        assert world.run(lambda: world.broker.is_up, 60), world.failures
    world.broker.disk.repair()
    world.run(lambda: False, 5)
    assert world.failures == []
    services = world.broker.broker.services
    expected = {name: ids[name] for name in TOPICS if name != "other" or not with_kraft}
    assert {name: topic.topic_id for name, topic in services.metadata.topics.items()} == expected
    assert {name: len(services.metadata.topics[name].partitions) for name in expected} == {
        name: TOPICS[name] for name in expected
    }
    configs = services.metadata.topic_configs
    assert configs["kept"] == ({"retention.ms": "-1"} if with_kraft else SUSPENDED)
    assert configs["__consumer_offsets"]["cleanup.policy"] == "compact"
    bounds = [(log.log_start_offset, log.log_end_offset) for log in services.logs.all_logs() if log.topic == "kept"]
    assert bounds == [(0, 1), (0, 1)]
    strays = [name for name in directories(world) if name.endswith("-stray")]
    assert [name.partition(".")[0] for name in strays] == (["other-0"] if with_kraft else [])
    # The adoption is complete: from now on unknown directories are not adopted.
    world.broker.stop()
    assert world.run(lambda: not world.broker.is_alive, 60)
    world.broker.on_end = lambda how: None
    world.broker.start()
    assert world.run(lambda: world.broker.is_up, 60)
    assert set(world.broker.broker.services.metadata.topics) == set(expected)
    return crashed


def every_crash(**options):
    change = 0
    while adopt_with_a_crash_at(change := change + 1, **options):
        assert change < 500
    return change


def test_a_process_that_dies_leaves_nothing_half_adopted():
    assert every_crash(is_power_loss=False, with_kraft=False) > 10
    assert every_crash(is_power_loss=False, with_kraft=True) > 10


def test_a_loss_of_power_leaves_nothing_half_adopted():
    assert every_crash(is_power_loss=True, with_kraft=False) > 10
    assert every_crash(is_power_loss=True, with_kraft=True) > 10
