"""Metadata for all topics: encoded once for each state of the image, in slices, and always up to date."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from odradek.protocol import codec, encoder_source
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.replication.metadata.image import (
    BrokerMetadata,
    ClusterMetadata,
    Endpoint,
    PartitionMetadata,
    TopicMetadata,
)
from odradek.replication.tests.support import Cluster
from odradek.server.handlers.topics.metadata import metadata
from odradek.server.image_cache import MAX_VALUES, ImageCache
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

VERSION = 13


def make_services(image, slice_s=1.0):
    clock = Clock()
    slices = Slices(clock, clock.seconds, slice_s)
    services = SimpleNamespace(metadata=image, slices=slices, clock=clock, first_metadata=None)
    services.metadata_bodies = ImageCache(image, slices)
    return services


def ask(services, version=VERSION, listener="A", **flags):
    context = RequestContext("host", listener)
    context.api_version = version
    return metadata(services, context, MetadataRequest(topics=None, **flags))


def expected(image, version, listener, topic_operations):
    """The response that the protocol's documentation requires, without a cache."""
    reachable = {
        broker.broker_id: endpoint
        for broker in image.brokers.values()
        for endpoint in broker.endpoints
        if endpoint.listener == listener
    }

    def partition(index, found):
        error = ErrorCode.NONE
        if found.leader not in image.brokers:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif found.leader not in reachable:
            error = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=-1 if error else found.leader,
            leader_epoch=found.leader_epoch,
            replica_nodes=list(found.replicas),
            isr_nodes=list(found.isr),
            offline_replicas=[n for n in found.replicas if n not in image.brokers or n in found.offline],
        )

    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=number, host=endpoint.host, port=endpoint.port, rack=None)
            for number, endpoint in reachable.items()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=[
            MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.name.startswith("__"),
                partitions=[partition(index, found) for index, found in enumerate(topic.partitions)],
            )
            for topic in image.topics.values()
        ],
    )
    if topic_operations:
        for row in response.topics:
            row.topic_authorized_operations = 0b110111111000
    return codec.encode(response, version)


brokers = st.integers(0, 2)
endpoints = st.sets(st.sampled_from(["A", "B"])).map(
    lambda names: tuple(Endpoint(name, "PLAINTEXT", "host", 9092) for name in sorted(names))
)
partitions = st.builds(
    PartitionMetadata,
    leader=st.integers(-1, 2),
    leader_epoch=st.integers(0, 5),
    replicas=st.just((0, 1)),
    isr=st.sampled_from([(0,), (0, 1)]),
    offline=st.sampled_from([(), (0,)]),
)
names = st.sampled_from(["t", "u", "__consumer_offsets"])
topics = st.builds(
    TopicMetadata,
    name=names,
    topic_id=st.integers(1, 9).map(lambda number: bytes([number]) * 16),
    partitions=st.lists(partitions, max_size=3).map(tuple),
)
changes = st.one_of(
    st.tuples(st.just("put_topic"), topics),
    st.tuples(st.just("remove_topic"), names),
    st.tuples(st.just("put_broker"), st.builds(BrokerMetadata, brokers, endpoints, st.none(), st.just(1))),
    st.tuples(st.just("remove_broker"), brokers),
    st.tuples(st.just("put_controller"), brokers, st.integers(0, 5)),
    st.tuples(st.just("publish")),
)
questions = st.tuples(st.sampled_from([0, 4, 8, 13]), st.sampled_from(["A", "B"]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(changes, questions), max_size=30))
def test_a_cached_response_is_that_of_the_current_image(steps):
    image = ClusterMetadata("a-cluster")
    services = make_services(image)
    for step in steps:
        if isinstance(step[0], str):
            getattr(image, step[0])(*step[1:])
            continue
        version, listener, topic_operations = step
        topic_operations = topic_operations and version >= 8
        for _ in range(2):
            asked = ask(services, version, listener, include_topic_authorized_operations=topic_operations)
            assert asked.result.body == expected(image, version, listener, topic_operations)


def large_image():
    image = ClusterMetadata("a-cluster")
    image.put_broker(BrokerMetadata(0, (Endpoint("A", "PLAINTEXT", "host", 9092),)))
    found = tuple(PartitionMetadata(0, 0, (0,), (0,)) for _ in range(100))
    for number in range(20):
        image.put_topic(TopicMetadata(f"t{number}", bytes([number + 1]) * 16, found))
    image.publish()
    return image


def iterate(services):
    calls, services.clock.calls = services.clock.calls, []
    for call in calls:
        call.func(*call.args)


def finish(services):
    count = 0
    while services.clock.calls:
        iterate(services)
        count += 1
    return count


def test_a_large_response_is_encoded_in_slices_once_for_all_requests():
    image = large_image()
    services = make_services(image, slice_s=0)
    first, second, third = ask(services), ask(services), ask(services)
    first.addErrback(lambda failure: failure.trap(CancelledError))
    first.cancel()
    assert not second.called
    # The first slice ran with the first request.
    assert finish(services) + 1 >= 2000 / encoder_source.STEP_ELEMENTS
    assert second.result is third.result
    assert second.result.body == expected(image, VERSION, "A", False)
    # Later requests are answered at once.
    assert ask(services).result is second.result


def test_a_change_during_the_encoding_affects_later_requests_only():
    image = large_image()
    services = make_services(image, slice_s=0)
    before = expected(image, VERSION, "A", False)
    first = ask(services)
    iterate(services)
    image.remove_topic("t19")
    image.remove_broker(0)
    second = ask(services)
    finish(services)
    assert first.result.body == before
    assert second.result.body == expected(image, VERSION, "A", False) != before
    assert ask(services).result is second.result


def test_the_number_of_values_is_bounded():
    image = large_image()
    services = make_services(image)
    for version in range(VERSION + 1):
        assert ask(services, version).called
    assert len(services.metadata_bodies._values) == MAX_VALUES


def test_a_failure_is_not_cached():
    services = make_services(ClusterMetadata("a-cluster"))

    def failing():
        raise ValueError("broken")
        yield

    def working():
        return "made"
        yield

    failed = services.metadata_bodies.get("key", failing)
    with pytest.raises(ValueError, match="broken"):
        failed.result.raiseException()
    failed.addErrback(lambda _: None)
    assert services.metadata_bodies.get("key", working).result == "made"


def test_more_missing_topics_than_a_request_may_create_are_unknown():
    cluster = Cluster()
    services = make_services(cluster.image)
    services.config, services.auto_creation = SimpleNamespace(auto_create_topics_enable=True), cluster.topics
    context = RequestContext("host", "PLAINTEXT")
    context.api_version = VERSION
    names = ["not/legal", *(f"t{number}" for number in range(10_000))]
    topics = [MetadataRequestTopic(name=name) for name in names]
    reply = metadata(services, context, MetadataRequest(topics=topics, allow_auto_topic_creation=True))
    while not reply.called:
        services.clock.advance(1)
    assert isinstance(reply.result, MetadataResponse)
    codes = {topic.name: topic.error_code for topic in reply.result.topics}
    assert codes.pop("not/legal") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert set(codes.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert cluster.image.topics == {}
