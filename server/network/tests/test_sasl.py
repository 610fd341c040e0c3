"""Authentication of one connection: states, delays and sessions in simulated time, and mutated input."""

import gc
import logging
import random
import struct
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from odradek.protocol import codec
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.produce import ProduceRequest
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.protocol.schema import Message
from odradek.replication.controller.admin.features import Features
from odradek.server.apis import served_apis
from odradek.server.dispatch import Dispatch
from odradek.server.network.connection import Connection
from odradek.server.network.sasl import SaslListener
from odradek.server.network.sasl_state import TRANSITIONS, SaslEvent, SaslState
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import RequestContext
from odradek.server.security.principal import ANONYMOUS, Principal
from odradek.server.security.sasl.mechanism import Authenticated, SaslError
from odradek.server.security.sasl.mechanisms import ListenerMechanism
from odradek.server.security.sasl.plain import PlainExchange
from odradek.server.security.sasl.scram import ScramExchange
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, make_credential
from odradek.server.security.sasl.settings import SaslSettings
from odradek.server.security.sasl.unknown_users import UnknownUsers
from odradek.server.work.slices import Slices

MAX_REQUEST_BYTES, MAX_TOKEN_BYTES = 1 << 20, 1 << 10
DELAY_MS = 100
ALICE, WRONG = b"\0alice\0secret", b"\0alice\0wrong"
SHA256 = SCRAM_MECHANISMS["SCRAM-SHA-256"]
CREDENTIAL = make_credential(SHA256, b"salt", SHA256.salt_password("secret", b"salt", 4096), 4096)


class Expiring:
    """A mechanism whose token is the time at which the credential expires."""

    def __init__(self) -> None:
        self.authenticated: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        if token == b"again":
            return b"more"
        if not token.isdigit():
            raise SaslError(None, "no number")
        self.authenticated = Authenticated("erin", int(token), is_token_authenticated=True)
        return b"done"


class Broken:
    authenticated = None

    def evaluate(self, token: bytes) -> bytes:
        raise ZeroDivisionError


class Listener:
    """A listener in simulated time."""

    def __init__(self, max_reauth_ms: int = 0) -> None:
        self.clock = Clock()
        services: Any = SimpleNamespace(
            slices=Slices(self.clock, self.clock.seconds),
            apis=served_apis(in_cluster=False),
            features=Features(),
            wants_client_metrics=False,
        )
        all_apis = Dispatch(services, services.apis)
        # No other handler finds its parts here.
        self.dispatch = Dispatch(services, {key: services.apis[key] for key in (17, 18, 36)})
        bits = random.Random(1).getrandbits
        unknown = UnknownUsers(b"process")
        makers: dict[str, Any] = {
            "PLAIN": lambda: PlainExchange({"alice": b"secret", "bob": b"secret"}),
            "SCRAM-SHA-256": lambda: ScramExchange(SHA256, {"alice": CREDENTIAL}.get, unknown, bits),
            "EXPIRING": Expiring,
            "BROKEN": Broken,
        }
        self.listener = SaslListener(
            SaslSettings((), MAX_TOKEN_BYTES, DELAY_MS),
            {name: ListenerMechanism(make, max_reauth_ms) for name, make in makers.items()},
            lambda: all_apis,
            self.clock,
            lambda: int(self.clock.seconds() * 1000) + 1_000_000,
            MAX_REQUEST_BYTES,
        )

    def connect(self) -> "Peer":
        return Peer(self)


class Peer:
    """A client, and its connection on the broker's side."""

    def __init__(self, listener: Listener) -> None:
        self.clock = listener.clock
        self.transport = Transport()
        self.context = RequestContext("host", "SASL", "SASL_PLAINTEXT")
        transport: Any = self.transport
        self.connection = Connection(transport, listener.dispatch, self.context, listener.listener.authenticate)
        self._correlation_id = 0

    @property
    def is_closed(self) -> bool:
        return self.transport.closed

    @property
    def sent(self) -> list[bytes]:
        return self.transport.writer.sent

    def send(self, data: bytes) -> None:
        """Send a frame that arrives alone."""
        self.connection.frame_received(data)

    def frame(self, request: Message, version: int) -> bytes:
        self._correlation_id += 1
        return make_frame(request, version, self._correlation_id)

    def ask(self, request: Message, response: type[Any], version: int) -> Any:
        self.send(self.frame(request, version))
        return self.receive(response, version)

    def receive(self, response: type[Any], version: int) -> Any:
        data = self.sent.pop(0)
        start = 9 if response_is_flexible(response.api_key, response.is_flexible(version)) else 8
        return codec.decode(response, version, data[start:])

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> int:
        code: int = self.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version).error_code
        return code

    def authenticate(self, token: bytes = ALICE, version: int = 1) -> Any:
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, version)

    def log_in(self, token: bytes = ALICE, mechanism: str = "PLAIN") -> Any:
        assert self.handshake(mechanism) == 0
        return self.authenticate(token)


def make_frame(request: Message, version: int, correlation_id: int = 1) -> bytes:
    head = struct.pack(">hhih", request.api_key, version, correlation_id, 4) + b"test"
    content = head + (b"\0" if request.is_flexible(version) else b"") + codec.encode(request, version)
    return struct.pack(">i", len(content)) + content


VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def peer(listener: Listener) -> Peer:
    return listener.connect()


@pytest.fixture
def session() -> Peer:
    """A client with a session of 10 s."""
    peer = Listener(10_000).connect()
    assert peer.log_in().session_lifetime_ms == 10_000
    return peer


def test_an_authenticated_client_has_its_principal_and_large_frames(peer: Peer) -> None:
    assert peer.context.principal == ANONYMOUS
    assert peer.connection.is_authenticating
    assert peer.log_in().error_code == 0
    assert peer.context.principal == Principal("User", "alice")
    assert not peer.connection.is_authenticating
    assert peer.transport.max_frame_bytes == MAX_REQUEST_BYTES


def test_no_object_of_the_authentication_remains_without_a_lifetime(peer: Peer) -> None:
    """A request of an authenticated client costs what it costs without SASL."""
    plain = weakref.ref(peer.connection._pipeline)
    peer.log_in()
    assert type(peer.connection._pipeline).__name__ == "RequestPipeline"
    assert plain() is None


def test_a_failure_is_answered_after_the_delay_and_closes_the_connection(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=WRONG), 1))
    peer.clock.advance(DELAY_MS / 1000 - 0.001)
    assert (peer.sent, peer.is_closed) == ([], False)
    peer.clock.advance(0.001)
    answer = peer.receive(SaslAuthenticateResponse, 1)
    assert (answer.error_code, answer.error_message) == (58, "Authentication failed: Invalid username or password")
    assert peer.is_closed
    assert peer.context.principal == ANONYMOUS


def test_the_log_of_a_failure_is_short(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can cause it, with a client id of up to 32 KB."""
    body = codec.encode(SaslHandshakeRequest(mechanism="x" * 30_000), 1)
    content = struct.pack(">hhih", 17, 1, 1, 30_000) + b"y" * 30_000 + body
    peer.send(struct.pack(">i", len(content)) + content)
    peer.clock.advance(1)
    assert peer.is_closed
    assert "yyy" in caplog.text
    assert len(caplog.text) < 3_000


def test_nothing_is_processed_after_a_failure(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=WRONG), 1))
    for _ in range(20):
        peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=ALICE), 1))
    assert not peer.transport.reading, "the backlog has a limit"
    peer.clock.advance(1)
    assert len(peer.sent) == 1
    peer.transport.iterate()
    assert len(peer.sent) == 1
    assert peer.context.principal == ANONYMOUS


def test_a_client_that_leaves_during_the_delay_leaves_nothing_behind(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=WRONG), 1))
    peer.connection.connection_lost()
    assert peer.clock.getDelayedCalls() == []
    assert peer.sent == []


def test_the_end_of_the_clients_input_during_the_delay(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=WRONG), 1))
    peer.connection.input_ended()
    peer.transport.iterate()
    peer.clock.advance(1)
    peer.transport.iterate()
    assert peer.receive(SaslAuthenticateResponse, 1).error_code == 58
    assert peer.is_closed


def test_an_exchange_of_several_tokens(peer: Peer) -> None:
    assert peer.handshake("EXPIRING") == 0
    for _ in range(3):
        answer = peer.authenticate(b"again")
        assert (bytes(answer.auth_bytes), answer.session_lifetime_ms) == (b"more", 0)
        assert peer.connection.is_authenticating
    assert bytes(peer.authenticate(b"1002000").auth_bytes) == b"done"
    assert peer.context.principal == Principal("User", "erin", is_token_authenticated=True)


def test_a_defect_of_a_mechanism_closes_the_connection(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    peer.handshake("BROKEN")
    peer.send(peer.frame(SaslAuthenticateRequest(auth_bytes=b"a token"), 1))
    assert peer.is_closed
    assert "please report it" in caplog.text
    assert "a token" not in caplog.text


@pytest.mark.parametrize(
    "request_", [ListGroupsRequest(), ProduceRequest(), SaslAuthenticateRequest(auth_bytes=ALICE)]
)
def test_other_requests_before_the_handshake_close_the_connection(peer: Peer, request_: Message) -> None:
    peer.send(peer.frame(request_, request_.last_version))
    assert (peer.is_closed, peer.sent) == (True, [])


def test_a_request_without_an_error_response_closes_the_connection_instead_of_a_token(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(ProduceRequest(acks=0), 9))
    peer.clock.advance(1)
    assert (peer.is_closed, peer.sent) == (True, [])


def test_a_large_request_instead_of_a_token_is_not_decoded(peer: Peer) -> None:
    peer.handshake()
    peer.send(peer.frame(ListGroupsRequest(states_filter=["x" * 30_000] * 10), 4))
    assert (peer.is_closed, peer.sent) == (True, [])


@pytest.mark.parametrize("data", [b"\0\0\0\0", b"\0\0\0\1\0", b"\0\0\0\2\0\x11", b"\0\0\0\x0a\0\x11\0\1\0\0\0\1\0\7"])
def test_frames_without_a_whole_header_close_the_connection(peer: Peer, data: bytes) -> None:
    peer.send(data)
    assert peer.is_closed


def test_a_credential_that_expires_limits_the_session(listener: Listener) -> None:
    peer = listener.connect()
    assert peer.log_in(b"1002500", "EXPIRING").session_lifetime_ms == 2_500
    peer.clock.advance(2.5)
    assert peer.ask(VERSIONS, ApiVersionsResponse, 0).error_code == 0
    peer.clock.advance(0.01)
    peer.send(peer.frame(VERSIONS, 0))
    assert peer.is_closed


def test_an_expired_credential_gives_a_session_without_time(listener: Listener) -> None:
    peer = listener.connect()
    assert peer.log_in(b"5", "EXPIRING").session_lifetime_ms == 0
    peer.clock.advance(0.001)
    peer.send(peer.frame(VERSIONS, 0))
    assert peer.is_closed


@pytest.mark.parametrize(("expires_ms", "lifetime_ms"), [(1_000_500, 500), (2_000_000, 10_000)])
def test_the_shorter_lifetime_counts(expires_ms: int, lifetime_ms: int) -> None:
    peer = Listener(10_000).connect()
    assert peer.log_in(b"%d" % expires_ms, "EXPIRING").session_lifetime_ms == lifetime_ms


def test_a_session_is_renewed(session: Peer) -> None:
    session.clock.advance(8)
    assert session.log_in().session_lifetime_ms == 10_000
    session.clock.advance(10)
    assert session.ask(VERSIONS, ApiVersionsResponse, 0).error_code == 0
    assert session.log_in().session_lifetime_ms == 10_000
    session.clock.advance(10.1)
    assert session.log_in().session_lifetime_ms == 10_000, "also after its end"
    session.clock.advance(10.1)
    session.send(session.frame(VERSIONS, 0))
    assert session.is_closed


def test_a_session_is_renewed_at_most_once_a_second(session: Peer) -> None:
    assert session.log_in().error_code == 0
    session.clock.advance(0.9)
    assert session.handshake() == 34
    session.clock.advance(0.1)
    assert session.log_in().error_code == 0


def test_no_batch_is_appended_after_the_end_of_a_session(session: Peer) -> None:
    """A client with a request that waits for replicas could use the session for ever."""
    appended: list[bytes] = []
    pipeline: Any = session.connection._pipeline
    pipeline._requests = SimpleNamespace(append_next=appended.append)
    session.clock.advance(10)
    pipeline.append_next(b"first")
    session.clock.advance(0.001)
    assert pipeline.append_next(b"second") is None
    assert appended == [b"first"]


def test_frames_are_small_while_a_session_is_renewed(session: Peer) -> None:
    assert session.transport.max_frame_bytes == MAX_REQUEST_BYTES
    session.handshake()
    assert session.transport.max_frame_bytes == MAX_TOKEN_BYTES
    session.authenticate()
    assert session.transport.max_frame_bytes == MAX_REQUEST_BYTES


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0bob\0secret", "Cannot change principals during re-authentication from User.alice: User.bob"),
        (WRONG, "Authentication failed: Invalid username or password"),
    ],
)
def test_a_session_is_not_renewed(session: Peer, token: bytes, message: str) -> None:
    session.handshake()
    session.send(session.frame(SaslAuthenticateRequest(auth_bytes=token), 1))
    assert session.sent == []
    session.clock.advance(1)
    answer = session.receive(SaslAuthenticateResponse, 1)
    assert (answer.error_code, answer.error_message, session.is_closed) == (58, message, True)
    assert session.context.principal.name == "alice"


def test_a_session_is_not_renewed_with_another_mechanism(session: Peer) -> None:
    assert session.handshake("SCRAM-SHA-256") == 0
    session.send(session.frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 1))
    session.clock.advance(1)
    assert (session.sent, session.is_closed) == ([], True)


def test_a_session_is_not_renewed_with_an_unknown_mechanism(session: Peer) -> None:
    session.send(session.frame(SaslHandshakeRequest(mechanism="X"), 1))
    assert (session.sent, session.is_closed) == ([], True)


def test_every_transition_occurs() -> None:
    """The table has no pair that no test above reaches, and ends in a state without a successor."""
    assert {state for state, _ in TRANSITIONS} == set(SaslState) - {SaslState.COMPLETE, SaslState.FAILED}
    assert {event for _, event in TRANSITIONS} == set(SaslEvent)
    assert all(TRANSITIONS[state, SaslEvent.FAILURE] is SaslState.FAILED for state, _ in TRANSITIONS)


def test_no_secret_is_shown() -> None:
    request, response = SaslAuthenticateRequest(auth_bytes=ALICE), SaslAuthenticateResponse(auth_bytes=b"secret")
    assert "secret" not in repr(request) + repr(response)


def sequences() -> list[list[bytes]]:
    """Return authentications, some complete, as lists of frames."""
    versions = make_frame(VERSIONS, 3)
    plain, old_plain, scram = (
        make_frame(SaslHandshakeRequest(mechanism=name), version)
        for name, version in (("PLAIN", 1), ("PLAIN", 0), ("SCRAM-SHA-256", 1))
    )
    tokens = [make_frame(SaslAuthenticateRequest(auth_bytes=ALICE), version) for version in (0, 1, 2)]
    first = make_frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abcdef"), 2)
    final = make_frame(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=abcdef1,p=" + b"A" * 43 + b"="), 2)
    raw = struct.pack(">i", len(ALICE)) + ALICE
    lists = make_frame(ListGroupsRequest(), 4)
    return [
        [versions, plain, tokens[0], versions],
        [plain, tokens[1], plain, tokens[1], versions],
        [plain, tokens[2], lists],
        [versions, scram, first, final, versions],
        [scram, first, first],
        [old_plain, raw, versions],
        [plain, lists, tokens[0]],
    ]


def mutate(source: random.Random, frames: list[bytes]) -> list[bytes]:
    """Return frames with changed, removed and added bytes, or in another order; their lengths are right."""
    changed = list(frames)
    for _ in range(source.randint(1, 3)):
        kind, at = source.randrange(6), source.randrange(len(changed))
        content = bytearray(changed[at][4:])
        position = source.randrange(len(content) + 1)
        if kind == 0 and position < len(content):
            content[position] ^= 1 << source.randrange(8)
        elif kind == 1 and position < len(content):
            content[position] = source.choice((0, 1, 0x2C, 0x3D, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del content[position : position + source.randint(1, 8)]
        elif kind == 3:
            content[position:position] = source.randbytes(source.randint(1, 8))
        elif kind == 4:
            changed.insert(source.randrange(len(changed) + 1), source.choice(changed))
            continue
        else:
            del content[position:]
        changed[at] = struct.pack(">i", len(content)) + bytes(content)
    return changed


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_handshakes(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """No mutation causes a defect, authenticates a client without the password, or leaves an object behind."""
    caplog.set_level(logging.ERROR)
    source, all_frames = random.Random(count), sequences()
    listener = Listener(1_000)
    lost: list[weakref.ref[Connection]] = []
    authenticated = 0
    gc.collect()
    gc.disable()
    try:
        for number in range(count):
            frames = mutate(source, all_frames[number % len(all_frames)])
            peer = listener.connect()
            for frame in frames:
                if peer.is_closed:
                    break
                peer.send(frame)
                if peer.connection.in_progress is not None:
                    peer.clock.advance(DELAY_MS / 1000)
            if peer.context.principal != ANONYMOUS:
                authenticated += 1
                assert peer.context.principal == Principal("User", "alice")
                assert any(ALICE in frame for frame in frames)
            peer.connection.connection_lost()
            lost.append(weakref.ref(peer.connection))
            assert caplog.text == ""
        del peer
        assert [one for one in lost if one() is not None] == []
    finally:
        gc.enable()
    assert listener.clock.getDelayedCalls() == []
    assert 0 < authenticated < count
