"""Connections to other brokers with TLS: the handshake, its failures, the end, and the order of the bytes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.framing import FrameSplitter
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.channel import TcpBrokerChannel
from odradek.server.brokers.tls import connect_with_tls
from odradek.server.config.broker import BrokerConfig
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.server.security.tls.contexts import make_client_context, make_server_context
from odradek.server.security.tls.layer import TlsError, TlsLayer
from odradek.server.security.tls.tests.support import tls_properties
from odradek.server.tests.broker_network import FakeNetwork, read_request, response_frame


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    write_test_certificates(path, datetime.now(UTC))
    return path


class Caller:
    """A channel with TLS, and the other broker's side of its connection."""

    def __init__(
        self, directory: Path, *, host: str = "localhost", client_auth: str = "none", has_key: bool = True
    ) -> None:
        properties = tls_properties(directory, ssl_client_auth=client_auth)
        self.network = FakeNetwork()
        self.server = TlsLayer(make_server_context(BrokerConfig(properties).tls_settings("SSL")))
        if not has_key:
            del properties["ssl.keystore.location"]
        context = make_client_context(BrokerConfig(properties).tls_settings("SSL"))
        self.channel = TcpBrokerChannel(
            "broker 2", host, 9093, client_id="1", timeout_ms=3000,
            connect=connect_with_tls(self.connect, lambda: context), clock=self.network.clock,
            slices=self.network.slices,
        )  # fmt: skip
        self.outcome: Any = None
        sent: Deferred[Any] = Deferred.fromCoroutine(
            self.channel.send(HeartbeatRequest(group_id="g"), HeartbeatResponse, 4)
        )
        sent.addBoth(self._set_outcome)

    def connect(self, host: str, port: int, factory: Any) -> Any:
        link = self.network.connect(host, port, factory)
        factory.startedConnecting(link)
        return link

    def _set_outcome(self, outcome: Any) -> None:
        self.outcome = getattr(outcome, "value", outcome)

    @property
    def link(self) -> Any:
        return self.network.links[-1]

    def receive(self) -> bytes:
        """Return what the other broker decrypts, after it has sent what TLS requires."""
        data, self.link._received = bytes(self.link._received), bytearray()
        try:
            return self.server.receive(data)
        finally:
            self.deliver()

    def deliver(self) -> None:
        if output := self.server.take_output():
            self.link.deliver(output)

    def shake_hands(self) -> bytes:
        """Return the first request."""
        self.link.accept()
        return self.receive() + self.receive()

    def failure(self) -> str:
        assert isinstance(self.outcome, BrokerUnavailableError)
        return str(self.outcome)


def test_a_request_and_its_response(directory: Path) -> None:
    caller = Caller(directory)
    (frame,) = FrameSplitter(1000).feed(caller.shake_hands())
    request = read_request(frame)
    caller.server.encrypt(response_frame(HeartbeatResponse(error_code=7), 4, request.correlation_id))
    caller.deliver()
    assert caller.outcome.error_code == 7


@pytest.mark.parametrize("room_bytes", [0, 1, 100])
def test_the_bytes_are_in_order_if_the_socket_is_full(directory: Path, room_bytes: int) -> None:
    caller = Caller(directory)
    caller.link.room_bytes = room_bytes
    (frame,) = FrameSplitter(1000).feed(caller.shake_hands())
    assert read_request(frame).message.group_id == "g"


def test_a_connection_that_is_lost_in_the_handshake(directory: Path) -> None:
    caller = Caller(directory)
    caller.link.accept()
    caller.link.lose()
    assert "the connection was lost in the TLS handshake" in caller.failure()


def test_a_handshake_that_does_not_end(directory: Path) -> None:
    caller = Caller(directory)
    caller.link.accept()
    caller.network.clock.advance(3)
    assert caller.failure() == "no connection to broker 2 within 3 s"


def test_a_certificate_of_another_host(directory: Path) -> None:
    caller = Caller(directory, host="elsewhere.example")
    with pytest.raises(TlsError, match="alert"):
        caller.shake_hands()
    assert "certificate verify failed: Hostname mismatch" in caller.failure()
    assert caller.link.is_aborted


def test_a_refused_certificate_is_reported(directory: Path) -> None:
    """With TLS 1.3 the handshake of the client is complete before the other broker refuses its certificate."""
    caller = Caller(directory, client_auth="required", has_key=False)
    with pytest.raises(TlsError, match="peer did not return a certificate"):
        caller.shake_hands()
    assert "tlsv13 alert certificate required" in caller.failure()
    assert caller.link.is_aborted


def test_a_close_notify_ends_the_request(directory: Path) -> None:
    """The response would be awaited until its timeout if the other broker's host is gone afterwards."""
    caller = Caller(directory)
    caller.shake_hands()
    caller.server.end()
    caller.deliver()
    assert "the other broker has ended the connection" in caller.failure()
    assert caller.link.is_aborted


@pytest.mark.parametrize("host", ["", ".example", f"{'a' * 64}.example"])
def test_a_host_that_no_certificate_can_name(directory: Path, host: str) -> None:
    caller = Caller(directory, host=host)
    assert "cannot verify a certificate of host" in caller.failure()


def test_the_connection_is_not_read_in_plaintext(directory: Path) -> None:
    caller = Caller(directory)
    caller.link.accept()
    caller.link.deliver(response_frame(HeartbeatResponse(), 4, 1))
    assert "the TLS handshake failed: wrong version number" in caller.failure()
