"""ElectLeaders and reassignments on a lone broker: the same responses from Odradek and from Apache Kafka."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestListPartitionReassignmentsTopics,
)
from odradek.server.tests.wire import Wire, until

pytestmark = [pytest.mark.side_by_side, pytest.mark.timeout(120)]

NONE, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT = 0, 3, 7
INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST, ELECTION_NOT_NEEDED, NO_REASSIGNMENT = 39, 42, 84, 85
NOT_NEEDED = (ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def wire(broker: Any) -> Iterator[Wire]:
    with Wire(broker.port) as made:
        yield made


@pytest.fixture
def me(wire: Wire) -> int:
    """The id of the broker."""
    return wire.metadata().brokers[0].node_id


def elect(wire: Wire, rows: Any, version: int = 2, **fields: Any) -> tuple[int, list[Any]]:
    """Return the error of the request, and the results as (topic, partition, error, message)."""
    asked = None
    if rows is not None:
        asked = [ElectLeadersRequestTopicPartitions(topic=name, partitions=indexes) for name, indexes in rows]
    response = wire.ask(ElectLeadersRequest(topic_partitions=asked, **fields), version)
    return response.error_code, [
        (result.topic, row.partition_id, row.error_code, row.error_message)
        for result in response.replica_election_results
        for row in result.partition_result
    ]


@pytest.mark.parametrize(
    ("version", "kind"), [(0, PREFERRED), (1, PREFERRED), (1, UNCLEAN), (2, PREFERRED), (2, UNCLEAN)]
)
def test_elections(wire, topic, version, kind):
    rows = [(topic, [0, 7, -1, 0]), ("none", [0]), (topic, [])]
    assert elect(wire, rows, version, election_type=kind) == (
        NONE,
        [
            (topic, 0, *NOT_NEEDED),
            (topic, 7, UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-7"),
            (topic, -1, UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}--1"),
            (topic, 0, *NOT_NEEDED),
            ("none", 0, UNKNOWN_TOPIC_OR_PARTITION, "No such topic as none"),
        ],
    )
    assert elect(wire, None, version, election_type=kind) == (NONE, [])
    assert elect(wire, [], version, election_type=kind) == (NONE, [])


def test_invalid_elections(wire, topic):
    for kind in (2, -1):
        text = f"Unknown election type {kind}"
        assert elect(wire, [(topic, [0])], election_type=kind) == (INVALID_REQUEST, [(topic, 0, INVALID_REQUEST, text)])
        assert elect(wire, None, election_type=kind) == (INVALID_REQUEST, [])
    for timeout_ms in (0, -1):
        timed_out = (REQUEST_TIMED_OUT, [(topic, 0, REQUEST_TIMED_OUT, None)])
        assert elect(wire, [(topic, [0])], timeout_ms=timeout_ms) == timed_out


def alter(wire: Wire, name: str, rows: Any, version: int = 1, **fields: Any) -> tuple[Any, ...]:
    """Return the error and message of the request, and the results as (partition, error, message)."""
    partitions = [
        AlterPartitionReassignmentsRequestReassignablePartition(partition_index=index, replicas=replicas)
        for index, replicas in rows
    ]
    topics = [AlterPartitionReassignmentsRequestReassignableTopic(name=name, partitions=partitions)]
    response = wire.ask(AlterPartitionReassignmentsRequest(topics=topics, **fields), version)
    [result] = response.responses
    results = [(row.partition_index, row.error_code, row.error_message) for row in result.partitions]
    return response.error_code, response.error_message, results


@pytest.mark.parametrize("version", [0, 1])
def test_reassignments(wire, topic, me, version):
    manual = "The manual partition assignment includes"
    rows = [
        (0, [me], NONE, None),
        (0, None, NO_REASSIGNMENT, None),
        (9, [me], UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:9."),
        (-1, None, UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:-1."),
        (0, [], INVALID_REPLICA_ASSIGNMENT, f"{manual} an empty replica list."),
        (0, [99], INVALID_REPLICA_ASSIGNMENT, f"{manual} broker 99, but no such broker is registered."),
        (0, [me, 99], INVALID_REPLICA_ASSIGNMENT, f"{manual} broker 99, but no such broker is registered."),
        (0, [me, me], INVALID_REPLICA_ASSIGNMENT, f"{manual} the broker {me} more than once."),
        (0, [-1], INVALID_REPLICA_ASSIGNMENT, f"{manual} broker -1, but no such broker is registered."),
    ]
    expected = (NONE, None, [(index, code, message) for index, _, code, message in rows])
    assert alter(wire, topic, [(index, replicas) for index, replicas, _, _ in rows], version) == expected


def test_invalid_reassignments(wire, topic, me):
    missing = (0, UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named none.")
    assert alter(wire, "none", [(0, [me]), (0, None)]) == (NONE, None, [missing, missing])
    for timeout_ms in (0, -1):
        timed_out = (REQUEST_TIMED_OUT, None, [(0, REQUEST_TIMED_OUT, None)])
        assert alter(wire, topic, [(0, [me])], timeout_ms=timeout_ms) == timed_out
    one = [(0, [me]), (0, []), (0, [99])]
    codes = [code for _, code, _ in alter(wire, topic, one, allow_replication_factor_change=False)[2]]
    assert codes == [NONE, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICA_ASSIGNMENT]
    nothing = wire.ask(AlterPartitionReassignmentsRequest(topics=[]), 1)
    assert (nothing.error_code, nothing.error_message, nothing.responses) == (NONE, "", [])


def test_no_reassignments_are_in_progress(wire, topic):
    asked = [
        ListPartitionReassignmentsRequestListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 7, -1])
        for name in (topic, "none")
    ]
    for topics in (None, [], asked):
        response = wire.ask(ListPartitionReassignmentsRequest(topics=topics))
        assert (response.error_code, response.error_message, response.topics) == (NONE, None, [])


RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
BROKER_RESOURCE, DYNAMIC_BROKER, KIND_LONG, SET, DELETE = 4, 2, 5, 0, 1


def set_rate(wire: Wire, broker_id: int, name: str, value: str | None) -> int:
    entry = IncrementalAlterConfigsRequestAlterableConfig(
        name=name, config_operation=DELETE if value is None else SET, value=value
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configs=[entry]
    )
    [result] = wire.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    return result.error_code


def rates(wire: Wire, broker_id: int) -> list[tuple[Any, ...]]:
    resource = DescribeConfigsRequestDescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=None
    )
    [result] = wire.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True)).results
    return sorted(
        (
            row.name,
            row.value,
            row.read_only,
            row.config_source,
            row.is_sensitive,
            row.config_type,
            [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms],
        )
        for row in result.configs
        if row.name in RATES
    )


@pytest.mark.parametrize("name", RATES)
def test_throttled_rates(wire, me, name):
    assert rates(wire, me) == []
    assert [set_rate(wire, me, name, value) for value in ("-1", "abc", "1.5")] == [INVALID_REQUEST] * 3
    assert set_rate(wire, me, name, "1000") == NONE
    row = (name, "1000", False, DYNAMIC_BROKER, False, KIND_LONG, [(name, "1000", DYNAMIC_BROKER)])
    until(lambda: rates(wire, me) == [row])
    assert set_rate(wire, me, name, None) == NONE
    until(lambda: rates(wire, me) == [])


# Apache Kafka's tools and other clients


def test_the_tool_for_elections(broker, topic, tmp_path):
    server = ("--bootstrap-server", broker.bootstrap_servers)
    of_topic = ("--topic", topic, "--partition", "0")
    result = tools.run(tools.LEADER_ELECTION, *server, *of_topic, "--election-type", "preferred")
    assert f"Valid replica already elected for partitions {topic}-0" in result.stdout
    result = tools.run(tools.LEADER_ELECTION, *server, "--all-topic-partitions", "--election-type", "unclean")
    assert "Error" not in result.stdout
    chosen = tmp_path / "partitions.json"
    chosen.write_text(json.dumps({"partitions": [{"topic": "none", "partition": 0}]}))
    file = ("--path-to-json-file", str(chosen))
    result = tools.run(tools.LEADER_ELECTION, *server, *file, "--election-type", "preferred", check=False)
    assert result.returncode == 1
    assert "No such topic as none" in result.stdout + result.stderr


def test_the_tool_for_reassignments(broker, topic, me, tmp_path):
    server = ("--bootstrap-server", broker.bootstrap_servers)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [me]}]}))
    file = ("--reassignment-json-file", str(plan))
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generate = ("--topics-to-move-json-file", str(topics), "--broker-list", str(me), "--generate")
    generated = tools.run(tools.REASSIGN_PARTITIONS, *server, *generate).lines[-1]
    assert [row["replicas"] for row in json.loads(generated)["partitions"]] == [[me]]
    assert (
        "Successfully started partition reassignment"
        in tools.run(tools.REASSIGN_PARTITIONS, *server, *file, "--execute", "--throttle", "1000000").stdout
    )
    assert (
        f"Reassignment of partition {topic}-0 is completed."
        in tools.run(tools.REASSIGN_PARTITIONS, *server, *file, "--verify").stdout
    )
    assert "No partition reassignments found." in tools.run(tools.REASSIGN_PARTITIONS, *server, "--list").stdout


def test_confluent_kafka(broker, topic):
    from confluent_kafka import ElectionType, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    future = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0), TopicPartition("none", 0)])
    results = {partition.topic: error for partition, error in future.result(30).items()}
    codes = {name: None if error is None else error.code() for name, error in results.items()}
    assert codes == {topic: ELECTION_NOT_NEEDED, "none": UNKNOWN_TOPIC_OR_PARTITION}


def test_kafka_python(broker, topic, me):
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.errors import NoReassignmentInProgressError

    first = TopicPartition(topic, 0)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        [result] = admin.elect_leaders(0, {topic: [0]}).replica_election_results
        assert [row.error_code for row in result.partition_result] == [ELECTION_NOT_NEEDED]
        assert admin.alter_partition_reassignments({first: [me]}) == {first: None}
        assert admin.alter_partition_reassignments({first: None}) == {first: NoReassignmentInProgressError}
        assert admin.list_partition_reassignments() == {}
    finally:
        admin.close()
