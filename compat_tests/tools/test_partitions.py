"""`odradek partition`, compared with kafka-topics, kafka-get-offsets, kafka-log-dirs and others."""

import json
import re

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions
from compat_tests.tools.eventually import eventually

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")


@pytest.fixture
def filled(broker, admin, unique):
    """A topic with 10 records in partition 0 and 3 in partition 1."""
    admin.create_topic(unique, 2)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(unique, [Message(b"x" * 100, partition=0, timestamp_ms=1_000_000 + n) for n in range(10)])
        producer.produce(unique, [Message(b"y", partition=1) for _ in range(3)])
    return unique


def partitions(odradek, *arguments):
    return odradek("partition", "list", "--json", *arguments).json


def test_offsets_and_sizes(odradek, tool, filled):
    rows = partitions(odradek, filled)
    for position, key in (("earliest", "first_offset"), ("latest", "end_offset")):
        shown = tool(tools.GET_OFFSETS, "--topic", filled, "--time", position).lines
        assert [f"{row['topic']}:{row['partition']}:{row[key]}" for row in rows] == shown
    [line] = [one for one in tool(tools.LOG_DIRS, "--describe", "--topic-list", filled).lines if one.startswith("{")]
    sizes = {
        one["partition"]: one["size"]
        for broker in json.loads(line)["brokers"]
        for log_dir in broker["logDirs"]
        for one in log_dir["partitions"]
    }
    assert {f"{row['topic']}-{row['partition']}": row["size_bytes"] for row in rows} == sizes
    assert re.search(
        rf"^{filled} +0 +\d+ +\d+ +\d+ +0 +10 +\d+$", odradek("partition", "list", filled).out, re.MULTILINE
    )
    assert partitions(odradek, filled, "--unavailable") == partitions(odradek, filled, "--under-replicated") == []
    names = {row["topic"] for row in partitions(odradek)}
    assert filled in names and "__consumer_offsets" not in names


def test_a_partition(odradek, tool, filled):
    shown = odradek("partition", "describe", filled, "0", "--json").json
    assert (shown["first_offset"], shown["end_offset"], shown["last_stable_offset"]) == (0, 10, 10)
    assert shown["newest_timestamp_ms"] == 1_000_009
    [replica] = shown["replicas"]
    assert (replica["role"], replica["in_sync"], replica["lag"], replica["future"]) == ("leader", True, 0, False)
    assert replica["broker"] == shown["leader"] and replica["log_dir"] and replica["size_bytes"] > 1000
    assert "last stable offset   10\n" in odradek("partition", "describe", filled, "0").out
    missing = odradek("partition", "describe", filled, "7", code=1)
    assert missing.err == f"odradek: topic {filled} has no partition 7, only 0 to 1\n"


def get_offset(tool, topic, partition, time):
    """Return an offset that kafka-get-offsets shows."""
    [line] = tool(tools.GET_OFFSETS, "--topic-partitions", f"{topic}:{partition}", "--time", time).lines
    return int(line.rpartition(":")[2])


def test_a_partition_beside_the_tools(odradek, tool, broker, filled):
    odradek("partition", "delete-records", f"{filled}:0=4", "--yes")
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions(transactional_id=filled)) as producer:
        producer.begin()
        producer.produce(filled, [Message(b"open", partition=0, timestamp_ms=1_000_000)])
        shown = odradek("partition", "describe", filled, "0", "--json").json
        assert shown["first_offset"] == get_offset(tool, filled, 0, "earliest") == 4
        assert shown["end_offset"] == get_offset(tool, filled, 0, "latest") == 11
        newest = get_offset(tool, filled, 0, "max-timestamp")
        [record] = odradek(
            "record", "consume", filled, "-p", "0", "-o", str(newest), "-n", "1", "--json"
        ).out.splitlines()
        assert shown["newest_timestamp_ms"] == json.loads(record)["timestamp_ms"] == 1_000_009
        producers = tool(tools.TRANSACTIONS, "describe-producers", "--topic", filled, "--partition", "0").lines
        open_at = [line.split()[-1] for line in producers[1:] if line.split()[-1] != "None"]
        assert [str(shown["last_stable_offset"])] == open_at == ["10"]
        described = tool(tools.TOPICS, "--describe", "--topic", filled).stdout
        leader, replicas, isr = re.search(
            r"Partition: 0\s+Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", described
        ).groups()
        assert str(shown["leader"]) == leader
        assert [str(one["broker"]) for one in shown["replicas"]] == replicas.split(",")
        assert [str(one["broker"]) for one in shown["replicas"] if one["in_sync"]] == isr.split(",")
        options = ["--describe", "--topic-list", filled, "--broker-list", leader]
        [line] = [one for one in tool(tools.LOG_DIRS, *options).lines if one.startswith("{")]
        [log_dir] = json.loads(line)["brokers"][0]["logDirs"]
        [stored] = [one for one in log_dir["partitions"] if one["partition"] == f"{filled}-0"]
        [replica] = shown["replicas"]
        assert (replica["log_dir"], replica["size_bytes"], replica["lag"], replica["future"]) == (
            log_dir["logDir"],
            stored["size"],
            stored["offsetLag"],
            stored["isFuture"],
        )
        producer.abort()


def test_deletion_of_records_beside_that_of_the_tool(odradek, tool, filled, tmp_path):
    def list_by_tool():
        return [get_offset(tool, filled, partition, "earliest") for partition in (0, 1)]

    odradek("partition", "delete-records", f"{filled}:0=4", f"{filled}:1=2", "--yes")
    assert list_by_tool() == [4, 2]
    file = tmp_path / "offsets.json"
    offsets = [{"topic": filled, "partition": 0, "offset": 6}, {"topic": filled, "partition": 1, "offset": 99}]
    file.write_text(json.dumps({"partitions": offsets, "version": 1}))
    shown = tool(tools.DELETE_RECORDS, "--offset-json-file", str(file), check=False).stdout
    assert f"partition: {filled}-0\tlow_watermark: 6" in shown
    assert re.search(rf"partition: {filled}-1\terror: .*OffsetOutOfRange", shown)
    assert [row["first_offset"] for row in partitions(odradek, filled)] == list_by_tool() == [6, 2]
    own = odradek("partition", "delete-records", "--offset-json-file", str(file), "--yes", "--json", code=1).json
    errors = {row["partition"]: row["error"] and row["error"]["code"] for row in own["results"]}
    assert errors == {f"{filled}-0": None, f"{filled}-1": "OFFSET_OUT_OF_RANGE"}
    assert list_by_tool() == [6, 2]


def test_partitions_are_added(odradek, tool, topic):
    odradek("partition", "create", topic, "--partitions", "4")

    def check():
        assert len(partitions(odradek, topic)) == 4
        assert "PartitionCount: 4" in tool(tools.TOPICS, "--describe", "--topic", topic).stdout

    eventually(check)
    assert "INVALID_PARTITIONS" in odradek("partition", "create", topic, "--partitions", "2", code=1).err


def test_records_are_deleted(odradek, tool, filled, tmp_path):
    refused = odradek("partition", "delete-records", f"{filled}:0=4", code=2)
    assert "Delete the records before these offsets? Repeat the command with --yes" in refused.err
    assert re.search(rf"^{filled} +0 +0 +4$", refused.out, re.MULTILINE)
    odradek("partition", "delete-records", f"{filled}:0=4", "--dry-run")
    planned = odradek("partition", "delete-records", f"{filled}:0=4", "--dry-run", "--json").json
    assert planned["changes"] == [{"topic": filled, "partition": 0, "first_offset": 0, "new_first_offset": 4}]
    assert [row["first_offset"] for row in partitions(odradek, filled)] == [0, 0]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"partitions": [{"topic": filled, "partition": 1, "offset": -1}], "version": 1}))
    odradek("partition", "delete-records", f"{filled}:0=4", "--offset-json-file", str(file), "--yes")
    assert [row["first_offset"] for row in partitions(odradek, filled)] == [4, 3]
    tool(tools.DELETE_RECORDS, "--offset-json-file", str(file))
    too_far = odradek("partition", "delete-records", f"{filled}:0=11", "--dry-run", code=1)
    assert too_far.err == f"odradek: partition {filled}-0: OFFSET_OUT_OF_RANGE: the end is 10\n"
    before = odradek("partition", "delete-records", f"{filled}:0=1", "--dry-run", "--json").json
    assert before["changes"] == [{"topic": filled, "partition": 0, "first_offset": 4, "new_first_offset": 4}]
    too_far = odradek("partition", "delete-records", f"{filled}:0=11", "--yes", code=1)
    assert too_far.err == f"odradek: partition {filled}-0: OFFSET_OUT_OF_RANGE\n"
    for invalid in (f"{filled}:0", f"{filled}=1", f"{filled}:0=x"):
        assert "is not topic:partition=offset" in odradek("partition", "delete-records", invalid, code=2).err


def test_leaders_are_elected(odradek, tool, filled):
    [first, _] = partitions(odradek, filled)
    preview = odradek("partition", "elect", filled, "--dry-run", "--json").json
    assert [row["preferred_leader"] for row in preview] == [first["leader"]] * 2
    again = odradek("partition", "elect", f"{filled}:1").out
    assert again == f"partition {filled}-1 elected earlier; there was nothing to do\n"
    assert "2" in str(len(odradek("partition", "elect", filled, "--json").json["results"]))
    odradek("partition", "elect", "--all-topic-partitions")
    odradek("partition", "elect", code=2)
    assert "has no partition 9" in odradek("partition", "elect", f"{filled}:9", code=1).err


def test_a_reassignment(odradek, tool, filled, tmp_path):
    [first, _] = partitions(odradek, filled)
    broker_id = str(first["leader"])
    planned = odradek("partition", "reassign", "plan", filled, "--brokers", broker_id).out
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": filled}], "version": 1}))
    arguments = ["--generate", "--topics-to-move-json-file", str(topics), "--broker-list", broker_id]
    generated = tool(tools.REASSIGN_PARTITIONS, *arguments).lines[-1]
    assert [(one["topic"], one["partition"], one["replicas"]) for one in json.loads(planned)["partitions"]] == [
        (one["topic"], one["partition"], one["replicas"]) for one in json.loads(generated)["partitions"]
    ]
    file = tmp_path / "plan.json"
    file.write_text(generated)
    assert odradek("partition", "reassign", "apply", str(file), "--yes").out.startswith("TOPIC")
    assert odradek("partition", "reassign", "list", "--json").json == []
    assert odradek("partition", "reassign", "cancel", "--all", "--yes").out == ""
    wrong = json.loads(generated)
    wrong["partitions"][0]["replicas"] = [99]
    file.write_text(json.dumps(wrong))
    refused = odradek("partition", "reassign", "apply", str(file), "--yes", code=1)
    assert "INVALID_REPLICA_ASSIGNMENT" in refused.err
    file.write_text("{}")
    assert "has no list partitions" in odradek("partition", "reassign", "apply", str(file), "--yes", code=2).err
    assert "no live broker 98" in odradek("partition", "reassign", "plan", filled, "--brokers", "98", code=2).err


def test_elections_beside_those_of_the_tool(odradek, tool, topic):
    elect = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    shown = tool(tools.LEADER_ELECTION, *elect).stdout
    assert "Valid replica already elected for partitions" in shown and f"{topic}-0" in shown
    again = odradek("partition", "elect", f"{topic}:0").out
    assert again == f"partition {topic}-0 elected earlier; there was nothing to do\n"
    missing = tool(tools.LEADER_ELECTION, *elect[:-1], "9", check=False)
    assert "UnknownTopicOrPartition" in missing.stdout + missing.stderr
    refused = odradek("partition", "elect", f"{topic}:9", code=1).err
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refused or f"topic {topic} has no partition 9" in refused
