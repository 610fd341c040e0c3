"""`odradek topic`, compared with kafka-topics."""

import re

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.clients.common import wait_until

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]


def describe_by_tool(tool, name):
    """Return id, configs and rows of kafka-topics --describe."""
    first, *rows = tool(tools.TOPICS, "--describe", "--topic", name).lines
    found = re.match(
        r"Topic: (\S+)\s+TopicId: (\S+)\s+PartitionCount: (\d+)\s+ReplicationFactor: (\d+)\s+Configs: ?(.*)", first
    )
    fields = [
        re.search(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", row).groups() for row in rows
    ]
    assert found
    configs = dict(pair.split("=") for pair in found[5].split(",") if pair)
    return found[2], int(found[3]), int(found[4]), configs, [tuple(row) for row in fields]


def test_a_topic_is_created_described_altered_and_deleted(odradek, tool, unique):
    created = odradek("topic", "create", unique, "--partitions", "3", "--config", "retention.ms=123456")
    assert created.out == f"topic {unique} created with 3 partitions, 1 replica\n"
    odradek("topic", "alter", unique, "--partitions", "5", "--config", "max.message.bytes=77777")
    # A broker of a KRaft cluster applies a change a little later.
    wait_until(
        lambda: describe_by_tool(tool, unique)[1] == 5 and "max.message.bytes" in str(describe_by_tool(tool, unique))
    )

    [shown] = odradek("topic", "describe", unique, "--json").json
    topic_id, count, factor, configs, rows = describe_by_tool(tool, unique)
    configs.pop("segment.bytes", None)  # a value of server.properties of the tested broker
    assert (
        (shown["id"], shown["partition_count"], shown["replication_factor"])
        == (topic_id, count, factor)
        == (topic_id, 5, 1)
    )
    assert shown["configs"] == {"retention.ms": "123456", "max.message.bytes": "77777"}
    assert shown["configs"].items() <= configs.items()
    assert [
        (str(row["partition"]), str(row["leader"]), ",".join(map(str, row["replicas"])), ",".join(map(str, row["isr"])))
        for row in shown["partitions"]
    ] == rows

    text = odradek("topic", "describe", unique).out
    assert f"topic               {unique}\n" in text and "retention.ms=123456" in text
    assert re.search(r"^        4 +\d+ +\d+ +\d+ +-$", text, re.MULTILINE)

    refused = odradek("topic", "delete", unique, code=2)
    assert refused.err.endswith(
        f"Delete 1 topic ({unique}) with 5 partitions and all records? Repeat the command with --yes\n"
    )
    assert odradek("topic", "delete", unique, "--dry-run").out == f"topic {unique} would be deleted\n"
    assert unique in tool(tools.TOPICS, "--list").lines
    assert odradek("topic", "delete", unique, "--yes").out == f"topic {unique} deleted\n"
    wait_until(lambda: unique not in tool(tools.TOPICS, "--list").lines)


def test_the_list_is_that_of_kafka_topics(odradek, tool, unique, admin):
    admin.create_topic(unique, 2)
    names = tool(tools.TOPICS, "--list").lines
    listed = odradek("topic", "list", "--internal", "--json").json
    assert [row["topic"] for row in listed] == sorted(names)
    [mine] = [row for row in odradek("topic", "list", "--json").json if row["topic"] == unique]
    assert mine == {"topic": unique, "partitions": 2, "replication_factor": 1, "internal": False}
    assert re.search(rf"^{unique} +2 +1  no$", odradek("topic", "list").out, re.MULTILINE)


def test_several_topics_of_which_one_fails(odradek, topic, unique):
    done = odradek("topic", "create", f"{unique}-b", topic, "--json", code=1)
    first, second = sorted(done.json["results"], key=lambda row: row["topic"] == topic)
    assert (first["topic"], first["error"]) == (f"{unique}-b", None)
    assert second["error"]["code"] == "TOPIC_ALREADY_EXISTS"
    [error] = done.errors
    assert error["code"] == "TOPIC_ALREADY_EXISTS"
    assert error["message"].startswith(f"topic {topic}: TOPIC_ALREADY_EXISTS: ")
    assert odradek("topic", "create", topic, "--if-not-exists").out == f"topic {topic} created before\n"


def test_a_dry_run_changes_nothing(odradek, topic, unique):
    assert "would be created with 4 partitions" in odradek("topic", "create", f"{unique}-x", "-p", "4", "--dry-run").out
    odradek("topic", "describe", f"{unique}-x", code=1)
    done = odradek("topic", "alter", topic, "-p", "3", "--config", "retention.ms=5", "--dry-run")
    assert f"topic {topic} would be altered from 1 to 3 partitions" in done.out
    [shown] = odradek("topic", "describe", topic, "--json").json
    assert (shown["partition_count"], shown["configs"]) == (1, {})


def test_a_replica_assignment(odradek, broker, unique):
    [node] = (
        odradek("topic", "describe", "--json", unique, code=1).err
        and odradek("cluster", "describe", "--json").json["brokers"]
    )
    odradek("topic", "create", unique, "--replica-assignment", f"{node['broker']},{node['broker']}")
    [shown] = odradek("topic", "describe", unique, "--json").json
    assert [row["replicas"] for row in shown["partitions"]] == [[node["broker"]], [node["broker"]]]
    odradek("topic", "create", f"{unique}-x", "--replica-assignment", "1:x", code=2)
    odradek("topic", "create", f"{unique}-x", "--replica-assignment", "1", "-p", "1", code=2)


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_a_misspelt_topic(odradek, topic, command):
    wrong = topic.replace("a", "aa", 1)
    done = odradek("topic", command, wrong, code=1)
    assert (
        done.err == f"odradek: topic {wrong} does not exist; did you mean {topic}?\n"
        or f"did you mean {topic} or" in done.err
    )
    assert odradek("topic", "delete", wrong, "--if-exists", "--yes").out == ""


def test_refusals_of_the_broker(odradek, topic, unique):
    assert "INVALID_REPLICATION_FACTOR" in odradek("topic", "create", f"{unique}-x", "-r", "5", code=1).err
    assert "INVALID_TOPIC_EXCEPTION" in odradek("topic", "create", "a/b", code=1).err
    assert "INVALID_PARTITIONS" in odradek("topic", "alter", topic, "-p", "1", code=1).err
    assert "INVALID_CONFIG" in odradek("topic", "create", f"{unique}-x", "--config", "retention.ms=soon", code=1).err
    missing = odradek("topic", "alter", topic, "--config", "retention.mss=1", code=1)
    assert missing.err.startswith(
        f"odradek: topic {topic} has no configuration retention.mss; did you mean retention.ms"
    )


def test_a_configuration_that_topics_have_not(odradek, unique):
    refused = odradek("topic", "create", unique, "--config", "retenton.ms=1", code=1).err
    assert refused.startswith(f"odradek: topic {unique}: INVALID_CONFIG") and "did you mean retention.ms" in refused
