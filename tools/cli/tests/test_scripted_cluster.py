"""Commands with a cluster whose responses are scripted."""

import json
from typing import Any

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResult,
)
from odradek.protocol.messages.describe_groups import DescribeGroupsResponse
from odradek.protocol.messages.find_coordinator import FindCoordinatorResponse
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from odradek.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.tools.cli import session
from odradek.tools.cli.main import main
from odradek.tools.kafka import cluster
from odradek.tools.kafka.connection.connection_errors import UnsupportedRequestError


class Client:
    """A connection to a broker of Kafka 3.0, which serves the first version of each request only."""

    def __init__(self, metadata):
        self.responses = {
            MetadataResponse: metadata,
            DescribeConfigsResponse: DescribeConfigsResponse(
                results=[
                    DescribeConfigsResponseDescribeConfigsResult(
                        error_code=0, error_message=None, resource_type=2, resource_name="t", configs=[]
                    )
                ]
            ),
            IncrementalAlterConfigsResponse: IncrementalAlterConfigsResponse(
                responses=[
                    IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                        error_code=0, error_message=None, resource_type=2, resource_name="t"
                    )
                ]
            ),
            CreatePartitionsResponse: CreatePartitionsResponse(
                results=[
                    CreatePartitionsResponseCreatePartitionsTopicResult(name="t", error_code=0, error_message=None)
                ]
            ),
            DescribeGroupsResponse: DescribeGroupsResponse(groups=[]),
            FindCoordinatorResponse: FindCoordinatorResponse(coordinators=[]),
        }
        self.sent = []

    def send(self, request, response_type, last_version=None):
        self.sent.append(type(request).__name__.removesuffix("Request"))
        return self.responses[response_type]

    def require_version(self, request_type, version, purpose):
        if version > request_type.first_version:
            raise UnsupportedRequestError(f"one:1 does not serve {request_type.__name__} for {purpose}")

    def close(self):
        pass


@pytest.fixture
def client(monkeypatch, tmp_path):
    partition = MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
    )
    topic = MetadataResponseTopic(error_code=0, name="t", partitions=[partition])
    nodes = [MetadataResponseBroker(node_id=1, host="one", port=1)]
    found = Client(MetadataResponse(brokers=nodes, controller_id=1, topics=[topic]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    connect: Any = lambda address, security: found  # noqa: E731
    monkeypatch.setattr(session, "Cluster", lambda connection: cluster.Cluster(connection, connect=connect))
    return found


def test_a_topic_that_this_client_must_not_see_is_no_missing_one(client, capsys):
    topics = client.responses[MetadataResponse].topics
    topics[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert main(["topic", "delete", "t", "--if-exists", "--yes"]) == 1
    assert capsys.readouterr().err == "odradek: topic t: TOPIC_AUTHORIZATION_FAILED\n"
    assert client.sent == ["Metadata"]


def test_a_change_of_configuration_and_partitions_is_one_document(client, capsys):
    assert main(["topic", "alter", "t", "--config", "retention.ms=1", "--partitions", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == [{"topic": "t", "error": None}]
    assert "IncrementalAlterConfigs" in client.sent and "CreatePartitions" in client.sent


def test_an_unclean_election_is_confirmed(client, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["partition", "elect", "t", "--election-type", "unclean"]) == 2
    assert "Repeat the command with --yes" in capsys.readouterr().err
    assert "ElectLeaders" not in client.sent


@pytest.mark.parametrize(
    ("arguments", "request_name"),
    [
        (["group", "list", "--type", "consumer"], "ListGroups"),
        (["transaction", "list", "--duration-filter", "60000"], "ListTransactions"),
        (["transaction", "list", "--transactional-id-pattern", "a"], "ListTransactions"),
        (["config", "list", "topic"], "ListConfigResources"),
    ],
)
def test_a_field_that_an_old_broker_does_not_have_is_not_omitted(client, capsys, arguments, request_name):
    assert main(arguments) == 1
    assert f"does not serve {request_name}Request" in capsys.readouterr().err
    assert request_name not in client.sent


def test_a_dry_run_that_an_old_broker_would_execute_is_refused(client, capsys, monkeypatch):
    row = ("metadata.version", 1, 2, 1)
    monkeypatch.setattr("odradek.tools.cli.cluster.features._fetch_rows", lambda session: [row])
    assert main(["cluster", "features", "upgrade", "--feature", "metadata.version=2", "--dry-run"]) == 1
    assert "for --dry-run" in capsys.readouterr().err
    assert "UpdateFeatures" not in client.sent


def test_control_characters_in_an_error_are_escaped(client, capsys):
    [topic] = client.responses[MetadataResponse].topics
    topic.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    topic.name = "t\x1b]0;x\x07"
    assert main(["topic", "describe", "t"]) == 1
    assert capsys.readouterr().err == "odradek: topic t\\x1b]0;x\\x07: INVALID_TOPIC_EXCEPTION\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["group", "list", "--state", "Stabel"], "there is no group state Stabel; did you mean Stable?"),
        (["group", "list", "--type", "x"], "there is no group type x; there are classic, consumer, share, streams"),
        (["transaction", "list", "--state", "Ongoin"], "there is no transaction state Ongoin; did you mean Ongoing?"),
        (
            ["acl", "create", "--topic", "t", "--allow-principal", "User:a", "--operation", "Raed"],
            "there is no operation Raed; did you mean Read?",
        ),
    ],
)
def test_an_unknown_value_has_the_nearest_ones(client, capsys, arguments, message):
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"odradek: {message}\n"
    assert client.sent == []
