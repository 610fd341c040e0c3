"""At max.connections clients wait, above max.connections.per.ip they are refused; both may change at run time."""

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not exported explicitly
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from compat_tests import limits
from compat_tests.bad_frames import ClosedError, Connection
from compat_tests.clients.common import wait_until

pytestmark = pytest.mark.side_by_side

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PATIENCE_S = 0.7


@pytest.fixture
def connect() -> Iterator[Callable[[int], Connection]]:
    """Open connections, which are closed at the end."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(Connection(port))


def ask(connection: Connection) -> None:
    connection.send(API_VERSIONS)


def is_answered(connection: Connection, timeout_s: float = limits.CONDITION_S) -> bool:
    """Return whether a request gets a response. Raises ClosedError."""
    connection.socket.settimeout(timeout_s)
    try:
        connection.receive()
    except TimeoutError:
        return False
    return True


def test_at_max_connections_a_client_waits_until_another_disconnects(
    start_broker: Callable[..., Any], connect: Callable[[int], Connection]
) -> None:
    broker = start_broker({"max.connections": "3"})
    connections = [connect(broker.port) for _ in range(5)]
    for connection in connections:
        ask(connection)
    assert [is_answered(connection) for connection in connections[:3]] == [True] * 3
    assert [is_answered(connection, PATIENCE_S) for connection in connections[3:]] == [False] * 2
    connections[0].socket.close()
    assert is_answered(connections[3])
    assert not is_answered(connections[4], PATIENCE_S)
    for connection in connections[1:3]:
        connection.socket.close()
    assert is_answered(connections[4])


def test_a_connection_over_the_limit_of_its_address_is_closed(
    start_broker: Callable[..., Any], connect: Callable[[int], Connection]
) -> None:
    broker = start_broker({"max.connections.per.ip": "20", "max.connections.per.ip.overrides": "127.0.0.1:4"})
    connections = [connect(broker.port) for _ in range(4)]
    for connection in connections:
        ask(connection)
        assert is_answered(connection)
    assert connect(broker.port).is_closed()
    connections[0].socket.close()

    wait_until(lambda: are_accepted(broker.port, 1))
    connections[1].socket.close()
    connections[2].socket.close()
    wait_until(lambda: are_accepted(broker.port, 3))
    assert not are_accepted(broker.port, 8)
    set_limit_per_address(broker, 50)
    wait_until(lambda: are_accepted(broker.port, 8))


def are_accepted(port: int, count: int) -> bool:
    """Return whether `count` further connections get responses."""
    with ExitStack() as stack:
        connections = [stack.enter_context(Connection(port)) for _ in range(count)]
        try:
            for connection in connections:
                ask(connection)
            return all(is_answered(connection) for connection in connections)
        except (ClosedError, OSError):
            return False


def set_limit_per_address(broker: Any, most: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    name = "max.connections.per.ip.overrides"
    entries = [ConfigEntry(name, f"127.0.0.1:{most}", incremental_operation=AlterConfigOpType.SET)]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    for outcome in admin.incremental_alter_configs([resource]).values():
        outcome.result(timeout=limits.CONDITION_S)
