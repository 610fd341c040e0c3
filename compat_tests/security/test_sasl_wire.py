"""SASL on the wire, with right, wrong and malformed input: the same from Odradek and from Apache Kafka."""

import re
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import pytest

from compat_tests.sasl_users import PLAIN_MODULE, SCRAM_MODULE
from odradek.protocol import codec
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    AlterUserScramCredentialsResponse,
)
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUserName,
    DescribeUserScramCredentialsResponse,
)
from odradek.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.protocol.schema import Message
from odradek.server.security.sasl.client import ScramClientExchange
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, ScramMechanism

pytestmark = [pytest.mark.side_by_side, pytest.mark.process]

R = TypeVar("R", bound=Message)
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
ALICE, BOB = b"\0alice\0alice-secret", b"\0bob\0bob-secret"
DELAY_MS = 200
LIFETIME_MS = 4000
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
PLAIN = (
    f'{PLAIN_MODULE} required username="alice" password="alice-secret" user_alice="alice-secret" user_bob="bob-secret";'
)
SCRAM = f"{SCRAM_MODULE} required;"
PROPERTIES = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.plaintext.plain.sasl.jaas.config": PLAIN,
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": SCRAM,
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": SCRAM,
    "connection.failed.authentication.delay.ms": str(DELAY_MS),
}
SALT = b"a salt"


class ClosedError(Exception):
    """The broker has closed the connection."""


class Client:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def encode(self, request: Message, version: int) -> bytes:
        """Return the frame of a request."""
        self._correlation_id += 1
        head = struct.pack(">hhih", request.api_key, version, self._correlation_id, 4) + b"test"
        body = codec.encode(request, min(version, request.last_version))
        content = head + (b"\0" if request.is_flexible(version) else b"") + body
        return struct.pack(">i", len(content)) + content

    def send(self, data: bytes) -> None:
        """Send bytes. The broker may already have closed the connection."""
        try:
            self._socket.sendall(data)
        except OSError:
            return

    def receive(self) -> bytes:
        """Return the content of the next frame. Raises ClosedError."""
        try:
            size = self._stream.read(4)
            content = self._stream.read(int.from_bytes(size, "big"))
        except ConnectionError:
            raise ClosedError from None
        if len(size) < 4:
            raise ClosedError
        return content

    def decode(self, response: type[R], version: int) -> R:
        """Receive a response."""
        content = self.receive()
        start = 5 if response_is_flexible(response.api_key, response.is_flexible(version)) else 4
        return codec.decode(response, version, content[start:])

    def ask(self, request: Message, response: type[R], version: int) -> R:
        """Send a request and return its response."""
        self.send(self.encode(request, version))
        return self.decode(response, version)

    def handshake(self, mechanism: str, version: int = 1) -> tuple[int, list[str]]:
        answer = self.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version)
        return answer.error_code, sorted(answer.mechanisms)

    def authenticate(self, token: bytes, version: int = 1) -> "Answer":
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, version)
        return Answer(answer.error_code, answer.error_message, bytes(answer.auth_bytes), answer.session_lifetime_ms)

    def log_in(self, token: bytes = ALICE, mechanism: str = "PLAIN") -> "Answer":
        assert self.handshake(mechanism)[0] == 0
        return self.authenticate(token)

    def scram(self, mechanism: ScramMechanism, password: str, change: Callable[[bytes], bytes] = bytes) -> "Answer":
        """Authenticate carol with SCRAM; return the last answer. `change`: changes client-final."""

        async def salt_password(mechanism: ScramMechanism, salt: bytes, iterations: int) -> bytes:
            return mechanism.salt_password(password, salt, iterations)

        exchange = ScramClientExchange(mechanism, "carol", "a-nonce", salt_password)
        assert self.handshake(mechanism.name)[0] == 0
        first = self.authenticate(run(exchange.begin()))
        if first.code:
            return first
        final = run(exchange.answer(first.token))
        assert final is not None
        return self.authenticate(change(final))

    @property
    def is_served(self) -> bool:
        """Return whether a request is answered without an error."""
        return self.ask(ListGroupsRequest(), ListGroupsResponse, 4).error_code == 0

    @property
    def is_closed(self) -> bool:
        """Return whether the broker closes the connection, and sends nothing before."""
        try:
            self.receive()
        except ClosedError:
            return True
        return False


class Answer(NamedTuple):
    """A response to SaslAuthenticate."""

    code: int
    message: str | None
    token: bytes = b""
    lifetime_ms: int = 0


def upsert(user: str, mechanism: int, *, iterations: int = 4096) -> Any:
    salted = b"x"
    if mechanism in (1, 2) and iterations > 0:
        salted = SCRAM_MECHANISMS[MECHANISMS[mechanism]].salt_password("carol-secret", SALT, iterations)
    return AlterUserScramCredentialsRequestScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )


def delete(user: str, mechanism: int) -> Any:
    return AlterUserScramCredentialsRequestScramCredentialDeletion(name=user, mechanism=mechanism)


@pytest.fixture(scope="module")
def port(backend: str, request: pytest.FixtureRequest) -> Iterator[int]:
    from compat_tests.backends import BROKERS

    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with BROKERS[backend](PROPERTIES) as broker:
        with Client(broker.port) as client:
            client.log_in()
            for mechanism in (1, 2):
                request_ = AlterUserScramCredentialsRequest(upsertions=[upsert("carol", mechanism)])
                answer = client.ask(request_, AlterUserScramCredentialsResponse, 0)
                assert [row.error_code for row in answer.results] == [0]
        yield broker.port


@pytest.fixture(scope="module")
def session_port(backend: str, request: pytest.FixtureRequest) -> Iterator[int]:
    """A broker whose sessions have a lifetime."""
    from compat_tests.backends import BROKERS

    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with BROKERS[backend]({**PROPERTIES, "connections.max.reauth.ms": str(LIFETIME_MS)}) as broker:
        yield broker.port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    with Client(port) as made:
        yield made


@pytest.fixture
def session_client(session_port: int) -> Iterator[Client]:
    with Client(session_port) as made:
        yield made


def test_plain(client):
    assert client.handshake("PLAIN") == (0, MECHANISMS)
    assert client.authenticate(ALICE) == Answer(0, "")
    assert client.is_served


@pytest.mark.parametrize("name", MECHANISMS[1:])
def test_scram(client, name):
    answer = client.scram(SCRAM_MECHANISMS[name], "carol-secret")
    assert answer[:2] == (0, "")
    assert answer.token.startswith(b"v=")
    assert client.is_served


@pytest.mark.parametrize("version", [0, 1, 2])
def test_each_version_of_sasl_authenticate(client, version):
    assert client.handshake("PLAIN")[0] == 0
    assert client.authenticate(ALICE, version) == Answer(0, "")
    assert client.is_served


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0alice\0alice-secret\0more", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\0alice-secret\0more\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"alice\0alice\0alice-secret", None),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0\0alice-secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\xff\xfe\0\xff\0\xff", "Authentication failed: Invalid username or password"),
    ],
)
def test_tokens_of_plain(client, token, message):
    assert client.handshake("PLAIN")[0] == 0
    begin_s = time.monotonic()
    if message is None:
        assert client.authenticate(token) == Answer(0, "")
        assert client.is_served
        return
    assert client.authenticate(token) == Answer(58, message)
    assert time.monotonic() - begin_s >= DELAY_MS / 1000 * 0.9
    assert client.is_closed


@pytest.mark.parametrize("name", MECHANISMS[1:])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda final: final.replace(b"a-nonce", b"b-nonce"), id="other nonce"),
        pytest.param(lambda final: final.replace(b"r=", b"r=a-nonce"), id="doubled nonce"),
        pytest.param(lambda final: re.sub(b"p=....", b"p=AAAA", final), id="other proof"),
        pytest.param(lambda final: final.partition(b",p=")[0], id="no proof"),
        pytest.param(lambda final: b"", id="empty"),
        pytest.param(lambda final: b"\xff\xfe", id="no text"),
    ],
)
def test_changed_client_final_of_scram(client, name, change):
    answer = client.scram(SCRAM_MECHANISMS[name], "carol-secret", change)
    if answer.code == 0:
        raise AssertionError("authenticated")
    assert answer == Answer(58, INVALID.format(name))
    assert client.is_closed


def test_a_proof_of_another_length(client):
    """Apache Kafka closes the connection without a response."""

    def shorten(final: bytes) -> bytes:
        return final.partition(b",p=")[0] + b",p=AAAA"

    try:
        answer = client.scram(SCRAM_MECHANISMS["SCRAM-SHA-256"], "carol-secret", shorten)
    except ClosedError:
        return
    assert answer == Answer(58, INVALID.format("SCRAM-SHA-256"))
    assert client.is_closed


@pytest.mark.parametrize(
    "token",
    [b"", b"n,,", b"n,,n=carol", b"n,,n=,r=x", b"n,,n=ca=rol,r=x", b"y,,n=carol,r=x", b"p=tls-unique,,n=carol,r=x",
     b"n,,r=x,n=carol", b"n,,n=c\xc3\xa4rol,r=x", b"carol", b"\xff", b"n,,n=carol,r=x" * 1000],
    ids=lambda token: ascii(token[:20]),
)  # fmt: skip
def test_malformed_client_first_of_scram(client, token):
    assert client.handshake("SCRAM-SHA-256")[0] == 0
    assert client.authenticate(token) == Answer(58, INVALID.format("SCRAM-SHA-256"))
    assert client.is_closed


def test_another_authorization_id_with_scram(client):
    assert client.handshake("SCRAM-SHA-256")[0] == 0
    message = "Authentication failed: Client requested an authorization id that is different from username"
    assert client.authenticate(b"n,a=alice,n=carol,r=x") == Answer(58, message)
    assert client.is_closed


def test_a_wrong_password_with_scram(client):
    assert client.scram(SCRAM_MECHANISMS["SCRAM-SHA-256"], "wrong") == Answer(58, INVALID.format("SCRAM-SHA-256"))
    assert client.is_closed


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "plain", "X" * 1000], ids=lambda name: name[:10])
def test_an_unknown_mechanism(client, mechanism, version):
    begin_s = time.monotonic()
    assert client.handshake(mechanism, version) == (33, MECHANISMS)
    assert time.monotonic() - begin_s >= DELAY_MS / 1000 * 0.9
    assert client.is_closed


@pytest.mark.parametrize(
    "request_", [MetadataRequest(), SaslAuthenticateRequest(auth_bytes=ALICE), ListGroupsRequest()]
)
def test_another_request_before_the_handshake(client, request_):
    client.send(client.encode(request_, 1))
    assert client.is_closed


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0", b"\0\0\0\1x", b"\0\0\0\x0a" + b"\xff" * 10, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8,
        b"\0\0\0\x0e\x60",
    ],
)  # fmt: skip
def test_bytes_that_are_no_request(client, data):
    client.send(data)
    client._socket.shutdown(socket.SHUT_WR)
    assert client.is_closed


def test_frames_have_a_limit_before_the_authentication(client):
    client.send(struct.pack(">i", 524_289))
    assert client.is_closed


def test_frames_have_a_limit_between_handshake_and_token(client):
    assert client.handshake("PLAIN")[0] == 0
    client.send(struct.pack(">i", 524_289))
    assert client.is_closed


def test_frames_may_be_larger_after_the_authentication(client):
    client.log_in()
    client.send(client.encode(ListGroupsRequest(states_filter=["x" * 30_000] * 20), 4))
    assert client.decode(ListGroupsResponse, 4).error_code == 0


def ask_versions(client: Client, version: int, name: str = "test") -> tuple[int, list[int]]:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    client.send(client.encode(request, version))
    # The response to an unknown version, or to an invalid request, is one of version 0.
    content = client.receive()
    answer = codec.decode(ApiVersionsResponse, version if content[4:6] == b"\0\0" else 0, content[4:])
    return answer.error_code, [row.api_key for row in answer.api_keys]


@pytest.mark.parametrize("version", [0, 3, 4])
def test_api_versions_before_the_handshake(client, version):
    code, keys = ask_versions(client, version)
    assert code == 0
    assert {17, 36} <= set(keys)
    client.log_in()
    assert client.is_served


def test_api_versions_twice(client):
    assert ask_versions(client, 3)[0] == 0
    client.send(client.encode(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3))
    assert client.is_closed


def test_api_versions_after_an_unknown_version(client):
    assert ask_versions(client, 99)[0] == 35
    assert ask_versions(client, 98)[0] == 35
    assert ask_versions(client, 3)[0] == 0
    client.log_in()
    assert client.is_served


def test_another_request_instead_of_a_token(client):
    assert client.handshake("PLAIN")[0] == 0
    assert client.ask(ListGroupsRequest(), ListGroupsResponse, 4).error_code == 34
    assert client.is_closed


def test_api_versions_instead_of_a_token(client):
    assert client.handshake("PLAIN")[0] == 0
    client.send(client.encode(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 0))
    assert codec.decode(ApiVersionsResponse, 0, client.receive()[4:]).error_code == 34
    assert client.is_closed


def test_a_second_handshake_instead_of_a_token(client):
    assert client.handshake("PLAIN")[0] == 0
    assert client.handshake("PLAIN")[0] == 34
    assert client.is_closed


def test_an_unknown_version_of_sasl_authenticate(client):
    assert client.handshake("PLAIN")[0] == 0
    client.send(client.encode(SaslAuthenticateRequest(auth_bytes=ALICE), 9))
    assert client.is_closed


def test_an_unknown_version_of_sasl_handshake(client):
    client.send(client.encode(SaslHandshakeRequest(mechanism="PLAIN"), 9))
    assert client.is_closed


def test_tokens_without_headers(client):
    assert client.handshake("PLAIN", 0) == (0, MECHANISMS)
    client.send(struct.pack(">i", len(ALICE)) + ALICE)
    assert client.receive() == b""
    assert client.is_served


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"malformed", b""])
def test_wrong_tokens_without_headers(client, token):
    assert client.handshake("PLAIN", 0)[0] == 0
    client.send(struct.pack(">i", len(token)) + token)
    assert client.is_closed


def test_all_requests_in_one_write(client):
    client.send(
        client.encode(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        + client.encode(SaslAuthenticateRequest(auth_bytes=ALICE), 1)
        + client.encode(ListGroupsRequest(), 4)
    )
    assert client.decode(SaslHandshakeResponse, 1).error_code == 0
    assert client.decode(SaslAuthenticateResponse, 1).error_code == 0
    assert client.decode(ListGroupsResponse, 4).error_code == 0


def test_sasl_requests_after_the_authentication(client):
    client.log_in()
    assert client.handshake("PLAIN") == (34, [])
    assert client.authenticate(ALICE) == Answer(34, "SaslAuthenticate request received after successful authentication")
    assert client.is_served


def test_the_lifetime_of_a_session(session_client):
    assert session_client.log_in() == Answer(0, "", b"", LIFETIME_MS)
    assert session_client.is_served


def test_a_session_is_renewed(session_client):
    session_client.log_in()
    assert session_client.log_in() == Answer(0, "", b"", LIFETIME_MS)
    assert session_client.is_served


def test_a_session_is_renewed_once_a_second(session_client):
    session_client.log_in()
    session_client.log_in()
    assert session_client.handshake("PLAIN") == (34, [])
    assert session_client.is_served


def test_a_session_ends(session_client):
    session_client.log_in()
    time.sleep(LIFETIME_MS / 1000 + 0.1)
    session_client.send(session_client.encode(ListGroupsRequest(), 4))
    assert session_client.is_closed


def test_a_session_is_renewed_after_its_end(session_client):
    session_client.log_in()
    time.sleep(LIFETIME_MS / 1000 + 0.1)
    assert session_client.log_in() == Answer(0, "", b"", LIFETIME_MS)
    assert session_client.is_served


def test_a_session_of_another_user(session_client):
    session_client.log_in()
    message = "Cannot change principals during re-authentication from User.alice: User.bob"
    assert session_client.log_in(BOB) == Answer(58, message)
    assert session_client.is_closed


def test_a_session_with_a_wrong_password(session_client):
    session_client.log_in()
    assert session_client.log_in(b"\0alice\0wrong") == Answer(58, "Authentication failed: Invalid username or password")
    assert session_client.is_closed


def test_a_session_with_a_malformed_token(session_client):
    session_client.log_in()
    assert session_client.log_in(b"x") == Answer(58, "Invalid SASL/PLAIN response: expected 3 tokens, got 1")
    assert session_client.is_closed


def test_a_session_with_another_mechanism(session_client):
    session_client.log_in()
    assert session_client.handshake("SCRAM-SHA-256") == (0, MECHANISMS)
    session_client.send(session_client.encode(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 1))
    assert session_client.is_closed


def test_a_session_with_an_unknown_mechanism(session_client):
    session_client.log_in()
    session_client.send(session_client.encode(SaslHandshakeRequest(mechanism="GSSAPI"), 1))
    assert session_client.is_closed


def test_another_request_while_a_session_is_renewed(session_client):
    session_client.log_in()
    assert session_client.handshake("PLAIN") == (0, MECHANISMS)
    assert session_client.ask(ListGroupsRequest(), ListGroupsResponse, 4).error_code == 34
    assert session_client.is_closed


ERRORS = {
    "empty": ([upsert("", 1)], [], (93, "Username must not be empty")),
    "unknown mechanism": ([upsert("u", 3)], [], (33, "Unknown SCRAM mechanism")),
    "mechanism 0": ([upsert("u", 0)], [], (33, "Unknown SCRAM mechanism")),
    "few iterations": ([upsert("u", 1, iterations=4095)], [], (93, "Too few iterations")),
    "no iterations": ([upsert("u", 2, iterations=-1)], [], (93, "Too few iterations")),
    "many iterations": ([upsert("u", 1, iterations=16385)], [], (93, "Too many iterations")),
    "missing": ([], [delete("u", 1)], (91, "Attempt to delete a user credential that does not exist")),
    "deletion of unknown mechanism": ([], [delete("u", 9)], (33, "Unknown SCRAM mechanism")),
    "deletion of empty": ([], [delete("", 1)], (93, "Username must not be empty")),
    "twice": ([upsert("u", 1)] * 2, [], (92, "A user credential cannot be altered twice in the same request")),
    "two mechanisms": (
        [upsert("u", 1), upsert("u", 2)], [], (92, "A user credential cannot be altered twice in the same request")
    ),
    "deletion and upsertion": (
        [upsert("carol", 1)], [delete("carol", 2)],
        (92, "A user credential cannot be altered twice in the same request"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("upsertions", "deletions", "expected"), ERRORS.values(), ids=ERRORS)
def test_errors_of_alter_user_scram_credentials(client, upsertions, deletions, expected):
    client.log_in()
    request = AlterUserScramCredentialsRequest(upsertions=upsertions, deletions=deletions)
    answer = client.ask(request, AlterUserScramCredentialsResponse, 0)
    assert [(row.error_code, row.error_message) for row in answer.results] == [expected]


def describe(client: Client, users: list[str] | None) -> dict[str, Any]:
    names = None if users is None else [DescribeUserScramCredentialsRequestUserName(name=user) for user in users]
    answer = client.ask(DescribeUserScramCredentialsRequest(users=names), DescribeUserScramCredentialsResponse, 0)
    assert (answer.error_code, answer.error_message) == (0, "")
    return {
        row.user: (
            row.error_code, row.error_message,
            sorted((info.mechanism, info.iterations) for info in row.credential_infos),
        )
        for row in answer.results
    }  # fmt: skip


def test_describe_user_scram_credentials(client):
    client.log_in()
    carol = (0, "", [(1, 4096), (2, 4096)])
    missing = "Attempt to describe a user credential that does not exist: "
    twice = "Cannot describe SCRAM credentials for the same user twice in a single request: carol"
    assert describe(client, None) == {"carol": carol}
    assert describe(client, []) == {"carol": carol}
    assert describe(client, ["carol", "alice"]) == {"carol": carol, "alice": (91, f"{missing}alice", [])}
    assert describe(client, ["carol", "carol"]) == {"carol": (92, twice, [])}
    assert describe(client, [""]) == {"": (91, missing, [])}
