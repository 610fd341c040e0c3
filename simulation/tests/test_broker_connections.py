"""Connections between brokers, cuts, pauses and clocks of machines."""

from random import Random

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError, TimeoutError
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone

from odradek.simulation.api import ConnectionLost as ClientConnectionLost
from odradek.simulation.machine.broker_process import ProcessReactor, Tempo
from odradek.simulation.world import World

ONE, TWO = "broker-1", "broker-2"


class Recorder(Protocol):
    def __init__(self):
        self.data = b""
        self.reason = None

    def dataReceived(self, data):  # noqa: N802
        self.data += data

    def connectionLost(self, reason=connectionDone):  # noqa: N802
        self.reason = reason.value


class Server(Factory):
    def __init__(self):
        self.made = []

    def buildProtocol(self, addr):  # noqa: N802
        self.made.append(Recorder())
        return self.made[-1]


class Client(ClientFactory):
    noisy = False

    def __init__(self):
        self.protocol_made = Recorder()
        self.failure = None
        self.lost = None

    def buildProtocol(self, addr):  # noqa: N802
        return self.protocol_made

    def clientConnectionFailed(self, connector, reason):  # noqa: N802
        self.failure = reason.value

    def clientConnectionLost(self, connector, reason):  # noqa: N802
        self.lost = reason.value


class Pair:
    """Two processes without brokers; the second listens."""

    def __init__(self):
        self.world = World(1, broker_count=3)
        self.network = self.world.network
        self.one, self.two = (ProcessReactor(self.world, self.world.brokers[number], Random(1)) for number in (0, 1))
        self.server = Server()
        self.two.listenTCP(9092, self.server, interface=TWO)

    def connect(self, timeout=30):
        client = Client()
        self.one.connectTCP(TWO, 9092, client, timeout)
        return client

    def connected(self):
        client = self.connect()
        self.wait(lambda: client.protocol_made.connected)
        return client, self.server.made[-1]

    def wait(self, until, limit_s=60):
        assert self.world.run(until, limit_s)

    def pass_time(self, seconds):
        passed = self.world.sleep(seconds)
        assert self.world.run(lambda: passed.called, seconds + 1)


@pytest.fixture
def pair():
    return Pair()


def test_bytes_go_both_ways(pair):
    client, server = pair.connected()
    client.protocol_made.transport.write(b"ping" * 1000)
    server.transport.write(b"pong" * 1000)
    pair.wait(lambda: server.data == b"ping" * 1000 and client.protocol_made.data == b"pong" * 1000)
    client.protocol_made.transport.loseConnection()
    pair.wait(lambda: server.reason is not None and client.lost is not None)
    assert isinstance(server.reason, ConnectionDone)
    assert not pair.network.links


def test_a_closed_port_refuses(pair):
    client = Client()
    pair.one.connectTCP("broker-3", 9092, client)
    pair.wait(lambda: client.failure is not None, 1)
    assert isinstance(client.failure, ConnectionRefusedError)


@pytest.mark.parametrize("route", [(ONE, TWO), (TWO, ONE)])
def test_a_host_that_cannot_be_reached_does_not_answer(pair, route):
    pair.network.cut([route])
    client = pair.connect(timeout=5)
    pair.pass_time(4.9)
    assert client.failure is None
    pair.wait(lambda: client.failure is not None, 1)
    assert isinstance(client.failure, TimeoutError)


def test_a_connection_is_made_soon_after_a_cut(pair):
    """TCP sends its first packet after 1, 3 and 7 seconds again."""
    pair.network.cut([(ONE, TWO)])
    client = pair.connect()
    pair.pass_time(4)
    pair.network.heal()
    pair.pass_time(2.5)
    assert not client.protocol_made.connected
    pair.wait(lambda: client.protocol_made.connected, 1)


def test_disconnect_stops_connecting(pair):
    pair.network.cut([(ONE, TWO)])
    client = Client()
    pair.one.connectTCP(TWO, 9092, client).disconnect()
    assert client.failure is not None


def test_a_cut_delays_one_direction(pair):
    client, server = pair.connected()
    pair.network.cut([(ONE, TWO)])
    client.protocol_made.transport.write(b"late")
    server.transport.write(b"soon")
    pair.wait(lambda: client.protocol_made.data == b"soon", 1)
    pair.pass_time(10)
    assert server.data == b""
    pair.network.heal()
    pair.wait(lambda: server.data == b"late", 1)


def test_the_end_of_a_process_is_noticed_after_the_cut(pair):
    client, _ = pair.connected()
    pair.network.cut([(TWO, ONE)])
    pair.two.is_alive = False
    pair.network.process_died(pair.two)
    pair.pass_time(10)
    assert client.lost is None
    pair.network.heal()
    pair.wait(lambda: client.lost is not None, 1)
    assert isinstance(client.lost, ConnectionLost)


def test_a_power_loss_leaves_a_half_open_connection(pair):
    client, server = pair.connected()
    pair.two.is_alive = False
    pair.network.process_died(pair.two, is_silent=True)
    client.protocol_made.transport.write(b"unread")
    pair.pass_time(10)
    assert client.lost is None
    pair.network.machine_up(TWO)
    pair.wait(lambda: client.lost is not None, 1)
    assert server.data == b""


def test_the_end_of_the_connecting_process_is_noticed(pair):
    _, server = pair.connected()
    pair.one.is_alive = False
    pair.network.process_died(pair.one)
    pair.wait(lambda: server.reason is not None, 1)


def test_a_client_cannot_connect_through_a_cut(pair):
    pair.network.cut([("client", TWO)])
    failures = []
    pair.network.connect((TWO, 9092)).addErrback(lambda failure: failures.append(failure.value))
    pair.wait(lambda: bool(failures), 10)
    assert isinstance(failures[0], ClientConnectionLost)


def test_a_paused_process_reads_its_input_before_its_timers(pair):
    client, server = pair.connected()
    order = []
    server.dataReceived = order.append
    pair.two.callLater(1.0, order.append, b"timer")
    cancelled = pair.two.callLater(2.0, order.append, b"cancelled")
    server.connectionLost = lambda reason: cancelled.cancel()
    pair.two.pause(5)
    client.protocol_made.transport.write(b"input")
    client.protocol_made.transport.loseConnection()
    pair.pass_time(4.9)
    assert order == []
    pair.pass_time(0.2)
    assert order == [b"input", b"timer"]


def test_machines_have_their_own_clocks(pair):
    process = pair.world.brokers[2]
    process.tempo = Tempo(1000.0, 1.01)
    reactor = ProcessReactor(pair.world, process, Random(1))
    assert reactor.seconds() == 1000.0
    called = []
    call = reactor.callLater(10.1, lambda: called.append(pair.world.clock.seconds()))
    assert call.getTime() - reactor.seconds() == pytest.approx(10.1, abs=0.01)
    pair.wait(lambda: bool(called))
    assert called[0] == pytest.approx(10.0, abs=0.01)
