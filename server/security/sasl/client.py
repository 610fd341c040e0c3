"""SASL on the side of a broker that connects to another one.

Sources: Kafka's SaslClientAuthenticator and ScramSaslClient; RFC 5802, without channel binding.
"""

import base64
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from odradek.protocol.errors import read_error_code
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from odradek.server.security.sasl.mechanism import Ask, SaslError
from odradek.server.security.sasl.scram_credentials import (
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramMechanism,
    make_random_text,
)
from odradek.server.security.sasl.settings import TOKEN_EXTENSION, ClientSettings

MAX_CLIENT_ITERATIONS: Final = 1_000_000
"""Iterations above which the other broker is refused: it would occupy a thread. Below MIN_ITERATIONS it is refused as
by Kafka: somebody in its place would get a proof from which the password can be guessed."""

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 1
"""Versions that all brokers since Apache Kafka 2.2 have."""

_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9/+=]+),i=([1-9][0-9]{0,8})(?:,.*)?", re.DOTALL)

SaltPassword = Callable[[ScramMechanism, bytes, int], Awaitable[bytes]]
"""Returns the salted password of the broker's user; given mechanism, salt and iterations."""


class ClientExchange(Protocol):
    """One authentication at another broker."""

    async def begin(self) -> bytes:
        """Return the first token. Raises SaslError."""

    async def answer(self, token: bytes) -> bytes | None:
        """Return the next token; None if the exchange is complete. Raises SaslError."""


async def authenticate(ask: Ask, mechanism: str, exchange: ClientExchange, hint: str = "") -> int:
    """Authenticate this broker; return the session's lifetime in ms, 0 without an end. Raises SaslError.

    hint: what to do if the other broker refuses the credentials, at the end of the message
    """
    # Before the handshake: if this broker has no credential, no request is sent.
    token: bytes | None = await exchange.begin()
    offered = await ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, _HANDSHAKE_VERSION)
    if offered.error_code:
        name = read_error_code(offered.error_code).name
        enabled = f"; enabled: {', '.join(offered.mechanisms)}" if offered.mechanisms else ""
        raise SaslError(f"SaslHandshake with {mechanism} returns {name}{enabled}")
    lifetime_ms = 0
    while token is not None:
        request = SaslAuthenticateRequest(auth_bytes=token)
        answer = await ask(request, SaslAuthenticateResponse, _AUTHENTICATE_VERSION)
        if answer.error_code:
            raise SaslError(f"{read_error_code(answer.error_code).name}: {answer.error_message}{hint}")
        lifetime_ms = answer.session_lifetime_ms
        token = await exchange.answer(bytes(answer.auth_bytes))
    return lifetime_ms


class PlainClientExchange:
    """PLAIN."""

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    async def begin(self) -> bytes:
        """Return user name and password."""
        return self._token

    async def answer(self, token: bytes) -> None:
        """Return None: there is one token only."""


class ScramClientExchange:
    """SCRAM. It also verifies that the other broker has the user's credential.

    is_token: the user is the id of a delegation token
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        nonce: str,
        salt_password: SaltPassword,
        *,
        is_token: bool = False,
    ) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._salt_password = salt_password
        extension = f",{TOKEN_EXTENSION}=true" if is_token else ""
        self._first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{extension}"
        self._signature: bytes | None = None

    async def begin(self) -> bytes:
        """Return client-first."""
        return f"n,,{self._first}".encode()

    async def answer(self, token: bytes) -> bytes | None:
        """Return client-final, then None. Raises SaslError."""
        if self._signature is None:
            return await self._prove(token)
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(token.partition(b",")[0], expected):
            raise SaslError("the other broker does not have the credential of the user")
        return None

    async def _prove(self, token: bytes) -> bytes:
        mechanism, text = self._mechanism, token.decode("ascii", "replace")
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match[1].startswith(self._nonce) or match[1] == self._nonce:
            raise SaslError("malformed SCRAM server-first message")
        iterations = int(match[3])
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            allowed = f"{MIN_ITERATIONS} to {MAX_CLIENT_ITERATIONS}"
            raise SaslError(f"the other broker requires {iterations} iterations; {allowed} are allowed")
        try:
            salt = base64.b64decode(match[2], validate=True)
        except ValueError:
            raise SaslError("malformed SCRAM server-first message") from None
        salted = await self._salt_password(mechanism, salt, iterations)
        without_proof = f"c=biws,r={match[1]}"
        messages = f"{self._first},{text},{without_proof}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        client_signature = mechanism.hmac(mechanism.hash(client_key), messages)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), messages)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


class SaslClient:
    """Authenticates this broker with a password on its connections to others.

    run_in_thread: returns when a function has run in a thread, because the hash of a password takes several ms
    hint: see `authenticate`
    """

    def __init__(
        self,
        settings: ClientSettings,
        random_bits: Callable[[int], int],
        run_in_thread: Callable[[Callable[[], None]], Awaitable[None]],
        hint: str = "",
    ) -> None:
        self._hint = hint
        self._settings = settings
        self._random_bits = random_bits
        self._run_in_thread = run_in_thread
        # The last salted password: all brokers have the same credential.
        self._salted: tuple[tuple[bytes, int], bytes] | None = None

    async def authenticate(self, ask: Ask, host: str = "") -> int:
        """Authenticate one connection, to any host; return the session's lifetime in ms, 0 without an end.

        Raises SaslError.
        """
        return await authenticate(ask, self._settings.mechanism, self._make_exchange(), self._hint)

    def _make_exchange(self) -> ClientExchange:
        mechanism, user, password, is_token = self._settings
        if mechanism == "PLAIN":
            return PlainClientExchange(user, password)
        return ScramClientExchange(
            SCRAM_MECHANISMS[mechanism],
            user,
            make_random_text(self._random_bits),
            self._salt_password,
            is_token=is_token,
        )

    async def _salt_password(self, mechanism: ScramMechanism, salt: bytes, iterations: int) -> bytes:
        if self._salted is not None and self._salted[0] == (salt, iterations):
            return self._salted[1]
        results: list[bytes] = []

        def work() -> None:
            results.append(mechanism.salt_password(self._settings.password, salt, iterations))

        await self._run_in_thread(work)
        self._salted = (salt, iterations), results[0]
        return results[0]
