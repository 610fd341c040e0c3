"""`odradek config`, compared with kafka-configs."""

import re

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.tools.eventually import eventually

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]


def describe_by_tool(tool, kind, name, *options):
    """Return value and sensitivity of the configurations that kafka-configs shows."""
    entity = ["--entity-default"] if name == "default" else ["--entity-name", name]
    shown = tool(tools.CONFIGS, "--describe", "--entity-type", kind, *entity, *options).stdout
    return dict(re.findall(r"^  ([^=\s]+)=(.*?) sensitive=", shown, re.MULTILINE))


def describe(odradek, kind, name, *options):
    [document] = odradek("config", "describe", kind, name, "--json", *options).json
    return {row["name"]: row for row in document["configs"]}


def values(odradek, kind, name, *options):
    return {name: row["value"] for name, row in describe(odradek, kind, name, *options).items()}


def await_values(odradek, kind, name, expected):
    """Wait until the values that were set for a resource are these."""

    def check():
        assert values(odradek, kind, name) == expected

    eventually(check)


def test_configurations_of_a_topic(odradek, tool, topic):
    change = ["config", "alter", "topic", topic]
    done = odradek(*change, "--set", "cleanup.policy=compact,delete", "--set", "retention.ms=777")
    assert re.search(rf"^{topic} +retention.ms +604800000 +777$", done.out, re.MULTILINE)
    assert done.out.endswith(f"topic {topic} altered\n")
    await_values(odradek, "topic", topic, {"cleanup.policy": "compact,delete", "retention.ms": "777"})
    changed = describe(odradek, "topic", topic)["cleanup.policy"]
    assert (changed["source"], changed["default"]) == ("topic", "delete")
    everything = {name: value or "" for name, value in values(odradek, "topic", topic, "--all").items()}
    assert everything == describe_by_tool(tool, "topics", topic, "--all")

    odradek(*change, "--subtract", "cleanup.policy=delete", "--delete", "retention.ms")
    await_values(odradek, "topic", topic, {"cleanup.policy": "compact"})
    done = odradek(*change, "--append", "cleanup.policy=delete", "--dry-run")
    assert re.search(r"cleanup.policy +compact +compact,delete$", done.out, re.MULTILINE)
    assert values(odradek, "topic", topic) == {"cleanup.policy": "compact"}


def test_configurations_of_brokers(odradek, tool):
    node = str(odradek("cluster", "describe", "--json").json["brokers"][0]["broker"])
    everything = describe(odradek, "broker", node, "--all")
    by_tool = describe_by_tool(tool, "brokers", node, "--all")
    shown = {name: "null" if row["value"] == "[hidden]" else row["value"] or "" for name, row in everything.items()}
    assert shown == {
        name: "" if value == "null" and shown.get(name) == "" else value for name, value in by_tool.items()
    }
    static = everything["offsets.topic.num.partitions"]
    assert (static["source"], static["read_only"], static["default"]) == ("server.properties", True, "50")


@pytest.mark.parametrize("is_default", [True, False])
def test_a_dynamic_configuration_of_brokers(odradek, tool, is_default):
    node = str(odradek("cluster", "describe", "--json").json["brokers"][0]["broker"])
    name, source = ("default", "all brokers") if is_default else (node, "broker")
    odradek("config", "alter", "broker", name, "--set", "log.cleaner.threads=2")

    def check_set():
        assert values(odradek, "broker", name)["log.cleaner.threads"] == "2"
        assert describe_by_tool(tool, "brokers", name)["log.cleaner.threads"] == "2"
        assert describe(odradek, "broker", node)["log.cleaner.threads"]["source"] == source

    eventually(check_set)
    odradek("config", "alter", "broker", name, "--delete", "log.cleaner.threads")

    def check_deleted():
        assert "log.cleaner.threads" not in describe(odradek, "broker", node)

    eventually(check_deleted)


def test_levels_of_loggers(odradek, tool):
    node = str(odradek("cluster", "describe", "--json").json["brokers"][0]["broker"])
    loggers = values(odradek, "broker-logger", node, "--all")
    assert set(loggers) <= set(describe_by_tool(tool, "broker-loggers", node))
    before = describe(odradek, "broker-logger", node)
    assert len(before) < len(loggers) / 10
    name = next(name for name in sorted(loggers, reverse=True) if name not in before)
    odradek("config", "alter", "broker-logger", node, "--set", f"{name}=FATAL")
    row = describe(odradek, "broker-logger", node)[name]
    assert (row["value"], row["default"], row["changed"]) == ("FATAL", loggers["root"], True)
    assert describe_by_tool(tool, "broker-loggers", node)[name] == "FATAL"
    odradek("config", "alter", "broker-logger", node, "--delete", name)
    assert set(describe(odradek, "broker-logger", node)) == set(before)


def test_a_logger_with_several_names(odradek, backend):
    if backend == "kafka":
        pytest.skip("Apache Kafka's loggers have one name")
    node = str(odradek("cluster", "describe", "--json").json["brokers"][0]["broker"])
    rows = describe(odradek, "broker-logger", node, "--all")
    assert "kafka.log.LogCleaner" not in rows
    assert rows["log.compaction"]["aliases"] == [
        "kafka.log.LogCleaner", "org.apache.kafka.storage.internals.log.LogCleaner",
    ]  # fmt: skip
    odradek("config", "alter", "broker-logger", node, "--set", "kafka.log.LogCleaner=DEBUG")
    assert set(describe(odradek, "broker-logger", node)) - set(rows) == set()
    assert "log.compaction" in describe(odradek, "broker-logger", node)
    odradek("config", "alter", "broker-logger", node, "--delete", "kafka.log.LogCleaner")


def test_a_name_that_no_broker_has(odradek):
    alter = ["config", "alter", "broker", "default"]
    done = odradek(*alter, "--set", "log.cleaner.thread=2")
    node = odradek("cluster", "describe", "--json").json["brokers"][0]["broker"]
    assert done.err.startswith(
        f"odradek: broker {node} has no configuration log.cleaner.thread; did you mean log.cleaner.threads"
    )
    odradek(*alter, "--delete", "log.cleaner.thread")
    assert odradek(*alter, "--set", "leader.replication.throttled.rate=1000", "--dry-run").err == ""


def list_by_tool(tool, kind):
    """Return the resources that kafka-configs shows, with the names of the configurations that were set for each."""
    shown = tool(tools.CONFIGS, "--describe", "--entity-type", kind).stdout
    parts = re.split(r"^Dynamic configs for \S+ (\S+) are:$", shown, flags=re.MULTILINE)
    return {
        name: set(re.findall(r"^  ([^=\s]+)=", text.partition("\nDefault configs")[0], re.MULTILINE))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_resources(odradek, tool, admin, topic, unique, backend):
    admin.create_topic(f"{unique}-b", 1)
    odradek("config", "alter", "topic", topic, "--set", "retention.ms=777")
    odradek("config", "alter", "client-metrics", unique, "--set", "interval.ms=30000")
    if backend == "kafka":
        odradek("config", "alter", "group", unique, "--set", "consumer.session.timeout.ms=50000")

    def check():
        listed = {}
        for row in odradek("config", "list", "--json").json:
            listed.setdefault(row["type"], []).append(row["name"])
        by_tool = {kind: list_by_tool(tool, kind) for kind in ("topics", "brokers", "client-metrics")}
        assert by_tool["topics"][topic] == {"retention.ms"} and f"{unique}-b" in by_tool["topics"]
        assert by_tool["client-metrics"][unique] == {"interval.ms"}
        expected = {
            "topic": sorted(by_tool["topics"]),
            "broker": sorted(by_tool["brokers"]),
            "broker-logger": sorted(by_tool["brokers"]),
            "client-metrics": sorted(by_tool["client-metrics"]),
        }
        if backend == "kafka":
            # The tool lists groups without configurations too.
            expected["group"] = sorted(name for name, configs in list_by_tool(tool, "groups").items() if configs)
            assert unique in expected["group"]
        assert listed == expected
        for kind in ("topic", "broker", "broker-logger", "group", "client-metrics"):
            rows = odradek("config", "list", kind, "--json").json
            assert [(row["type"], row["name"]) for row in rows] == [(kind, name) for name in expected.get(kind, [])]

    eventually(check)
    odradek("config", "alter", "client-metrics", unique, "--delete", "interval.ms")


def test_refusals(odradek, topic):
    done = odradek("config", "alter", "topic", topic, "--set", "retention.ms=soon", code=1)
    assert done.err.startswith(f"odradek: topic {topic}: INVALID_CONFIG: ") and done.out == ""
    assert "did you mean" in odradek("config", "describe", "topic", f"{topic}x", code=1).err
    assert "must be the id of a broker" in odradek("config", "describe", "broker", "one", code=2).err
    assert "there is no live broker 77" in odradek("config", "describe", "broker", "77", code=1).err
    odradek("config", "alter", "topic", topic, code=2)


def test_configurations_of_a_group(odradek, tool, backend, unique):
    if backend == "odradek":
        pytest.skip("Odradek serves no groups that have configurations")
    odradek("config", "alter", "group", unique, "--set", "consumer.session.timeout.ms=50000")

    def check(expected):
        assert values(odradek, "group", unique) == describe_by_tool(tool, "groups", unique) == expected
        everything = {name: value or "" for name, value in values(odradek, "group", unique, "--all").items()}
        assert everything == describe_by_tool(tool, "groups", unique, "--all")

    eventually(lambda: check({"consumer.session.timeout.ms": "50000"}))
    change = ["--alter", "--entity-type", "groups", "--entity-name", unique]
    tool(tools.CONFIGS, *change, "--add-config", "consumer.heartbeat.interval.ms=6000")
    both = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "6000"}
    eventually(lambda: check(both))
    deleted = [part for name in both for part in ("--delete", name)]
    odradek("config", "alter", "group", unique, *deleted)
    eventually(lambda: check({}))


def test_client_metrics(odradek, tool, unique):
    odradek("config", "alter", "client-metrics", unique, "--set", "interval.ms=30000", "--set", "metrics=org.apache.")

    def check_set():
        shown = tool(tools.CLIENT_METRICS, "--describe", "--name", unique).stdout
        by_tool = dict(re.findall(r"^  (\S+)=(\S*)", shown, re.MULTILINE))
        own = values(odradek, "client-metrics", unique)
        assert own == {"interval.ms": "30000", "metrics": "org.apache."}
        assert {name: by_tool[name] for name in own} == own, shown
        rows = odradek("config", "list", "client-metrics", "--json").json
        assert sorted(row["name"] for row in rows) == sorted(tool(tools.CLIENT_METRICS, "--list").lines)
        assert {"type": "client-metrics", "name": unique} in rows

    eventually(check_set)
    tool(tools.CLIENT_METRICS, "--alter", "--name", unique, "--interval", "60000")
    eventually(lambda: _check(values(odradek, "client-metrics", unique)["interval.ms"] == "60000"))
    odradek("config", "alter", "client-metrics", unique, "--delete", "interval.ms", "--delete", "metrics")
    eventually(lambda: _check(unique not in tool(tools.CLIENT_METRICS, "--list").lines))


def _check(is_true):
    assert is_true
