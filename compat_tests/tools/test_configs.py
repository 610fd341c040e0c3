"""`odradek config`, compared with kafka-configs."""

import re

import pytest

from compat_tests.apache_kafka import tools

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]


def describe_by_tool(tool, kind, name, *options):
    """Return value and sensitivity of the configurations that kafka-configs shows."""
    entity = ["--entity-default"] if name == "default" else ["--entity-name", name]
    shown = tool(tools.CONFIGS, "--describe", "--entity-type", kind, *entity, *options).stdout
    return dict(re.findall(r"^  ([^=\s]+)=(.*?) sensitive=", shown, re.MULTILINE))


def describe(odradek, kind, name, *options):
    [document] = odradek("config", "describe", kind, name, "--json", *options).json
    return {row["name"]: row for row in document["configs"]}


def test_configurations_of_a_topic(odradek, tool, topic):
    done = odradek(
        "config", "alter", "topic", topic, "--set", "cleanup.policy=compact,delete", "--set", "retention.ms=777"
    )
    assert re.search(rf"^{topic} +retention.ms +604800000 +777$", done.out, re.MULTILINE)
    assert done.out.endswith(f"topic {topic} altered\n")
    changed = describe(odradek, "topic", topic)
    assert {name: row["value"] for name, row in changed.items()} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "777",
    }
    assert (changed["cleanup.policy"]["source"], changed["cleanup.policy"]["default"]) == ("topic", "delete")
    everything = describe(odradek, "topic", topic, "--all")
    assert {name: row["value"] or "" for name, row in everything.items()} == describe_by_tool(
        tool, "topics", topic, "--all"
    )

    odradek("config", "alter", "topic", topic, "--subtract", "cleanup.policy=delete", "--delete", "retention.ms")
    assert {name: row["value"] for name, row in describe(odradek, "topic", topic).items()} == {
        "cleanup.policy": "compact"
    }
    done = odradek("config", "alter", "topic", topic, "--append", "cleanup.policy=delete", "--dry-run")
    assert re.search(r"cleanup.policy +compact +compact,delete$", done.out, re.MULTILINE)
    assert describe(odradek, "topic", topic)["cleanup.policy"]["value"] == "compact"


def test_configurations_of_brokers(odradek, tool):
    node = str(odradek("cluster", "status", "--json").json["brokers"][0]["id"])
    everything = describe(odradek, "broker", node, "--all")
    by_tool = describe_by_tool(tool, "brokers", node, "--all")
    assert set(everything) == set(by_tool)
    assert everything["offsets.topic.num.partitions"]["source"] == "server.properties"
    assert everything["offsets.topic.num.partitions"]["read_only"] is True
    assert everything["offsets.topic.num.partitions"]["default"] == "50"

    for name, key in ((node, "broker"), ("default", "all brokers")):
        odradek("config", "alter", "broker", name, "--set", "log.cleaner.threads=2")
        assert describe(odradek, "broker", name)["log.cleaner.threads"]["value"] == "2"
        assert describe_by_tool(tool, "brokers", name)["log.cleaner.threads"] == "2"
        assert describe(odradek, "broker", node)["log.cleaner.threads"]["source"] == key
        odradek("config", "alter", "broker", name, "--delete", "log.cleaner.threads")
    assert "log.cleaner.threads" not in describe(odradek, "broker", node)


def test_levels_of_loggers(odradek, tool):
    node = str(odradek("cluster", "status", "--json").json["brokers"][0]["id"])
    loggers = describe(odradek, "broker-logger", node, "--all")
    assert set(loggers) <= set(describe_by_tool(tool, "broker-loggers", node))
    name = sorted(loggers)[-1]
    odradek("config", "alter", "broker-logger", node, "--set", f"{name}=WARN")
    assert describe(odradek, "broker-logger", node, "--all")[name]["value"] == "WARN"
    odradek("config", "alter", "broker-logger", node, "--delete", name)


def test_the_resources(odradek, topic):
    rows = odradek("config", "list", "topic", "--json").json
    assert {"type": "topic", "name": topic} in rows
    assert {row["type"] for row in rows} == {"topic"}
    assert "broker" in {row["type"] for row in odradek("config", "list", "--json").json}


def test_refusals(odradek, topic):
    done = odradek("config", "alter", "topic", topic, "--set", "retention.ms=soon", code=1)
    assert done.err.startswith(f"odradek: topic {topic}: INVALID_CONFIG: ") and done.out == ""
    assert "did you mean" in odradek("config", "describe", "topic", f"{topic}x", code=1).err
    assert "must be the id of a broker" in odradek("config", "describe", "broker", "one", code=2).err
    assert "there is no live broker 77" in odradek("config", "describe", "broker", "77", code=1).err
    odradek("config", "alter", "topic", topic, code=2)
