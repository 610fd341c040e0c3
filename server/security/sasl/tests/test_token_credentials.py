"""Authentication with delegation tokens by SCRAM."""

import base64
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeResponse
from odradek.server.security.sasl.client import SaslClient
from odradek.server.security.sasl.jaas import LoginModule
from odradek.server.security.sasl.mechanism import SaslError
from odradek.server.security.sasl.scram import ScramExchange
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, ScramMechanism
from odradek.server.security.sasl.settings import MechanismSettings, make_client_settings
from odradek.server.security.sasl.tests.test_scram import run
from odradek.server.security.sasl.token_credentials import MAX_CREDENTIALS, TokenCredentials, TokenSecret
from odradek.server.security.sasl.unknown_users import UnknownUsers

HMAC = bytes(range(64))
TOKEN = TokenSecret("User:a:lice", 5000, HMAC)


class Client:
    """A client with a token's id and a password, and the broker's side of the exchange."""

    def __init__(self, mechanism: ScramMechanism, tokens: dict[str, TokenSecret]) -> None:
        bits = random.Random(1).getrandbits
        self.mechanism = mechanism
        unknown = UnknownUsers(b"secret")
        self.credentials = TokenCredentials(mechanism, tokens.get, partial(unknown.make_token_salt, mechanism))
        # The id of the token is also the name of a user without a password.
        self.make_exchange = lambda: ScramExchange(mechanism, lambda user: None, unknown, bits, self.credentials.find)

    def log_in(self, token_id: str, password: str, extension: str = ",tokenauth=true") -> ScramExchange:
        mechanism, exchange = self.mechanism, self.make_exchange()
        bare = f"n={token_id},r=nonce{extension}"
        first = exchange.evaluate(f"n,,{bare}".encode()).decode()
        nonce, salt, iterations = (part[2:] for part in first.split(","))
        salted = mechanism.salt_password(password, base64.b64decode(salt), int(iterations))
        without_proof = f"c=biws,r={nonce}"
        client_key = mechanism.hmac(salted, b"Client Key")
        signature = mechanism.hmac(mechanism.hash(client_key), f"{bare},{first},{without_proof}".encode())
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        exchange.evaluate(f"{without_proof},p={base64.b64encode(proof).decode()}".encode())
        return exchange


@pytest.fixture(params=SCRAM_MECHANISMS.values(), ids=lambda mechanism: mechanism.name)
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param, {"id": TOKEN})


PASSWORD = base64.b64encode(HMAC).decode()


def test_a_client_logs_in_with_the_option_tokenauth(client: Client) -> None:
    """The exchange with the settings of a login module, on both sides."""

    async def run_here(work: Callable[[], None]) -> None:
        work()

    jaas = LoginModule("", {"username": "id", "password": PASSWORD, "tokenauth": "True"})
    settings = MechanismSettings(client.mechanism.name, "", jaas, 0, lambda name: None, lambda name: name)
    exchange = client.make_exchange()

    async def ask(request: Any, response_class: type[Any], version: int) -> Any:
        if response_class is SaslHandshakeResponse:
            return SaslHandshakeResponse()
        return SaslAuthenticateResponse(auth_bytes=exchange.evaluate(bytes(request.auth_bytes)))

    login = SaslClient(make_client_settings(settings), random.Random(2).getrandbits, run_here)
    assert run(login.authenticate(ask)) == 0
    assert exchange.authenticated == ("a:lice", 5000, True)


def test_a_token_authenticates_its_owner_until_it_expires(client: Client) -> None:
    assert client.log_in("id", PASSWORD).authenticated == ("a:lice", 5000, True)


@pytest.mark.parametrize(
    ("token_id", "password", "extension"),
    [("id", "wrong", ",tokenauth=true"), ("other", PASSWORD, ",tokenauth=true"), ("id", PASSWORD, "")],
)
def test_others_are_refused(client: Client, token_id: str, password: str, extension: str) -> None:
    with pytest.raises(SaslError) as caught:
        client.log_in(token_id, password, extension)
    assert caught.value.message is None


def test_a_deleted_token_is_refused() -> None:
    tokens = {"id": TOKEN}
    client = Client(SCRAM_MECHANISMS["SCRAM-SHA-256"], tokens)
    assert client.log_in("id", PASSWORD).authenticated
    tokens.clear()
    with pytest.raises(SaslError):
        client.log_in("id", PASSWORD)


def test_a_credential_is_made_once_and_the_oldest_are_dropped() -> None:
    class Tokens(dict[str, TokenSecret]):
        def get(self, token_id: str, default: object = None) -> TokenSecret:
            return TOKEN

    salted = []

    class Mechanism(ScramMechanism):
        def salt_password(self, password: str, salt: bytes, iterations: int) -> bytes:
            salted.append(salt)
            return b"salted"

    mechanism = Mechanism(*SCRAM_MECHANISMS["SCRAM-SHA-256"])
    credentials = TokenCredentials(mechanism, Tokens().get, str.encode)
    first = credentials.find("0")
    assert credentials.find("0") == first
    assert len(salted) == 1
    for number in range(1, MAX_CREDENTIALS + 1):
        credentials.find(str(number))
    assert len(salted) == MAX_CREDENTIALS + 1
    assert credentials.find("0") == first
    assert len(salted) == MAX_CREDENTIALS + 2


def test_the_secret_is_not_in_a_repr() -> None:
    assert "\\x01" not in repr(TOKEN)
