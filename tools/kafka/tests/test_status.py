"""Status of a cluster: states of partitions, formats, addresses; and responses that cannot be read."""

import json
import socket
import threading

import pytest

from odradek.server.cluster_tools.local_directory import replication_properties
from odradek.tools.kafka.connection.connection_errors import API, StepError
from odradek.tools.kafka.connection.wire_client import Address, WireClient, parse_addresses
from odradek.tools.kafka.status import MOST_ROWS, BrokerRow, ClusterStatus, PartitionRow

BROKERS = [BrokerRow(1, "one", 9092, "a"), BrokerRow(2, "::1", 9093, None)]


def status(*partitions):
    return ClusterStatus("id", 1, BROKERS, list(partitions))


@pytest.mark.parametrize(
    ("row", "states", "is_at_min_isr"),
    [
        (PartitionRow("t", 0, 1, [1, 2], [1, 2], 2), [], True),
        (PartitionRow("t", 0, 1, [1, 2], [1, 2], 1), [], False),
        (PartitionRow("t", 0, 1, [1, 2], [1], 1), ["under-replicated"], True),
        (PartitionRow("t", 0, 1, [1, 2], [1], 2), ["under min ISR", "under-replicated"], False),
        (PartitionRow("t", 0, 1, [1], [1], 2), [], True),
        (PartitionRow("t", 0, 1, [1, 2], [1], 3), ["under min ISR", "under-replicated"], False),
        (PartitionRow("t", 0, None, [1], [1], 1), ["offline", "under min ISR"], True),
        (PartitionRow("t", 0, None, [1, 2], [], 1), ["offline", "under min ISR", "under-replicated"], False),
        (PartitionRow("t", 0, 1, [1, 2], [1], None), ["under-replicated"], False),
    ],
)
def test_states(row, states, is_at_min_isr):
    assert (row.states, row.is_at_min_isr) == (states, is_at_min_isr)
    assert status(row).is_healthy == (not states)


def test_a_table():
    offline = PartitionRow("topic", 0, None, [3, 4], [], None)
    found = ClusterStatus(None, None, BROKERS, [offline, PartitionRow("topic", 1, 1, [1], [1], 1)])
    assert found.as_table() == (
        "cluster           unknown\n"
        "controller        none\n"
        "brokers           2 (not live: 3, 4)\n"
        "partitions        2 in 1 topic\n"
        "offline           1\n"
        "under min ISR     1\n"
        "at min ISR        1\n"
        "under-replicated  1\n"
        "\n"
        "BROKER  ADDRESS     RACK\n"
        "1       one:9092    a\n"
        "2       [::1]:9093  -\n"
        "\n"
        "PARTITION  LEADER  REPLICAS  ISR  MIN ISR  STATE\n"
        "topic-0    none    3,4       -    ?        offline, under min ISR, under-replicated\n"
    )


def test_a_table_has_a_limit_and_json_has_none():
    found = status(*(PartitionRow("t", index, None, [1], [1], 1) for index in range(MOST_ROWS + 7)))
    assert found.as_table().endswith("and 7 more; --json lists all\n")
    assert len(json.loads(found.as_json())["offline"]) == MOST_ROWS + 7


def test_addresses():
    assert parse_addresses("a:1, [::1]:2,") == [Address("a", 1), Address("::1", 2)]
    for invalid in ("a", "a:", ":1", "a:0", "a:65536", "a:-1", "", "[]:1", "a..b:1", f"{'a' * 64}:1"):
        with pytest.raises(ValueError, match=r"host:port"):
            parse_addresses(invalid)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (b"", "the broker closed the connection"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "a response of 352518912 bytes"),
        (b"\0\0\0\4\0\0\0\7", "correlation id 7 instead of 1"),
        (b"\0\0\0\5\0\0\0\1\0", "ApiVersionsResponse v0: "),
    ],
)
def test_a_server_of_another_kind(response, why):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(response)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StepError) as failed:
            WireClient(address)
        thread.join()
    error = failed.value
    assert (error.step, error.address) == (API, str(address)) and error.reason.startswith(why)
    assert "security.protocol" in error.hint and str(error).endswith(f"({error.hint})")


@pytest.mark.parametrize(("size", "factor", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_replication_factors(size, factor, min_isr):
    properties = replication_properties(size)
    assert {value for name, value in properties.items() if name.endswith("factor")} == {factor}
    assert {properties["min.insync.replicas"], properties["transaction.state.log.min.isr"]} == {min_isr}
