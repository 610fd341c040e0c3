"""Administration through each client library, with the expected errors."""

import time
from typing import Any

import pytest

from compat_tests.clients.common import (
    ClientError,
    Code,
    ConsumerOptions,
    Message,
    ProducerOptions,
    commit_in_group,
    read,
    wait_until,
)


@pytest.fixture
def own_admin(broker: Any, client: Any) -> Any:
    """The admin client of the tested library."""
    with client.Admin(broker.bootstrap_servers) as made:
        yield made


def expect(code: Code, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(ClientError) as refused:
        call(*arguments, **options)
    assert refused.value.code == code, refused.value


def produce(client: Any, broker: Any, topic: str, count: int) -> None:
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(topic, [Message(b"%d" % n) for n in range(count)])


@pytest.mark.side_by_side
def test_topics_are_created_described_and_deleted(own_admin, unique):
    own_admin.create_topic(unique, 3, configs={"retention.ms": "123456"})
    wait_until(lambda: unique in own_admin.topics())
    assert own_admin.partition_count(unique) == 3
    configs = own_admin.describe_configs(unique)
    assert configs["retention.ms"] == ("123456", False)
    assert configs["cleanup.policy"] == ("delete", True)
    own_admin.delete_topic(unique)
    wait_until(lambda: unique not in own_admin.topics())
    # The name can be used again, and the new topic is empty.
    own_admin.create_topic(unique, 1)
    wait_until(lambda: unique in own_admin.topics())
    wait_until(lambda: partition_count(own_admin, unique) == 1)


def partition_count(admin, topic):
    """Return None while the broker has no metadata of the topic, which may be for some time after its creation."""
    try:
        return admin.partition_count(topic)
    except ClientError as error:
        assert error.code == Code.UNKNOWN_TOPIC_OR_PARTITION
        return None


@pytest.mark.side_by_side
def test_errors_on_creating_topics(own_admin, unique):
    own_admin.create_topic(unique)
    expect(Code.TOPIC_ALREADY_EXISTS, own_admin.create_topic, unique)
    expect(Code.INVALID_TOPIC_EXCEPTION, own_admin.create_topic, "no/slash")
    expect(Code.INVALID_TOPIC_EXCEPTION, own_admin.create_topic, "x" * 250)
    expect(Code.INVALID_PARTITIONS, own_admin.create_topic, f"{unique}-p", 0)
    expect(Code.INVALID_REPLICATION_FACTOR, own_admin.create_topic, f"{unique}-r", replication_factor=3)
    expect(Code.INVALID_CONFIG, own_admin.create_topic, f"{unique}-c", configs={"retention.ms": "soon"})
    expect(Code.INVALID_CONFIG, own_admin.create_topic, f"{unique}-c", configs={"no.such.thing": "1"})
    own_admin.create_topic(f"{unique}-dry", validate_only=True)
    assert f"{unique}-dry" not in own_admin.topics()
    expect(Code.UNKNOWN_TOPIC_OR_PARTITION, own_admin.delete_topic, f"{unique}-missing")


@pytest.mark.side_by_side
def test_names_that_differ_in_dot_and_underscore_collide(own_admin, unique):
    own_admin.create_topic(f"{unique}.a")
    expect(Code.INVALID_TOPIC_EXCEPTION, own_admin.create_topic, f"{unique}_a")


@pytest.mark.side_by_side
def test_partitions_are_added(broker, client, own_admin, unique):
    own_admin.create_topic(unique, 2)
    own_admin.create_partitions(unique, 4)
    wait_until(lambda: own_admin.partition_count(unique) == 4)
    expect(Code.INVALID_PARTITIONS, own_admin.create_partitions, unique, 4)
    expect(Code.INVALID_PARTITIONS, own_admin.create_partitions, unique, 3)
    expect(Code.UNKNOWN_TOPIC_OR_PARTITION, own_admin.create_partitions, f"{unique}-missing", 3)
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        assert [s[0] for s in producer.produce(unique, [Message(b"x", partition=p) for p in range(4)])] == [
            0,
            1,
            2,
            3,
        ]


@pytest.mark.side_by_side
def test_topic_configs_take_effect_at_once(broker, client, own_admin, unique):
    own_admin.create_topic(unique)
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(unique, [Message(b"x" * 3000)])
        own_admin.set_config(unique, "max.message.bytes", "1000")
        wait_until(lambda: own_admin.describe_configs(unique)["max.message.bytes"] == ("1000", False))
        expect(Code.MESSAGE_TOO_LARGE, producer.produce, unique, [Message(b"x" * 3000)])
    expect(Code.INVALID_CONFIG, own_admin.set_config, unique, "max.message.bytes", "many")


@pytest.mark.side_by_side
@pytest.mark.needs("incremental_configs")
def test_incremental_config_changes(own_admin, unique):
    own_admin.create_topic(unique, configs={"retention.ms": "5000", "cleanup.policy": "delete"})

    def now(name: str) -> tuple[str | None, bool]:
        return tuple(own_admin.describe_configs(unique)[name])

    own_admin.alter_config(unique, "cleanup.policy", "APPEND", "compact")
    wait_until(lambda: now("cleanup.policy") == ("delete,compact", False))
    own_admin.alter_config(unique, "cleanup.policy", "SUBTRACT", "delete")
    wait_until(lambda: now("cleanup.policy") == ("compact", False))
    own_admin.alter_config(unique, "cleanup.policy", "DELETE", None)
    wait_until(lambda: now("cleanup.policy") == ("delete", True))
    assert now("retention.ms") == ("5000", False)
    expect(Code.INVALID_CONFIG, own_admin.alter_config, unique, "retention.ms", "APPEND", "1")


@pytest.mark.side_by_side
def test_records_are_deleted_below_an_offset(broker, client, own_admin, unique):
    own_admin.create_topic(unique)
    produce(client, broker, unique, 20)
    assert own_admin.delete_records((unique, 0), 8) == 8
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(unique, 0)])
        assert [r.offset for r in read(consumer, 12)] == list(range(8, 20))
        assert consumer.bounds((unique, 0)) == (8, 20)
    # aiokafka's exception has no error code.
    with pytest.raises(ClientError) as refused:
        own_admin.delete_records((unique, 0), 21)
    assert refused.value.code in (Code.OFFSET_OUT_OF_RANGE, -1)
    assert own_admin.delete_records((unique, 0), -1) == 20


@pytest.mark.side_by_side
@pytest.mark.needs("list_offsets")
def test_offsets_are_listed(broker, client, own_admin, unique):
    own_admin.create_topic(unique)
    with client.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        stamps = [int(time.time() * 1000) + n for n in (5, 9, 7)]
        for stamp in stamps:
            producer.produce(unique, [Message(b"x", timestamp_ms=stamp)])
    listed = [own_admin.list_offset((unique, 0), which) for which in ("earliest", "latest", "max_timestamp")]
    assert listed == [0, 3, 1]
    with pytest.raises(ClientError):
        own_admin.list_offset((unique, 7), "latest")


@pytest.mark.side_by_side
def test_groups_are_listed_and_described(broker, client, own_admin, unique):
    own_admin.create_topic(unique, 2)
    produce(client, broker, unique, 4)
    options = ConsumerOptions(group=unique, client_id="described")
    with client.Consumer(broker.bootstrap_servers, options) as consumer:
        consumer.subscribe([unique], None)
        read(consumer, 4)
        commit_in_group(consumer, {(unique, 0): (3, "three")})
        assert unique in own_admin.groups()
        group = own_admin.describe_group(unique)
        assert (group.state, group.protocol, [m.client_id for m in group.members]) == (
            "Stable",
            "range",
            ["described"],
        )
        assert own_admin.group_offsets(unique)[(unique, 0)] == 3
    wait_until(lambda: own_admin.describe_group(unique).state == "Empty")
    assert own_admin.describe_group(unique).members == ()


@pytest.mark.side_by_side
@pytest.mark.needs("delete_groups")
def test_groups_are_deleted_when_empty(broker, client, own_admin, unique):
    own_admin.create_topic(unique, 1)
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions(group=unique)) as consumer:
        consumer.subscribe([unique], None)
        consumer.poll(0.5)
        wait_until(lambda: (consumer.poll(0.1), own_admin.describe_group(unique).state == "Stable")[1])
        commit_in_group(consumer, {(unique, 0): (0, "")})
        expect(Code.NON_EMPTY_GROUP, own_admin.delete_group, unique)
    wait_until(lambda: own_admin.describe_group(unique).state == "Empty")
    own_admin.delete_group(unique)
    assert unique not in own_admin.groups()
    expect(Code.GROUP_ID_NOT_FOUND, own_admin.delete_group, unique)


@pytest.mark.side_by_side
@pytest.mark.needs("delete_offsets")
def test_single_committed_offsets_are_deleted(broker, client, own_admin, unique):
    own_admin.create_topic(unique, 2)
    with client.Consumer(broker.bootstrap_servers, ConsumerOptions(group=unique)) as consumer:
        consumer.assign([(unique, 0), (unique, 1)])
        consumer.commit({(unique, 0): (0, ""), (unique, 1): (0, "")})
    own_admin.delete_group_offsets(unique, (unique, 0))
    assert set(own_admin.group_offsets(unique)) == {(unique, 1)}
    expect(Code.GROUP_ID_NOT_FOUND, own_admin.delete_group_offsets, f"{unique}-missing", (unique, 0))


@pytest.mark.side_by_side
def test_the_cluster_is_described(broker, own_admin):
    cluster = own_admin.describe_cluster()
    assert len(cluster.brokers) == 1
    node, _, port = cluster.brokers[0]
    assert port == broker.port
    assert cluster.controller_id in (node, None)
    assert cluster.cluster_id is None or len(cluster.cluster_id) == 22
