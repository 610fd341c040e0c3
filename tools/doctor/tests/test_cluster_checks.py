"""Checks through the wire: states of a cluster, addresses, disks, versions, clocks, the metrics endpoint."""

from typing import Any

import pytest

from odradek.tools.doctor.brokers import check_log_dirs, check_metrics, check_versions, judge_clock
from odradek.tools.doctor.findings import State
from odradek.tools.doctor.reachability import AdvertisedListener, check_connection, check_listener, parse_listeners
from odradek.tools.doctor.state import check_state
from odradek.tools.kafka.connection.connection_errors import NAME, StepError
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity
from odradek.tools.kafka.status import BrokerRow, ClusterStatus, PartitionRow
from odradek.tools.kafka.topics.log_dirs import LogDir

BROKERS = [BrokerRow(1, "one", 9092, None), BrokerRow(2, "two", 9092, None)]
OFFSETS = "__consumer_offsets"
REMOTE = Address("broker.example", 9092)


def find_states(*partitions, controller=1, brokers=BROKERS):
    found = check_state(ClusterStatus("id", controller, brokers, list(partitions)))
    return {finding.check: finding.state.value for finding in found if finding.state is not State.OK}


@pytest.mark.parametrize(
    ("row", "states"),
    [
        (PartitionRow("t", 0, 1, [1, 2], [1, 2], 1), {}),
        (PartitionRow("t", 0, 1, [1], [1], 1), {}),
        (PartitionRow("t", 0, 1, [1, 2], [1, 2], 2), {"min.insync.replicas": "warning"}),
        (PartitionRow("t", 0, 1, [1], [1], 2), {"min.insync.replicas": "warning"}),
        (PartitionRow("t", 0, 1, [1, 2], [1], 1), {"under-replicated partitions": "problem"}),
        (
            PartitionRow("t", 0, None, [1, 3], [], 1),
            {"offline partitions": "problem", "partitions under min ISR": "problem", "brokers": "problem"},
        ),
        (PartitionRow("t", 0, 1, [1], [1], None), {"min.insync.replicas": "unchecked"}),
        (PartitionRow(OFFSETS, 0, 1, [1], [1], 1), {"internal topics": "problem"}),
        (PartitionRow(OFFSETS, 0, 1, [1, 2], [1, 2], 1), {}),
    ],
)
def test_states_of_a_cluster(row, states):
    assert find_states(row) == states


def test_a_missing_controller_and_a_broker_alone():
    alone = PartitionRow(OFFSETS, 0, 1, [1], [1], 1)
    assert find_states(alone, controller=None, brokers=BROKERS[:1]) == {"controller": "problem"}


@pytest.mark.parametrize(
    ("host", "bootstrap", "state"),
    [
        ("broker.example", "10.0.0.1", State.OK),
        ("localhost", "localhost", State.WARNING),
        ("127.0.0.1", "localhost", State.WARNING),
        ("localhost.localdomain", "10.0.0.1", State.PROBLEM),
        ("0.0.0.0", "10.0.0.1", State.PROBLEM),
        ("::1", "broker.example", State.PROBLEM),
        ("169.254.7.7", "10.0.0.1", State.PROBLEM),
    ],
)
def test_advertised_addresses_that_other_machines_cannot_reach(host, bootstrap, state):
    made: Any = object()
    client, finding = check_connection(1, Address(host, 9092), Address(bootstrap, 9092), lambda: made)
    assert client is made
    assert (finding.state, bool(finding.fix)) == (state, state is not State.OK)


def fail(*_):
    raise StepError(str(REMOTE), NAME, "Name or service not known", "check DNS")


def test_an_unreachable_address_has_the_failed_step():
    client, finding = check_connection(3, REMOTE, Address("10.0.0.1", 9092), fail)
    assert client is None
    assert finding[:3] == (State.PROBLEM, "broker 3", "advertised address")
    assert finding.fact == "broker.example:9092 is not reachable from here: name lookup: Name or service not known"
    assert finding.fix.startswith("check DNS; otherwise set advertised.listeners")


def test_listeners_of_a_configuration():
    properties = {
        "listeners": "PLAINTEXT://:9092",
        "advertised.listeners": "IN://ten:9092, OUT://[::1]:9093,ALL://0.0.0.0:9094,SSL://free:0,CTL://ten:9095,NO://x:1",
        "controller.listener.names": "CTL",
        "listener.security.protocol.map": "IN:SASL_SSL,OUT:PLAINTEXT,CTL:PLAINTEXT",
    }
    assert list(parse_listeners(properties)) == [
        AdvertisedListener("IN", Address("ten", 9092), "SASL_SSL"),
        AdvertisedListener("OUT", Address("::1", 9093), "PLAINTEXT"),
        AdvertisedListener("NO", Address("x", 1), None),
    ]
    by_default = list(parse_listeners({"listeners": "SSL://ten:9093", "advertised.listeners": None}))
    assert by_default == [AdvertisedListener("SSL", Address("ten", 9093), "SSL")]


class Closing:
    def close(self):
        pass


@pytest.mark.parametrize(
    ("protocol", "has_tls", "note"),
    [
        ("PLAINTEXT", False, "name lookup, connection, API"),
        ("SASL_PLAINTEXT", False, "name lookup, connection, API; no login was tried"),
        ("SSL", True, "name lookup, connection, TLS, API; the certificate was not verified"),
    ],
)
def test_other_listeners_are_tried_without_a_login(protocol, has_tls, note):
    tried = []

    def connect(address, security):
        tried.append((address, security.sasl, security.tls_context is not None))
        return Closing()

    login: Any = object()
    finding = check_listener(1, AdvertisedListener("L", REMOTE, protocol), ClientSecurity(sasl=login), connect)
    assert tried == [(REMOTE, None, has_tls)]
    assert (finding.state, finding.fact) == (State.OK, f"listener L broker.example:9092: {note}")


def test_other_listeners_that_cannot_be_reached_or_tried():
    assert check_listener(1, AdvertisedListener("L", REMOTE, "PLAINTEXT"), ClientSecurity(), fail)[0] is State.WARNING
    assert check_listener(1, AdvertisedListener("L", REMOTE, None), ClientSecurity(), fail)[0] is State.UNCHECKED


def make_log_dir(usable, total=1000, error=None, is_cordoned=False):
    return LogDir(1, "/data", error, total, usable, is_cordoned, [])


@pytest.mark.parametrize(
    ("log_dirs", "states"),
    [
        ([make_log_dir(500)], ["ok"]),
        ([make_log_dir(149)], ["warning"]),
        ([make_log_dir(49)], ["problem"]),
        ([make_log_dir(None, None)], ["unchecked"]),
        ([make_log_dir(None, None, "KAFKA_STORAGE_ERROR"), make_log_dir(500)], ["problem", "ok"]),
        ([make_log_dir(500, is_cordoned=True)], ["ok", "warning"]),
        ([], ["unchecked"]),
    ],
)
def test_log_directories(log_dirs, states):
    assert [finding.state for finding in check_log_dirs(1, log_dirs)] == states


def test_versions_that_differ():
    one, two = {0: (3, 13), 1: (4, 17)}, {0: (3, 13), 1: (4, 18)}
    assert check_versions({1: one}, 1).state is State.OK
    assert check_versions({1: one}, 3).state is State.UNCHECKED
    assert check_versions({1: one, 2: one}, 2).state is State.OK
    finding = check_versions({1: one, 2: one, 3: two}, 3)
    assert finding.state is State.WARNING
    assert finding.fact == "broker 3 and broker 1 serve different versions of Fetch"


@pytest.mark.parametrize(
    ("reported_ms", "state", "fact"),
    [
        (100_050, State.OK, "less than one second"),
        (99_500, State.OK, "less than one second"),
        (98_000, State.WARNING, "2.0 s behind"),
        (105_100, State.WARNING, "5.0 s ahead of"),
        (30_000, State.PROBLEM, "70.0 s behind"),
    ],
)
def test_a_clock_outside_of_the_times_of_request_and_response(reported_ms, state, fact):
    finding = judge_clock(reported_ms, sent_ms=100_000, received_ms=100_100)
    assert finding.state is state and finding.fact.startswith(fact)


@pytest.mark.parametrize(
    ("listener", "answer", "url", "state"),
    [
        ("127.0.0.1:9404", (200, ""), "http://127.0.0.1:9404/readyz", State.OK),
        (":9404", (200, ""), "http://broker.example:9404/readyz", State.OK),
        ("[::]:9404", (503, "1 partitions are offline: t-0\n"), "http://broker.example:9404/readyz", State.PROBLEM),
        ("[fd00::1]:9404", OSError("no"), "http://[fd00::1]:9404/readyz", State.WARNING),
    ],
)
def test_the_metrics_endpoint(listener, answer, url, state):
    asked = []

    def get_url(given):
        asked.append(given)
        if isinstance(answer, OSError):
            raise answer
        return answer

    finding = check_metrics(1, "broker.example", listener, get_url)
    assert (asked, finding.state) == ([url], state)
    assert state is not State.PROBLEM or finding.fact == f"{url}: 503 1 partitions are offline: t-0"


def test_a_metrics_endpoint_on_any_port():
    assert check_metrics(1, "broker.example", "127.0.0.1:0", fail).state is State.UNCHECKED
