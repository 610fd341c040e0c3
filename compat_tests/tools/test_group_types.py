"""`odradek group` with share groups and streams groups, compared with Kafka's tools. Odradek serves neither."""

import re

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions, wait_until
from compat_tests.tools.eventually import eventually
from compat_tests.tools.streams_member import StreamsMember
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import parse_addresses

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")


@pytest.fixture(autouse=True)
def _has_group_types(backend):
    if backend == "odradek":
        pytest.skip("Odradek serves no groups of these types")


@pytest.fixture
def records(broker, admin, unique):
    """A topic with 5 records in partition 0."""
    admin.create_topic(unique, 2)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(unique, [Message(b"x", partition=0) for _ in range(5)])
    return unique


@pytest.fixture
def cluster(broker):
    with Cluster(Connection(parse_addresses(broker.bootstrap_servers), {})) as made:
        yield made


def start_offsets(odradek, group):
    [document] = odradek("group", "describe", group, "--json").json
    return [
        tuple("-" if row[key] is None else str(row[key]) for key in ("partition", "start_offset", "lag"))
        for row in document["offsets"]
    ]


def test_a_share_group(odradek, tool, broker, records, tmp_path):
    group = f"{records}-share"
    tool(tools.CONFIGS, "--alter", "--entity-type", "groups", "--entity-name", group,
         "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip
    consumer = tools.RunningTool(
        tmp_path / "consumer", tools.CONSOLE_SHARE_CONSUMER, "--bootstrap-server", broker.bootstrap_servers,
        "--topic", records, "--group", group,
    )  # fmt: skip
    with consumer:
        consumer.wait_for("x\nx\nx\nx\nx")
        [document] = odradek("group", "describe", group, "--json").json
        [member] = document["members"]
        assert (document["type"], document["state"]) == ("share", "Stable")
        assert member["partitions"] == [f"{records}:0", f"{records}:1"]
        shown = tool(tools.SHARE_GROUPS, "--describe", "--group", group, "--members").stdout
        assert member["member"] in shown and member["client"] in shown
        busy = odradek("group", "delete", group, "--yes", code=1).err
        assert busy == f"odradek: group {group}: NON_EMPTY_GROUP\n"
        consumer.terminate()
    wait_until(lambda: not odradek("group", "describe", group, "--json").json[0]["members"])

    def compare_offsets():
        shown = tool(tools.SHARE_GROUPS, "--describe", "--group", group).stdout
        by_tool = re.findall(rf"^{group} +{records} +(\d+) +(\d+|-) +(\d+|-) *$", shown, re.MULTILINE)
        found = start_offsets(odradek, group)
        assert sorted(by_tool) == found and [row[0] for row in found] == ["0", "1"] and found[0][2] == "0", shown

    eventually(compare_offsets)
    [row] = odradek("group", "lag", group, "--json").json
    assert row == {"group": group, "state": "Empty", "members": 0, "topic": records, "partitions": 2, "lag": 0}
    refused = (
        f"odradek: group {group} is a share group, which has no committed offsets; kafka-share-groups.sh changes its "
        "start offsets\n"
    )
    for arguments in (["reset", group, "--topic", records, "--to-latest"], ["delete-offsets", group, records]):
        assert odradek("group", *arguments, "--dry-run", code=1).err == refused
        assert odradek("group", *arguments, "--yes", code=1).err == refused
    assert odradek("group", "delete", group, "--yes").out == f"group {group} deleted\n"
    assert group not in tool(tools.SHARE_GROUPS, "--list").lines


def test_a_streams_group(odradek, tool, cluster, records):
    group = f"{records}-streams"
    member = StreamsMember(cluster, group, [records])
    wait_until(member.heartbeat)
    [document] = odradek("group", "describe", group, "--json").json
    # Nothing is committed yet, so that the lag is unknown.
    assert (document["type"], document["state"], document["lag"]) == ("streams", "Stable", None)
    [shown_member] = document["members"]
    assert shown_member["partitions"] == [f"{records}:0", f"{records}:1"]
    shown = tool(tools.STREAMS_GROUPS, "--describe", "--group", group, "--members").stdout
    assert shown_member["member"] in shown
    shown = tool(tools.STREAMS_GROUPS, "--describe", "--offsets", "--verbose", "--group", group).stdout
    by_tool = re.findall(rf"^{group} +{records} +(\d+) +- +- +(\d+) +\d+ *$", shown, re.MULTILINE)
    own = [(str(row["partition"]), str(row["end_offset"])) for row in document["offsets"]]
    assert sorted(by_tool) == own == [("0", "5"), ("1", "0")]
    reset = ["group", "reset", group, "--topic", records, "--to-offset", "2"]
    busy = f"odradek: group {group} has 1 member; stop it before a reset\n"
    assert odradek(*reset, "--yes", code=1).err == odradek(*reset, "--dry-run", code=1).err == busy
    member.leave()
    odradek(*reset, "--yes")
    [document] = odradek("group", "describe", group, "--json").json
    assert document["state"] == "Empty"
    assert [(row["partition"], row["committed"], row["lag"]) for row in document["offsets"]] == [(0, 2, 3), (1, 0, 0)]
    assert odradek("group", "delete", group, "--yes").out == f"group {group} deleted\n"
    assert group not in tool(tools.STREAMS_GROUPS, "--list").lines
