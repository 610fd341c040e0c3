"""A broker in the simulated world."""

from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch, iter_batches, iter_records
from odradek.server.tests.wire import Wire
from odradek.simulation.world import World


def started(seed, **options):
    world = World(seed, **options)
    world.broker.start()
    assert world.run(lambda: world.broker.is_up, 60)
    return world


def finish(world, coroutine):
    results = []
    world.start(coroutine, "test").addCallback(results.append)
    assert world.run(lambda: bool(results), 60)
    assert world.failures == []
    return results[0]


async def produce_and_fetch(world):
    connection = await world.connect()
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    versions = await connection.request(asked, 3, client_id="test")
    topic = CreateTopicsRequestCreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, client_id="test")
    topics = [MetadataRequestTopic(name="t")]
    metadata = await connection.request(MetadataRequest(topics=topics), 9, client_id="test")
    batch = build_batch((world.now_ms(), b"k", b"v%d" % number, ()) for number in range(10))
    data = ProduceRequestPartitionProduceData(index=0, records=batch)
    topic_data = ProduceRequestTopicProduceData(name="t", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic_data])
    produced = [await connection.request(request, 9, client_id="test") for _ in range(3)]
    fetched = await connection.request(Wire.fetch_request("t", 0), 11, client_id="test")
    connection.close()
    return versions, metadata, produced, fetched


def test_it_serves_requests():
    world = started(1)
    versions, metadata, produced, fetched = finish(world, produce_and_fetch(world))
    assert versions.error_code == 0
    assert metadata.topics[0].name == "t"
    assert [one.responses[0].partition_responses[0].base_offset for one in produced] == [0, 10, 20]
    records = fetched.responses[0].partitions[0].records
    values = [bytes(record.value or b"") for batch in iter_batches(records) for record in iter_records(batch)]
    assert values == [b"v%d" % number for number in range(10)] * 3
