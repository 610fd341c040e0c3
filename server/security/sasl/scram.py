"""SCRAM-SHA-256 and SCRAM-SHA-512, on the side of the broker.

Sources: RFC 5802 and 7677, without channel binding; Kafka's ScramSaslServer and ScramMessages. For an unknown user the
exchange continues with a salt that no attempt can tell from a real one, and fails where a wrong password fails.
"""

import base64
import hmac
import re
from collections.abc import Callable
from typing import Final

from odradek.server.security.sasl.mechanism import OTHER_AUTHORIZATION_ID, Authenticated, SaslError
from odradek.server.security.sasl.scram_credentials import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    make_random_text,
)
from odradek.server.security.sasl.settings import TOKEN_EXTENSION
from odradek.server.security.sasl.token_credentials import TokenCredential
from odradek.server.security.sasl.unknown_users import UnknownUsers

_SASL_NAME: Final = r"(?:[\x01-+\--<>-\x7f]|=2C|=3D)+"
_VALUE: Final = r"[\x01-+\--\x7f]+"
_NONCE: Final = r"[!-+\--~]+"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_BASE64: Final = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c={_BASE64},r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_MAX_MESSAGE_BYTES: Final = 8_192
"""Maximum size of a message, which takes up to 5 ms to parse. Those of clients have some 200 bytes."""

FindCredential = Callable[[str], ScramCredential | None]
"""Returns the credential of a user for one mechanism; None if there is none."""

FindTokenCredential = Callable[[str], TokenCredential | None]
"""Returns the credential of a delegation token for one mechanism; None if there is no valid token with the id."""


class ScramExchange:
    """One authentication with SCRAM: client-first, server-first, client-final, server-final."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find_credential: FindCredential,
        unknown_users: UnknownUsers,
        random_bits: Callable[[int], int],
        find_token: FindTokenCredential = lambda token_id: None,
    ) -> None:
        self._mechanism = mechanism
        self._find_credential = find_credential
        self._find_token = find_token
        self._unknown_users = unknown_users
        self._random_bits = random_bits
        self._nonce = ""
        # Messages so far, which the proof of the client covers; empty before the first.
        self._messages = b""
        self._credential: ScramCredential | None = None
        # Whom the proof authenticates; None if the user or the token does not exist.
        self._candidate: Authenticated | None = None
        self.authenticated: Authenticated | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Return server-first or server-final."""
        if len(token) > _MAX_MESSAGE_BYTES:
            raise SaslError(None, "SCRAM message is too long")
        text = token.decode("utf-8", "replace")
        if self._credential is None:
            return self._begin(text)
        credential, self._credential = self._credential, None
        return self._end(text, credential)

    def _begin(self, text: str) -> bytes:
        match = None if self._messages else _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise SaslError(None, "malformed SCRAM client-first message")
        user = match["name"].replace("=2C", ",").replace("=3D", "=")
        if match["authorization"] not in (None, match["name"], user):
            raise SaslError(OTHER_AUTHORIZATION_ID)
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",") if part)
        is_token = extensions.get(TOKEN_EXTENSION, "").lower() == "true"
        unknown = self._unknown_users
        # Made also for a user that exists, which the time of the response would show otherwise.
        substitute = (unknown.make_token_credential if is_token else unknown.make_credential)(self._mechanism, user)
        if is_token:
            self._choose_token(user)
        else:
            self._choose_user(user)
        credential = self._credential = self._credential or substitute
        if credential.iterations < MIN_ITERATIONS:
            raise SaslError(None, f"the credential has fewer than {MIN_ITERATIONS} iterations; set it again")
        self._nonce = match["nonce"] + make_random_text(self._random_bits)
        first = f"r={self._nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
        self._messages = f"{match['bare']},{first}".encode()
        return first.encode()

    def _choose_user(self, user: str) -> None:
        self._credential = self._find_credential(user)
        self._candidate = None if self._credential is None else Authenticated(user)

    def _choose_token(self, token_id: str) -> None:
        found = self._find_token(token_id)
        if found is not None:
            self._credential = found.credential
            self._candidate = Authenticated(found.owner, found.expires_ms, is_token_authenticated=True)

    def _end(self, text: str, credential: ScramCredential) -> bytes:
        mechanism = self._mechanism
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise SaslError(None, "malformed SCRAM client-final message")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            # Kafka 4 refuses it as well.
            is_appended = match["nonce"].endswith(self._nonce)
            hint = ": update librdkafka, which sends it before version 2.6.1" if is_appended else ""
            raise SaslError(None, f"SCRAM client-final message has another nonce{hint}")
        messages = b"%s,%s" % (self._messages, match["without_proof"].encode())
        signature, proof = mechanism.hmac(credential.stored_key, messages), base64.b64decode(match["proof"])
        if len(proof) != len(signature):
            raise SaslError(None, "SCRAM proof has the length of another mechanism")
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        is_right = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if not is_right or self._candidate is None:
            raise SaslError(None, "wrong password, or unknown user")
        self.authenticated = self._candidate
        return b"v=" + base64.b64encode(mechanism.hmac(credential.server_key, messages))
