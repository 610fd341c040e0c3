"""Limits of connections, as in Apache Kafka: connections above a limit wait or are closed, until others are closed."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import fail, succeed
from twisted.internet.task import Clock

from odradek.properties import PropertyError
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import ClusterMetadata
from odradek.server.config import BrokerConfig
from odradek.server.config.loading import parse_config
from odradek.server.network.connection_quotas import MAX_ACCEPTS, ConnectionQuotas, CreationRate

LISTENERS = "INTERNAL://127.0.0.1:1,CLIENT://127.0.0.1:2"
PROTOCOLS = "INTERNAL:PLAINTEXT,CLIENT:PLAINTEXT"


class Port:
    """A port; `waiting` has the addresses of the clients in its queue."""

    def __init__(self):
        self.waiting = []
        self.numberAccepts = 100
        self.is_reading = False
        self.factory = SimpleNamespace(acceptor=None)
        self.open = []
        self.accepted_at_once = []

    def startReading(self):  # noqa: N802
        self.is_reading = True

    def stopReading(self):  # noqa: N802
        self.is_reading = False

    def doRead(self):  # noqa: N802
        hosts, self.waiting = self.waiting[: self.numberAccepts], self.waiting[self.numberAccepts :]
        self.accepted_at_once.append(len(hosts))
        for host in hosts:
            release = self.factory.acceptor.admit(host)
            if release is not None:
                self.open.append((host, release))

    def close(self, count=1):
        for _ in range(count):
            _, release = self.open.pop(0)
            release()


class Reactor(Clock):
    """A clock that resolves names at once."""

    def resolve(self, name):
        return succeed("10.0.0.7") if name == "trusted.example" else fail(OSError(name))


class Listening:
    """The quotas of a broker with one or two listeners, and its connections."""

    def __init__(self, *, spare=10_000, **properties):
        values = {name.replace("_", "."): str(value) for name, value in properties.items()}
        clock: Any = Reactor()
        self.clock = clock
        self.spare = spare
        self.closed = []
        self.quotas = ConnectionQuotas(
            self.config(values),
            self.clock,
            protected="INTERNAL",
            spare_descriptors=lambda: self.spare - sum(len(port.open) for port in self.ports.values()),
            margin=lambda: 10,
            close_least_active=lambda count, spared: self.closed.append((count, spared)),
        )
        self.ports = {}
        for listener in self.config(values).endpoints:
            port: Any = Port()
            self.ports[listener.name] = port
            port.factory.acceptor = self.quotas.listen(listener.name, port)
            port.factory.acceptor.start()
        self.port = self.ports.get("CLIENT") or self.ports["PLAINTEXT"]

    @staticmethod
    def config(values):
        if "listener.security.protocol.map" not in values:
            values = {"listeners": "PLAINTEXT://127.0.0.1:1", **values}
        return parse_config(values).config

    def connect(self, *hosts, port=None):
        """Connect clients, and accept connections until nothing changes."""
        (port or self.port).waiting.extend(hosts)
        self.run()

    def run(self):
        for port in self.ports.values():
            while port.is_reading and port.waiting:
                port.doRead()

    def pass_time(self, seconds):
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.run()


def two_listeners(**properties):
    both = {"listeners": LISTENERS, "listener.security.protocol.map": PROTOCOLS}
    return Listening(**both, **{"inter.broker.listener.name": "INTERNAL"}, **properties)


def test_a_listener_accepts_a_bounded_number_in_one_iteration():
    listening = Listening()
    listening.connect(*["h"] * (3 * MAX_ACCEPTS + 1))
    assert listening.port.accepted_at_once == [MAX_ACCEPTS] * 3 + [1]
    assert len(listening.port.open) == 3 * MAX_ACCEPTS + 1


def test_at_max_connections_clients_wait_until_others_are_closed():
    listening = Listening(max_connections=3)
    listening.connect(*["h"] * 5)
    assert (len(listening.port.open), len(listening.port.waiting)) == (3, 2)
    listening.port.close()
    listening.run()
    assert (len(listening.port.open), len(listening.port.waiting)) == (3, 1)
    listening.pass_time(10)
    assert len(listening.port.waiting) == 1
    listening.port.close(3)
    listening.run()
    assert (len(listening.port.open), len(listening.port.waiting)) == (1, 0)


def test_a_connection_to_the_inter_broker_listener_closes_another():
    listening = two_listeners(max_connections=2)
    internal, client = listening.ports["INTERNAL"], listening.ports["CLIENT"]
    listening.connect("a", "b", "c", port=client)
    assert (len(client.open), len(client.waiting)) == (2, 1)
    listening.connect("d", port=internal)
    assert len(internal.open) == 1
    assert listening.closed == [(1, "INTERNAL")]


def test_a_listener_may_have_its_own_limit():
    listening = two_listeners(**{"listener.name.client.max.connections": 1})
    internal, client = listening.ports["INTERNAL"], listening.ports["CLIENT"]
    listening.connect("a", "b", port=client)
    listening.connect("a", "b", port=internal)
    assert (len(client.open), len(client.waiting), len(internal.open)) == (1, 1, 2)


def test_connections_above_the_limit_of_an_address_are_closed_at_once():
    overrides = "10.0.0.1:2, trusted.example:4, unknown.example:9, ::1:0"
    listening = Listening(max_connections_per_ip=1, max_connections_per_ip_overrides=overrides)
    hosts = ["10.0.0.1", "10.0.0.7", "10.0.0.9", "::1"]
    listening.connect(*[host for host in hosts for _ in range(5)])
    counts = [sum(host == one for one, _ in listening.port.open) for host in hosts]
    assert counts == [2, 4, 1, 0]
    assert listening.port.waiting == []


def test_an_ipv4_address_counts_the_same_on_an_ipv6_socket():
    listening = Listening(max_connections_per_ip=2)
    listening.connect("::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1")
    assert len(listening.port.open) == 2
    listening.port.close()
    listening.connect("10.0.0.1")
    assert len(listening.port.open) == 2


def test_connections_above_the_creation_rate_are_accepted_at_that_rate():
    listening = Listening(max_connection_creation_rate=5, quota_window_num=3)
    listening.connect(*["h"] * 100)
    burst = len(listening.port.open)
    assert burst == 11, "the quota of two samples, and the connection that exceeds it"
    listening.pass_time(10)
    assert burst + 40 <= len(listening.port.open) <= burst + 55
    listening.port.close(len(listening.port.open))
    listening.run()
    assert len(listening.port.open) <= 1, "a closed connection does not end a pause"


def test_a_rate_of_zero_accepts_one_connection_a_sample():
    rate = CreationRate(11, 1)
    rate.quota = 0
    assert [rate.record(0.0), rate.record(5.0)] == [1.0, 1.0]


@pytest.mark.parametrize("listener", ["INTERNAL", "CLIENT"])
def test_a_listener_may_have_its_own_creation_rate(listener):
    name = f"listener.name.{listener.lower()}.max.connection.creation.rate"
    listening = two_listeners(**{name: 1, "quota.window.num": 2})
    for port in listening.ports.values():
        listening.connect(*["h"] * 20, port=port)
    counts = {name: len(port.open) for name, port in listening.ports.items()}
    assert counts.pop(listener) == 2
    assert set(counts.values()) == {20}


def test_changed_properties_apply_at_once():
    listening = Listening(max_connections=2)
    listening.connect(*["h"] * 9)
    listening.quotas.update(Listening.config({"max.connections": "5"}))
    listening.run()
    assert len(listening.port.open) == 5
    listening.quotas.update(Listening.config({"max.connections": "1"}))
    assert listening.closed == [(4, "")]
    listening.quotas.update(Listening.config({"max.connections.per.ip": "5"}))
    listening.run()
    assert (len(listening.port.open), len(listening.port.waiting)) == (5, 0)


def test_without_descriptors_clients_wait(caplog):
    listening = Listening(spare=30)
    listening.connect(*["h"] * 40)
    assert (len(listening.port.open), len(listening.port.waiting)) == (20, 20)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("file descriptors run short: new connections wait until others are closed")
    listening.port.close(2)
    listening.run()
    assert (len(listening.port.open), len(listening.port.waiting)) == (20, 18)
    listening.spare = 33
    listening.pass_time(2)
    assert len(listening.port.open) == 23, "descriptors became free, although no connection was closed"
    assert len(caplog.records) == 1


def test_a_few_connections_are_accepted_without_spare_descriptors():
    listening = Listening(spare=0)
    listening.connect(*["h"] * 40)
    assert len(listening.port.open) == 8


def test_a_broker_that_stops_accepts_no_connection():
    listening = Listening(max_connections=1)
    listening.connect("h", "h")
    listening.port.factory.acceptor.stop()
    listening.port.close()
    listening.pass_time(3)
    assert listening.port.open == []
    assert listening.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, "max.connections.per.ip.overrides"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:x"}, "max.connections.per.ip.overrides"),
        ({"max.connections.per.ip": "0"}, "max.connections.per.ip"),
        ({"listener.name.plaintext.max.connections": "0"}, "listener.name.plaintext.max.connections"),
        (
            {"listener.name.plaintext.max.connection.creation.rate": "x"},
            "listener.name.plaintext.max.connection.creation.rate",
        ),
    ],
)
def test_invalid_values_are_refused(values, names):
    with pytest.raises(PropertyError) as refused:
        parse_config(values)
    assert refused.value.name == names


def test_a_configuration_keeps_the_limits_of_listeners():
    name = "listener.name.client.max.connections"
    config = BrokerConfig({name: "7", "listeners": "PLAINTEXT://127.0.0.1:1"})
    assert config.listener_properties == {("CLIENT", "max.connections"): 7}
    assert config.replace({"num.partitions": "2"}).listener_properties == {("CLIENT", "max.connections"): 7}
    assert config.replace({name: None}).listener_properties == {}
    assert name in repr(config)


def test_dynamic_configurations_limit_listeners():
    name = "listener.name.client.max.connections"
    configs = BrokerConfigs(1, BrokerConfig({name: "7", "listeners": "PLAINTEXT://127.0.0.1:1"}), ClusterMetadata())
    for default, own, expected in (({}, {}, 7), ({name: "5"}, {}, 5), ({name: "5"}, {name: "3"}, 3)):
        config = configs.resolve(default, own)
        assert isinstance(config, BrokerConfig)
        assert config.listener_properties["CLIENT", "max.connections"] == expected
    with pytest.raises(PropertyError):
        configs.resolve({name: "0"}, {})
