"""`odradek broker` and `odradek cluster`, compared with kafka-log-dirs, kafka-features and others."""

import json
import re

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.tools import run
from compat_tests.tools.eventually import eventually
from odradek.tools.cli.main import main

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]


def test_brokers_and_cluster(odradek, tool, broker, topic):
    [row] = odradek("broker", "list", "--json").json
    assert f"{row['host']}:{row['port']}" == broker.bootstrap_servers
    [by_tool] = list_by_tool(broker.bootstrap_servers)
    assert [str(row[key]) for key in ("broker", "host", "port")] == [by_tool[key] for key in ("ID", "HOST", "PORT")]
    assert (row["controller"], row["fenced"]) == (True, False) and row["leaders"] == row["replicas"] > 0
    described = odradek("cluster", "describe", "--json").json
    shown = run(tools.CLUSTER, "cluster-id", "--bootstrap-server", broker.bootstrap_servers).stdout
    assert described["cluster_id"] in shown
    assert (described["controller"], described["brokers"][0]["broker"]) == (row["broker"], row["broker"])
    rows = re.findall(r"Partition: (\d+)\s", tool(tools.TOPICS, "--describe").stdout)
    assert described["partitions"] == len(rows)
    assert described["topics"] == len(tool(tools.TOPICS, "--list").lines)
    assert re.search(rf"^controller  {row['broker']}$", odradek("cluster", "describe").out, re.MULTILINE)


def list_by_tool(bootstrap_servers):
    """Return the rows of kafka-cluster list-endpoints by their headings."""
    heading, *lines = run(tools.CLUSTER, "list-endpoints", "--bootstrap-server", bootstrap_servers).lines
    return [dict(zip(heading.split(), line.split(), strict=True)) for line in lines]


def describe_configs_by_tool(tool, node):
    """Return value and synonyms of all configurations of a broker, as kafka-configs shows them."""
    options = ["--entity-type", "brokers", "--entity-name", node, "--all"]
    shown = tool(tools.CONFIGS, "--describe", *options).stdout
    rows = re.findall(r"^  ([^=\s]+)=(.*) sensitive=\w+ synonyms=\{(.*)\}$", shown, re.MULTILINE)
    return {name: (value, synonyms.partition(":")[0]) for name, value, synonyms in rows}


SOURCES = {
    "STATIC_BROKER_CONFIG": "server.properties",
    "DYNAMIC_BROKER_CONFIG": "broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers",
}


def test_a_broker_beside_the_tools(odradek, tool, broker, topic):
    [by_tool] = list_by_tool(broker.bootstrap_servers)
    node = by_tool["ID"]
    odradek("config", "alter", "broker", node, "--set", "log.cleaner.threads=2")

    def check():
        shown = odradek("broker", "describe", node, "--json").json
        assert {key: str(shown[key]) for key in ("broker", "host", "port")} == {
            "broker": node,
            "host": by_tool["HOST"],
            "port": by_tool["PORT"],
        }
        assert (shown["rack"], shown["fenced"], by_tool["RACK"], by_tool["STATE"]) == (None, False, "null", "unfenced")
        quorum = dict(
            re.findall(r"^(\w+): +(.*)$", tool(tools.METADATA_QUORUM, "describe", "--status").stdout, re.MULTILINE)
        )
        assert shown["controller"] is (quorum["LeaderId"] == node)
        rows = re.findall(r"Partition: \d+\s+Leader: (\d+)\s+Replicas: (\S+)", tool(tools.TOPICS, "--describe").stdout)
        assert shown["leaders"] == sum(leader == node for leader, _ in rows) > 0
        assert shown["replicas"] == sum(node in replicas.split(",") for _, replicas in rows)
        [log_dir] = shown["log_dirs"]
        [line] = [one for one in tool(tools.LOG_DIRS, "--describe").lines if one.startswith("{")]
        [directory] = json.loads(line)["brokers"][0]["logDirs"]
        assert (log_dir["log_dir"], log_dir["state"], directory["error"]) == (directory["logDir"], "online", None)
        assert log_dir["replicas"] == len(directory["partitions"])
        assert log_dir["size_bytes"] == sum(one["size"] for one in directory["partitions"])
        expected = {
            name: (value, SOURCES[source])
            for name, (value, source) in describe_configs_by_tool(tool, node).items()
            if source in SOURCES
        }
        assert {one["name"]: (one["value"], one["source"]) for one in shown["configs"]} == expected
        assert expected["log.cleaner.threads"] == ("2", "broker") and len(expected) > 5

    eventually(check)
    odradek("config", "alter", "broker", node, "--delete", "log.cleaner.threads")


def test_a_broker(odradek, topic):
    [row] = odradek("broker", "list", "--json").json
    shown = odradek("broker", "describe", str(row["broker"]), "--json").json
    assert {key: shown[key] for key in row} == row
    assert [log_dir["state"] for log_dir in shown["log_dirs"]] == ["online"]
    configs = {one["name"]: one for one in shown["configs"]}
    assert (configs["num.partitions"]["value"], configs["num.partitions"]["source"]) == ("2", "server.properties")
    assert "there is no live broker 77" in odradek("broker", "describe", "77", code=1).err


def test_disks(odradek, tool, topic):
    def check():
        [disk] = odradek("broker", "disks", "--json").json
        [line] = [one for one in tool(tools.LOG_DIRS, "--describe").lines if one.startswith("{")]
        [by_tool] = json.loads(line)["brokers"]
        [log_dir] = by_tool["logDirs"]
        assert (disk["broker"], disk["log_dir"]) == (by_tool["broker"], log_dir["logDir"])
        assert disk["replicas"] == len(log_dir["partitions"])
        assert 0 < disk["usable_bytes"] < disk["total_bytes"]
        replicas = odradek("broker", "disks", "--replicas", "--json").json
        assert {
            f"{one['topic']}-{one['partition']}": (one["size_bytes"], one["lag"], one["future"]) for one in replicas
        } == {one["partition"]: (one["size"], one["offsetLag"], one["isFuture"]) for one in log_dir["partitions"]}
        assert disk["size_bytes"] == sum(one["size"] for one in log_dir["partitions"])

    eventually(check)


def test_apis(odradek, tool):
    [row] = odradek("broker", "list", "--json").json
    served = odradek("broker", "apis", str(row["broker"]), "--json").json
    shown = tool(tools.BROKER_API_VERSIONS).stdout
    by_tool = re.findall(r"^\s(\w+)\((\d+)\): (?:(\d+) to )?(\d+)", shown, re.MULTILINE)
    assert [(one["api"], str(one["key"])) for one in served] == [(name, key) for name, key, _, _ in by_tool]
    assert [(str(one["first_version"]), str(one["last_version"])) for one in served] == [
        (first or last, last) for _, _, first, last in by_tool
    ]


def test_features(odradek, tool):
    rows = odradek("cluster", "features", "describe", "--json").json
    shown = tool(tools.FEATURES, "describe").stdout
    by_tool = re.findall(
        r"Feature: (\S+)\s+SupportedMinVersion: (\d+)\s+SupportedMaxVersion: (\d+)\s+FinalizedVersionLevel: (\d+)",
        shown,
    )
    mine = {row["feature"]: tuple(map(str, list(row.values())[1:])) for row in rows}
    # Kafka's tool names the levels of metadata.version by releases.
    assert {name: tuple(levels) for name, *levels in by_tool}.items() <= mine.items()
    assert mine["transaction.version"] == ("0", "2", "2")

    down = ["cluster", "features", "downgrade", "--feature", "transaction.version=1"]
    assert odradek(*down, "--dry-run").out == "feature transaction.version would be downgraded\n"
    assert "Repeat the command with --yes" in odradek(*down, code=2).err
    refused = odradek("cluster", "features", "upgrade", "--feature", "transaction.version=9", code=1)
    assert refused.err.startswith("odradek: ") and refused.err.count("\n") == 1
    misspelt = odradek("cluster", "features", "upgrade", "--feature", "transaction.versoin=1", code=1)
    assert misspelt.err.startswith("odradek: there is no feature transaction.versoin; did you mean transaction.version")


def describe_features_by_tool(address):
    shown = run(tools.FEATURES, *address, "describe").stdout
    return dict(re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", shown))


def test_levels_of_features_that_change(start_broker, capsys):
    """A level that the command lowers is raised by kafka-features, and the other way round."""
    address = ["--bootstrap-server", start_broker().bootstrap_servers]

    def change(direction, level):
        feature = ["--feature", f"transaction.version={level}"]
        yes = ["--yes"] if direction == "downgrade" else []
        assert main(["cluster", "features", direction, *feature, *yes, *address]) == 0

    def check(level):
        def compare():
            capsys.readouterr()
            assert main(["cluster", "features", "describe", "--json", *address]) == 0
            rows = {row["feature"]: str(row["finalized"]) for row in json.loads(capsys.readouterr().out)}
            by_tool = describe_features_by_tool(address)
            assert rows["transaction.version"] == by_tool["transaction.version"] == level

        eventually(compare)

    check("2")
    change("downgrade", 1)
    check("1")
    run(tools.FEATURES, *address, "upgrade", "--feature", "transaction.version=2")
    check("2")
    run(tools.FEATURES, *address, "downgrade", "--feature", "transaction.version=0")
    check("0")
    change("upgrade", 2)
    check("2")


def test_the_quorum(odradek, tool):
    shown = odradek("cluster", "quorum", "--json").json
    status = dict(
        re.findall(r"^(\w+): +(.*)$", tool(tools.METADATA_QUORUM, "describe", "--status").stdout, re.MULTILINE)
    )
    assert (str(shown["leader"]), str(shown["leader_epoch"])) == (status["LeaderId"], status["LeaderEpoch"])
    assert shown["cluster_id"] == status["ClusterId"]
    [leader] = shown["replicas"]
    assert leader["role"] == "leader"
    [voter] = json.loads(status["CurrentVoters"])
    assert voter["endpoints"] == leader["endpoints"] or voter["endpoints"] == []
    assert voter.get("directoryId") == leader["directory_id"]


def test_the_replicas_of_the_quorum(odradek, tool):
    def check():
        rows = odradek("cluster", "quorum", "--json").json["replicas"]
        lines = tool(tools.METADATA_QUORUM, "describe", "--replication").lines
        heading, *by_tool = [line.split() for line in lines]
        assert len(rows) == len(by_tool) == 1
        for row, values in zip(rows, by_tool, strict=True):
            found = dict(zip(heading, values, strict=False))
            assert (str(row["replica"]), row["role"]) == (found["NodeId"], values[-1].lower())
            assert (str(row["log_end_offset"]), str(row["lag"])) == (found["LogEndOffset"], found["Lag"])
            times = (found["LastFetchTimestamp"], found["LastCaughtUpTimestamp"])
            own = (row["last_fetch_ms"], row["last_caught_up_ms"])
            assert all(abs(int(one) - (other or -1)) < 60_000 for one, other in zip(times, own, strict=True))

    eventually(check)
