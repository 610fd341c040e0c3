"""Commands in a cluster of two brokers, compared with kafka-reassign-partitions, kafka-topics and others."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.cluster import ApacheKafkaCluster
from compat_tests.clients import load
from compat_tests.clients.common import Message, ProducerOptions, wait_until
from compat_tests.tools.eventually import eventually
from odradek.testing_cluster import OdradekCluster

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(180)]

CLIENT = load("confluent")
# The tests compare leaders and ISRs, which change when a broker that is only slow loses its session or lags behind.
CLUSTERS: dict[str, Callable[..., Any]] = {
    "odradek": partial(OdradekCluster, session_timeout_ms=10_000),
    "kafka": ApacheKafkaCluster,
}
PROPERTIES = {
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.replication.factor": "1",
    "replica.lag.time.max.ms": "60000",
}
RATE = "1000"
SLOW = ["--throttle", RATE]


@pytest.fixture(scope="module")
def broker(backend, kafka_jars):
    """A cluster of two brokers, whose addresses are those of the commands."""
    with CLUSTERS[backend](PROPERTIES, size=2) as started:
        yield started


@pytest.fixture
def filled(odradek, broker, unique):
    """Topics with 3 MB in their only partition, on broker 1."""
    names = [f"{unique}-own", f"{unique}-tool"]
    odradek("topic", "create", *names, "--replica-assignment", "1")
    with CLIENT.Producer(broker.bootstrap_servers, ProducerOptions()) as producer:
        for name in names:
            producer.produce(name, [Message(b"%02d" % n * 50_000, partition=0) for n in range(30)])
    return names


@pytest.fixture
def plan(tmp_path):
    """Write a plan that gives partition 0 of a topic some replicas; return its file."""

    def write(topic, *replicas):
        file = tmp_path / f"{topic}.json"
        entries = [{"topic": topic, "partition": 0, "replicas": list(replicas)}]
        file.write_text(json.dumps({"version": 1, "partitions": entries}))
        return str(file)

    return write


def list_by_tool(tool):
    """Return replicas, added and removed ones of each partition, as kafka-reassign-partitions shows them."""
    shown = tool(tools.REASSIGN_PARTITIONS, "--list").stdout
    rows = re.findall(r"^(\S+): replicas: (\S*)\.(?: adding: (\S*)\.)?(?: removing: (\S*)\.)?$", shown, re.MULTILINE)
    return {name: tuple(rest) for name, *rest in rows}


def list_reassignments(odradek):
    rows = odradek("partition", "reassign", "list", "--json").json
    keys = ("replicas", "adding", "removing")
    return {f"{row['topic']}-{row['partition']}": tuple(",".join(map(str, row[key])) for key in keys) for row in rows}


def describe_by_tool(tool, topic):
    """Return leader, replicas and ISR of partition 0, as kafka-topics shows them."""
    shown = tool(tools.TOPICS, "--describe", "--topic", topic).stdout
    return re.search(r"Partition: 0\s+Leader: (\d+)\s+Replicas: (\S+)\s+Isr: (\S+)", shown).groups()


def describe_throttles(tool, topic):
    """Return the throttles of a topic and of the brokers, as kafka-configs shows them."""
    found = {}
    for kind, name in (("topics", topic), ("brokers", "1"), ("brokers", "2")):
        shown = tool(tools.CONFIGS, "--describe", "--entity-type", kind, "--entity-name", name).stdout
        throttles = re.findall(r"^  (\S+\.throttled\.\w+)=(\S*) sensitive", shown, re.MULTILINE)
        found[kind, "" if kind == "topics" else name] = dict(throttles)
    return found


def test_a_throttled_reassignment_is_listed_and_cancelled(odradek, tool, filled, plan):
    own, other = filled
    files = {name: plan(name, 2) for name in filled}
    planned = odradek("partition", "reassign", "apply", files[own], *SLOW, "--dry-run", "--json").json
    assert planned["changes"] == [{"topic": own, "partition": 0, "before": [1], "after": [2]}]
    assert list_by_tool(tool) == {} and describe_throttles(tool, own)["topics", ""] == {}

    odradek("partition", "reassign", "apply", files[own], *SLOW, "--yes")
    throttles = {}
    wait_until(lambda: list_by_tool(tool))

    def check_own_throttles():
        throttles.update(describe_throttles(tool, own))
        assert throttles["topics", ""] == {
            "leader.replication.throttled.replicas": "0:1",
            "follower.replication.throttled.replicas": "0:2",
        }

    eventually(check_own_throttles)
    tool(tools.REASSIGN_PARTITIONS, "--reassignment-json-file", files[other], "--execute", "--additional", *SLOW)

    def check_both():
        expected = {f"{name}-0": ("2,1", "2", "1") for name in filled}
        assert list_reassignments(odradek) == list_by_tool(tool) == expected
        assert describe_throttles(tool, other) == throttles == describe_throttles(tool, own)
        assert throttles["brokers", "1"] == throttles["brokers", "2"]
        assert set(throttles["brokers", "1"].values()) == {RATE}

    eventually(check_both)
    busy = odradek("partition", "reassign", "plan", other, "--brokers", "1", code=1).err
    assert busy == f"odradek: {other}-0 is being reassigned; wait, or cancel it first\n"

    odradek("partition", "reassign", "cancel", files[own], "--yes")
    tool(tools.REASSIGN_PARTITIONS, "--reassignment-json-file", files[other], "--cancel", "--preserve-throttles")

    def check_cancelled():
        assert list_reassignments(odradek) == list_by_tool(tool) == {}
        assert describe_by_tool(tool, own) == describe_by_tool(tool, other) == ("1", "1", "1")
        assert describe_throttles(tool, own) == describe_throttles(tool, other) == throttles

    eventually(check_cancelled)
    odradek("partition", "reassign", "unthrottle", *filled)

    def check_unthrottled():
        for name in filled:
            assert set(map(len, describe_throttles(tool, name).values())) == {0}

    eventually(check_unthrottled)


def test_partitions_move(odradek, tool, filled, plan):
    """The command moves one topic and Kafka's tool another; each verifies the move of the other."""
    own, other = filled
    files = {name: plan(name, 2, 1) for name in filled}
    odradek("partition", "reassign", "apply", files[own], "--yes")
    tool(tools.REASSIGN_PARTITIONS, "--reassignment-json-file", files[other], "--execute", "--additional")

    def check_moved():
        assert list_reassignments(odradek) == list_by_tool(tool) == {}
        verified = tool(tools.REASSIGN_PARTITIONS, "--reassignment-json-file", files[own], "--verify").stdout
        assert f"Reassignment of partition {own}-0 is completed." in verified
        for name in filled:
            leader, replicas, isr = describe_by_tool(tool, name)
            assert (leader, replicas, set(isr.split(","))) == ("1", "2,1", {"1", "2"})
        again = odradek("partition", "reassign", "apply", files[other], "--yes").out
        assert again.splitlines()[1:] == []

    eventually(check_moved)


def test_preferred_leaders_are_elected(odradek, tool, filled, plan):
    own, other = filled
    for name in filled:
        odradek("partition", "reassign", "apply", plan(name, 2, 1), "--yes")
    wait_until(lambda: all(describe_by_tool(tool, name)[1:] in (("2,1", "1,2"), ("2,1", "2,1")) for name in filled))
    [planned] = odradek("partition", "elect", own, "--dry-run", "--json").json
    assert (planned["leader"], planned["preferred_leader"]) == (1, 2)
    assert describe_by_tool(tool, own)[0] == "1"
    done = odradek("partition", "elect", f"{own}:0").out
    elect = ["--election-type", "preferred", "--topic", other, "--partition", "0"]
    shown = tool(tools.LEADER_ELECTION, *elect).stdout
    assert done == f"partition {own}-0 elected\n"
    assert f"Successfully completed leader election (PREFERRED) for partitions {other}-0" in shown
    wait_until(lambda: all(describe_by_tool(tool, name)[0] == "2" for name in filled))
    shown = tool(tools.LEADER_ELECTION, *elect[:-3], own, "--partition", "0").stdout
    assert f"Valid replica already elected for partitions {own}-0" in shown
    again = odradek("partition", "elect", f"{other}:0").out
    assert again == f"partition {other}-0 elected earlier; there was nothing to do\n"
    assert odradek("partition", "elect", "--json", own).json["results"][0]["partition"] == f"{own}-0"


def list_partitions_by_tool(tool, option):
    """Return the partitions that kafka-topics --describe selects."""
    shown = tool(tools.TOPICS, "--describe", option).stdout
    return set(re.findall(r"Topic: (\S+)\s+Partition: (\d+)\s", shown))


OPTIONS = {
    "under_replicated": "--under-replicated-partitions",
    "under_min_isr": "--under-min-isr-partitions",
    "at_min_isr": "--at-min-isr-partitions",
    "offline": "--unavailable-partitions",
}


def test_the_state_while_a_broker_is_down(odradek, tool, broker, backend, unique):
    for name, assignment, least in (("both", "1:2", 1), ("least", "1:2", 2), ("second", "2", 1)):
        configs = ["--config", f"min.insync.replicas={least}"]
        odradek("topic", "create", f"{unique}-{name}", "--replica-assignment", assignment, *configs)

    def check(code, expected):
        found = odradek("cluster", "status", "--json", code=code).json
        state = {key: {(row["topic"], str(row["partition"])) for row in found[key]} for key in OPTIONS}
        assert state == {key: list_partitions_by_tool(tool, option) for key, option in OPTIONS.items()}
        own = {key: {topic.removeprefix(f"{unique}-") for topic, _ in rows} for key, rows in state.items()}
        assert {key: names & {"both", "least", "second"} for key, names in own.items()} == expected
        for option, key in (("--under-replicated", "under_replicated"), ("--unavailable", "offline")):
            rows = odradek("partition", "list", "--internal", option, "--json", code=None).json
            assert {(row["topic"], str(row["partition"])) for row in rows} == state[key]

    healthy = {"under_replicated": set(), "under_min_isr": set(), "at_min_isr": {"least", "second"}, "offline": set()}
    eventually(lambda: check(0, healthy))
    broker.stop_broker(2)
    try:
        # Kafka's controllers remove also the last member of an ISR (KIP-966).
        has_last = backend == "odradek"
        down = {
            "under_replicated": {"both", "least"} if has_last else {"both", "least", "second"},
            "under_min_isr": {"least", "second"},
            "at_min_isr": {"both", "second"} if has_last else {"both"},
            "offline": {"second"},
        }
        eventually(lambda: check(1, down))
    finally:
        broker.start_broker(2)
    eventually(lambda: check(0, healthy))
