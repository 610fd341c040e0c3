"""Authentication of channels to other brokers: before the first request, before a session expires, failures."""

import base64
import random
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from odradek.log.background.tasks import run_inline
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.server.brokers.tests.test_channel import Caller
from odradek.server.config import BrokerConfig
from odradek.server.security.sasl.client import SaslClient
from odradek.server.security.sasl.current_login import CurrentLogin
from odradek.server.security.sasl.inter_broker import InterBrokerParts
from odradek.server.security.sasl.scram import ScramExchange
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, make_credential
from odradek.server.security.sasl.settings import ClientSettings
from odradek.server.security.sasl.unknown_users import UnknownUsers

HINT = "; check the JAAS line"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOKEN = b"\0broker\0secret"


class Threads:
    """Runs work at once, and counts it."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        self.calls += 1
        work()
        return succeed(None)


def make_caller(mechanism: str = "PLAIN", threads: Threads | None = None) -> Caller:
    client = SaslClient(
        ClientSettings(mechanism, "broker", "secret"), lambda bits: 12345, (threads or Threads()).run, HINT
    )
    return Caller(authenticate=client.authenticate)


def authenticate(link: Any, lifetime_ms: int = 0) -> None:
    """Answer the requests of an authentication with PLAIN."""
    handshake = link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    assert (handshake.message, handshake.version) == (SaslHandshakeRequest(mechanism="PLAIN"), 1)
    token = link.answer(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))
    assert (token.message.auth_bytes, token.version) == (TOKEN, 1)


def test_a_connection_is_authenticated_before_its_first_request() -> None:
    caller = make_caller()
    caller.send("a")
    link = caller.network.accept()
    authenticate(link)
    assert link.answer(HeartbeatResponse()).message.group_id == "a"
    caller.send("b")
    assert link.answer(HeartbeatResponse()).message.group_id == "b"
    assert list(caller.outcomes.values()) == [HeartbeatResponse()] * 2
    caller.check_idle()


def test_a_session_is_renewed_before_a_request_that_it_may_not_survive() -> None:
    caller = make_caller()
    caller.send("a")
    link = caller.network.accept()
    authenticate(link, lifetime_ms=10_000)
    link.answer(HeartbeatResponse())
    caller.clock.advance(8.4)
    caller.send("b")
    assert link.answer(HeartbeatResponse()).message.group_id == "b"
    caller.clock.advance(0.1)
    caller.send("c")
    authenticate(link, lifetime_ms=10_000)
    assert link.answer(HeartbeatResponse()).message.group_id == "c"
    caller.clock.advance(100)
    caller.send("d")
    authenticate(link)
    assert link.answer(HeartbeatResponse()).message.group_id == "d"
    assert len(caller.network.links) == 1


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (SaslAuthenticateResponse(error_code=58, error_message="x"), f"SASL_AUTHENTICATION_FAILED: x{HINT}"),
        (SaslAuthenticateResponse(error_code=34, error_message=None), "ILLEGAL_SASL_STATE"),
    ],
)
def test_a_refused_token_fails_all_requests_and_closes_the_connection(response: Any, text: str) -> None:
    caller = make_caller()
    for name in "ab":
        caller.send(name)
    link = caller.network.accept()
    link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    link.answer(response)
    assert link.is_aborted
    assert text in caller.failed("a")
    assert "secret" not in caller.failed("a")


def test_a_mechanism_that_the_other_broker_lacks() -> None:
    caller = make_caller()
    caller.send("a")
    caller.network.accept().answer(SaslHandshakeResponse(error_code=33, mechanisms=["X", "Y"]))
    assert "UNSUPPORTED_SASL_MECHANISM; enabled: X, Y" in caller.failed("a")


def test_equal_failures_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caller = make_caller()
    for number, code in enumerate([58, 58, 58, 34, 0, 34]):
        caller.send(str(number))
        while len(caller.network.links) == number:
            caller.clock.advance(0.05)
        link = caller.network.accept()
        link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
        link.answer(SaslAuthenticateResponse(error_code=code))
        if not code:
            link.answer(HeartbeatResponse())
            link.lose()
    names = [record.getMessage().split(" failed: ")[1].split(":")[0] for record in caplog.records]
    assert names == ["SASL_AUTHENTICATION_FAILED", "ILLEGAL_SASL_STATE", "ILLEGAL_SASL_STATE"]


def test_the_pauses_after_failed_authentications_grow() -> None:
    caller = make_caller()
    pauses = []
    for number in range(4):
        caller.send(str(number))
        began_s = caller.clock.seconds()
        while len(caller.network.links) == number:
            caller.clock.advance(0.01)
        pauses.append(caller.clock.seconds() - began_s)
        link = caller.network.accept()
        link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
        link.answer(SaslAuthenticateResponse(error_code=58))
    assert pauses == pytest.approx([0, 0.05, 0.1, 0.2], abs=0.02)


def test_a_connection_that_is_lost_during_the_authentication() -> None:
    caller = make_caller()
    caller.send("a")
    link = caller.network.accept()
    link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    link.lose()
    assert "lost" in caller.failed("a")


def test_scram_salts_the_password_once() -> None:
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-512"]
    credential = make_credential(mechanism, b"salt", mechanism.salt_password("secret", b"salt", 4096), 4096)
    threads = Threads()
    caller = make_caller(mechanism.name, threads)
    for number in range(2):
        caller.send(str(number))
        link = caller.network.accept()
        link.answer(SaslHandshakeResponse(mechanisms=[mechanism.name]))
        exchange = ScramExchange(mechanism, {"broker": credential}.get, UnknownUsers(b""), lambda bits: 54321)
        for _ in range(2):
            request = link.take()
            assert isinstance(request.message, SaslAuthenticateRequest)
            token = exchange.evaluate(bytes(request.message.auth_bytes))
            link.answer(SaslAuthenticateResponse(auth_bytes=token), request)
        assert isinstance(link.answer(HeartbeatResponse()).message, HeartbeatRequest)
        link.lose()
        caller.clock.advance(1)
    assert threads.calls == 1


def test_a_broker_without_the_credential_is_refused() -> None:
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
    caller = make_caller(mechanism.name)
    caller.send("a")
    link = caller.network.accept()
    link.answer(SaslHandshakeResponse(mechanisms=[mechanism.name]))
    nonce = link.take()
    first = nonce.message.auth_bytes.rpartition(b"r=")[2] + b"1"
    link.answer(SaslAuthenticateResponse(auth_bytes=b"r=" + first + b",s=c2FsdA==,i=4096"), nonce)
    link.answer(SaslAuthenticateResponse(auth_bytes=b"v=" + base64.b64encode(b"\0" * 32)))
    assert "does not have the credential" in caller.failed("a")


class PasswordLogin:
    """The properties of a broker that logs in at others with a password, and its login."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.login = CurrentLogin(self.config("before"), self.parts())

    def parts(self) -> InterBrokerParts:
        clock = Clock()
        return InterBrokerParts(self.random, lambda: 0, clock.seconds, clock.callLater, run_inline, run_inline)

    @staticmethod
    def config(password: str, jaas: str = "") -> BrokerConfig:
        prefix = "listener.name.sasl_plaintext."
        jaas = jaas or f"{PLAIN} required username=broker password={password} user_broker={password};"
        return BrokerConfig(
            {
                "listeners": "SASL_PLAINTEXT://:9092",
                "security.inter.broker.protocol": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                f"{prefix}plain.sasl.jaas.config": jaas,
            }
        )

    def token(self) -> bytes:
        """Return the token with which the next connection is authenticated."""
        caller = Caller(authenticate=self.login.authenticate)
        caller.send("a")
        link = caller.network.accept()
        link.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]))
        token: bytes = link.answer(SaslAuthenticateResponse()).message.auth_bytes
        return token


def test_changed_credentials_are_used_for_the_next_connection() -> None:
    broker = PasswordLogin()
    assert broker.token() == b"\0broker\0before"
    broker.login.update(broker.config("after"))
    assert broker.token() == b"\0broker\0after"


def test_the_last_credentials_remain_if_the_changed_ones_are_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    broker = PasswordLogin()
    broker.login.update(broker.config("after", f"{PLAIN} required user_broker=after;"))
    assert broker.token() == b"\0broker\0before"
    [record] = caplog.records
    assert "must have the option username" in record.getMessage()
