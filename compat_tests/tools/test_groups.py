"""`odradek group`, compared with kafka-consumer-groups."""

import json
import re
from contextlib import closing

import confluent_kafka
import pytest

from compat_tests.apache_kafka import tools
from compat_tests.bad_frames import Connection
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, wait_until
from compat_tests.plain_requests import commit

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

CLIENT = load("confluent")
TIME_MS = 1_700_000_000_000


@pytest.fixture
def group(broker, admin, unique):
    """A group that has committed 4 of the 10 records in partition 0 of a topic of its name; 3 are in partition 1."""
    admin.create_topic(unique, 2)
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        producer.produce(unique, [Message(b"x", partition=0, timestamp_ms=TIME_MS + n * 1000) for n in range(10)])
        producer.produce(unique, [Message(b"y", partition=1, timestamp_ms=TIME_MS) for _ in range(3)])
    with CLIENT.Consumer(broker.bootstrap_servers, ConsumerOptions(group=unique)) as consumer:
        consumer.assign([(unique, 0)])
        consumer.commit({(unique, 0): (4, "")})
    return unique


def describe_by_tool(tool, group):
    """Return (partition, committed, end, lag) of kafka-consumer-groups --describe."""
    shown = tool(tools.CONSUMER_GROUPS, "--describe", "--group", group).stdout
    return re.findall(rf"^{group} +{group} +(\d+) +(\d+|-) +(\d+) +(\d+|-) ", shown, re.MULTILINE)


def offsets(odradek, group):
    [document] = odradek("group", "describe", group, "--json").json
    return [
        tuple("-" if row[key] is None else str(row[key]) for key in ("partition", "committed", "end_offset", "lag"))
        for row in document["offsets"]
    ]


def committed(admin, group):
    return {partition: offset for (_, partition), offset in admin.group_offsets(group).items()}


def test_a_group_without_members(odradek, tool, broker, group):
    with Connection(broker.port) as connection:
        assert commit(connection, "", "", -1, group) == 0  # the id of a group may be empty
    assert offsets(odradek, group) == describe_by_tool(tool, group) == [("0", "4", "10", "6")]
    [document] = odradek("group", "describe", group, "--json").json
    assert (document["state"], document["lag"], document["members"]) == ("Empty", 6, [])
    listed = odradek("group", "list", "--json").json
    assert [row["group"] for row in listed] == sorted(tool(tools.CONSUMER_GROUPS, "--list").stdout.splitlines())
    by_tool = [line.split() for line in tool(tools.GROUPS, "--list").lines[1:]]
    own = [[*row["group"].split(), row["type"].capitalize(), *row["protocol_type"].split()] for row in listed]
    assert sorted(by_tool) == sorted(own)
    [row] = [row for row in listed if row["group"] == group]
    assert (row["state"], row["type"]) == ("Empty", "classic")
    assert group in [row["group"] for row in odradek("group", "list", "--state", "Empty", "--json").json]
    assert group not in [row["group"] for row in odradek("group", "list", "--state", "Stable", "--json").json]
    text = odradek("group", "describe", group).out
    assert re.search(rf"^{group} +0 +4 +10 +6  -", text, re.MULTILINE) and "lag          6\n" in text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member(odradek, tool, broker, backend, group, protocol):
    if (backend, protocol) == ("odradek", "consumer"):
        pytest.skip("Odradek serves no groups of this type")
    name = f"{group}-{protocol}"
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "group.protocol": protocol}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest", "client.id": "member"})
    with closing(consumer):
        consumer.subscribe([group])
        wait_until(lambda: consumer.poll(0.2))
        consumer.commit(offsets=[confluent_kafka.TopicPartition(group, 1, 2)], asynchronous=False)
        [document] = odradek("group", "describe", name, "--json").json
        shown = tool(tools.CONSUMER_GROUPS, "--describe", "--group", name).stdout
        members = re.findall(rf"^{name} +{group} +(\d) .* (\S+) +/(\S+) +(\S+) *$", shown, re.MULTILINE)
        assert members == [
            (str(row["partition"]), row["member"], row["host"].lstrip("/"), row["client"])
            for row in document["offsets"]
        ]
        [member] = document["members"]
        assert member["partitions"] == [f"{group}:0", f"{group}:1"]
        assert (document["state"], document["type"]) == ("Stable", protocol)
        busy = odradek("group", "reset", name, "--all-topics", "--to-latest", "--yes", code=1)
        assert busy.err == f"odradek: group {name} has 1 member; stop it before a reset\n"
        assert "NON_EMPTY_GROUP" in odradek("group", "delete", name, "--yes", code=1).err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 3]),
        (["--to-current"], [4, 3]),
        (["--to-offset", "2"], [2, 2]),
        (["--to-datetime", "2023-11-14T22:13:25"], [5, 3]),
        (["--by-duration", "P1D"], [10, 3]),
    ],
    ids=lambda value: value[0].strip("-") if isinstance(value, list) and isinstance(value[0], str) else "",
)
def test_a_dry_run_of_a_reset(odradek, tool, admin, group, options, expected):
    rows = odradek("group", "reset", group, "--topic", group, *options, "--dry-run", "--json").json
    assert [row["after"] for row in rows] == expected and [row["before"] for row in rows] == [4, None]
    kafka = [option.replace("22:13:25", "22:13:25.000") for option in options]
    shown = tool(
        tools.CONSUMER_GROUPS, "--reset-offsets", "--group", group, "--topic", group, *kafka, "--dry-run"
    ).stdout
    by_tool = dict(re.findall(rf"^{group} +{group} +(\d) +(\d+)", shown, re.MULTILINE))
    assert by_tool == {str(row["partition"]): str(row["after"]) for row in rows}
    assert committed(admin, group) == {0: 4}


def test_a_dry_run_of_a_shift_or_of_a_file(odradek, tool, group, tmp_path):
    file = tmp_path / "offsets.csv"
    file.write_text(f"{group},0,7\n{group},1,2\n")
    for options, expected in (
        (["--topic", f"{group}:0", "--shift-by", "-3"], {"0": "1"}),
        (["--topic", f"{group}:0", "--shift-by", "100"], {"0": "10"}),
        (["--from-file", str(file)], {"0": "7", "1": "2"}),
    ):
        rows = odradek("group", "reset", group, *options, "--dry-run", "--json").json
        assert {str(row["partition"]): str(row["after"]) for row in rows} == expected
        shown = tool(tools.CONSUMER_GROUPS, "--reset-offsets", "--group", group, *options, "--dry-run").stdout
        assert dict(re.findall(rf"^{group} +{group} +(\d) +(\d+)", shown, re.MULTILINE)) == expected


def test_the_json_of_a_reset(odradek, group):
    found = odradek("group", "reset", group, "--topic", f"{group}:0", "--to-offset", "2", "--yes", "--json").json
    assert (found["action"], found["dry_run"], found["results"]) == (
        "reset",
        False,
        [{"offset": f"{group}-0", "error": None}],
    )
    [change] = found["changes"]
    assert (change["topic"], change["partition"], change["before"], change["after"]) == (group, 0, 4, 2)


def test_a_reset_beside_that_of_the_tool(odradek, tool, group):
    """The command and the tool reset in turns, and each shows the offsets of the other."""
    reset = ["group", "reset", group, "--topic", group]
    by_tool = ["--reset-offsets", "--group", group, "--topic", group, "--execute"]
    for own, options, expected in (
        (True, ["--to-earliest"], ["0", "0"]),
        (False, ["--to-offset", "2"], ["2", "2"]),
        (True, ["--to-datetime", "2023-11-14T22:13:25"], ["5", "3"]),
        (False, ["--to-latest"], ["10", "3"]),
        (True, ["--shift-by", "-2"], ["8", "1"]),
    ):
        if own:
            odradek(*reset, *options, "--yes")
        else:
            tool(tools.CONSUMER_GROUPS, *by_tool, *options)
        shown = describe_by_tool(tool, group)
        assert offsets(odradek, group) == shown and [row[1] for row in shown] == expected


def test_a_reset(odradek, admin, group, tmp_path):
    table = odradek("group", "reset", group, "--all-topics", "--shift-by", "-3", "--yes").out
    assert re.search(rf"^{group} +0 +4 +1 +0 +10$", table, re.MULTILINE)
    assert committed(admin, group) == {0: 1}
    beyond = odradek("group", "reset", group, "--all-topics", "--shift-by", "-7", "--yes")
    assert beyond.err == f"odradek: {group}-0 has no offset -6, 0 is the nearest\n"
    assert committed(admin, group) == {0: 0}
    exported = odradek("group", "reset", group, "--topic", f"{group}:1", "--to-latest", "--dry-run", "--export").out
    assert exported == f"{group},1,3\n"
    file = tmp_path / "offsets.csv"
    file.write_text(exported + f"{group},0,7\n")
    assert "Repeat the command with --yes" in odradek("group", "reset", group, "--from-file", str(file), code=2).err
    odradek("group", "reset", group, "--from-file", str(file), "--yes")
    assert committed(admin, group) == {0: 7, 1: 3}
    file.write_text("a,b\n")
    assert "line 1: a,b is not" in odradek("group", "reset", group, "--from-file", str(file), code=2).err


def test_invalid_resets(odradek, group):
    reset = ["group", "reset", group]
    for arguments, message in (
        (["--topic", group], "specify exactly one of --to-earliest"),
        (["--topic", group, "--to-latest", "--to-earliest"], "specify exactly one of --to-earliest"),
        (["--to-latest"], "specify either --topic or --all-topics"),
        (["--topic", group, "--to-datetime", "noon"], "noon is not a time"),
        (["--topic", group, "--by-duration", "long"], "long is not a duration"),
        (["--topic", group, "--to-latest", "--export"], "--export requires --dry-run"),
    ):
        assert message in odradek(*reset, *arguments, code=2).err
    assert "did you mean" in odradek(*reset, "--topic", f"{group}x", "--to-latest", code=1).err
    assert "has no partition 5" in odradek(*reset, "--topic", f"{group}:5", "--to-latest", code=1).err
    assert "no committed offset in" in odradek(*reset, "--topic", group, "--shift-by", "1", code=1).err


def test_lag(odradek, tool, group):
    row = {"group": group, "state": "Empty", "members": 0, "topic": group, "partitions": 1, "lag": 6}
    assert odradek("group", "lag", group, "--json").json == [row]
    assert sum(int(each[3]) for each in describe_by_tool(tool, group)) == row["lag"]
    assert row in odradek("group", "lag", "--json").json
    watched = odradek("group", "lag", group, "--watch", "--interval", "0", "--count", "2", "--json").out.splitlines()
    assert [json.loads(line) for line in watched] == [[row], [row]]
    assert re.search(rf"^{group} +Empty +0  {group} +1 +6$", odradek("group", "lag", group).out, re.MULTILINE)


def delete_by_tool(tool, group, *topics):
    """Return partition and status of each row of kafka-consumer-groups --delete-offsets."""
    options = [part for topic in topics for part in ("--topic", topic)]
    shown = tool(tools.CONSUMER_GROUPS, "--delete-offsets", "--group", group, *options).stdout
    rows = re.findall(r"^(\S+) +(\d+) +(Successful|Error: .*?) *$", shown, re.MULTILINE)
    return {f"{topic}-{partition}": status for topic, partition, status in rows}


def delete(odradek, group, *topics, code=0):
    """Return partition and error code of each row of `odradek group delete-offsets`."""
    shown = odradek("group", "delete-offsets", group, *topics, "--yes", "--json", code=code).json
    return {row["offset"]: row["error"] and row["error"]["code"] for row in shown["results"]}


def test_deletion_of_offsets_beside_that_of_the_tool(odradek, tool, admin, group):
    odradek("group", "reset", group, "--topic", group, "--to-latest", "--yes")
    before = describe_by_tool(tool, group)
    assert [row[1] for row in before] == ["10", "3"]
    refused = odradek("group", "delete-offsets", group, group, "--dry-run").out
    assert refused == f"offset {group}-0 would be deleted\noffset {group}-1 would be deleted\n"
    assert describe_by_tool(tool, group) == before

    assert delete_by_tool(tool, group, f"{group}:0") == {f"{group}-0": "Successful"}
    assert offsets(odradek, group) == describe_by_tool(tool, group) == before[1:]
    odradek("group", "reset", group, "--topic", group, "--to-latest", "--yes")
    assert delete(odradek, group, f"{group}:0") == {f"{group}-0": None}
    assert offsets(odradek, group) == describe_by_tool(tool, group) == before[1:]
    # Kafka's tool succeeds for a partition without an offset, which is an error here.
    assert delete_by_tool(tool, group, f"{group}:0") == {f"{group}-0": "Successful"}
    missing = odradek("group", "delete-offsets", group, f"{group}:0", "--yes", code=1).err
    assert missing == f"odradek: group {group} has no offset in {group}-0\n"


def test_offsets_of_a_subscribed_topic_are_not_deleted(odradek, tool, broker, admin, group):
    name, other = f"{group}-member", f"{group}-other"
    admin.create_topic(other, 1)
    with CLIENT.Consumer(broker.bootstrap_servers, ConsumerOptions(group=name)) as consumer:
        consumer.subscribe([group], None)
        wait_until(lambda: consumer.poll(0.2), what="records of the group")
        both = {(group, 0): (2, ""), (other, 0): (0, "")}
        consumer.commit(both)
        by_tool = delete_by_tool(tool, name, f"{group}:0", f"{other}:0")
        after = describe_by_tool(tool, name)
        consumer.commit(both)
        own = delete(odradek, name, f"{group}:0", f"{other}:0", code=1)
        assert describe_by_tool(tool, name) == after
    assert own == {f"{group}-0": "GROUP_SUBSCRIBED_TO_TOPIC", f"{other}-0": None}
    assert by_tool.keys() == own.keys() and by_tool[f"{other}-0"] == "Successful"
    assert "GroupSubscribedToTopicException" in by_tool[f"{group}-0"]


def test_deletion_of_offsets_that_do_not_exist(odradek, tool, admin, group):
    delete_offsets = ["group", "delete-offsets"]
    misspelt = odradek(*delete_offsets, group, f"{group}x", "--yes", code=1).err
    assert misspelt == f"odradek: group {group} has no offset in topic {group}x; did you mean {group}?\n"
    for topic in (f"{group}-missing", f"{group}-missing:0"):
        unknown = odradek(*delete_offsets, f"{group}x", topic, "--yes", "--json", code=1)
        assert unknown.errors[0]["code"] == "GROUP_ID_NOT_FOUND"
    by_tool = delete_by_tool(tool, f"{group}x", group)
    assert len(by_tool) == 2 and all("GroupIdNotFoundException" in status for status in by_tool.values())
    assert committed(admin, group) == {0: 4}


def test_offsets_and_a_group_are_deleted(odradek, tool, admin, group):
    odradek("group", "reset", group, "--topic", group, "--to-latest", "--yes")
    assert "Repeat the command with --yes" in odradek("group", "delete-offsets", group, f"{group}:1", code=2).err
    assert odradek("group", "delete-offsets", group, f"{group}:1", "--yes").out == f"offset {group}-1 deleted\n"
    assert committed(admin, group) == {0: 10}
    assert odradek("group", "delete", group, "--dry-run").out == f"group {group} would be deleted\n"
    assert odradek("group", "delete", group, "--yes").out == f"group {group} deleted\n"
    assert group not in tool(tools.CONSUMER_GROUPS, "--list").lines
    for command in ("describe", "lag"):
        assert odradek("group", command, group, code=1).err.startswith(f"odradek: group {group} does not exist")
    assert odradek("group", "delete", group, "--yes", code=1).err.startswith(f"odradek: group {group} does not exist")
