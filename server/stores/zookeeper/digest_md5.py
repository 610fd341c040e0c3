"""The client's side of SASL DIGEST-MD5 (RFC 2831), as ZooKeeper's DigestLoginModule uses it.

ZooKeeper supports no better mechanism with passwords: an eavesdropper can try passwords, so use it within TLS.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final

_DIRECTIVE: Final = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s,"]+))\s*(?:,|$)')
_DIGEST_URI: Final = "zookeeper/zk-sasl-md5"
_NONCE_COUNT: Final = "00000001"
_QOP: Final = "auth"


class DigestError(ValueError):
    """The server's challenge cannot be answered, or its proof is wrong."""


class DigestMd5:
    """One exchange. The first token is empty; `respond` returns the others."""

    def __init__(
        self, username: str, password: str, make_nonce: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        self._username = username
        self._password = password
        self._make_nonce = make_nonce
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the answer to a challenge; None if it proves that the server has the password. Raises DigestError."""
        directives = _parse(challenge)
        if not self._proof:
            return self._answer(directives)
        if not hmac.compare_digest(directives.get("rspauth", "").encode(), self._proof.encode()):
            raise DigestError("the server does not prove that it has the password")
        return None

    def _answer(self, directives: dict[str, str]) -> bytes:
        nonce, realm = directives.get("nonce"), directives.get("realm", "")
        if nonce is None or _QOP not in directives.get("qop", _QOP).split(","):
            raise DigestError("the challenge is not one of DIGEST-MD5 with qop=auth")
        own_nonce = self._make_nonce()
        secret = _md5(f"{self._username}:{realm}:{self._password}".encode()).digest()
        session_key = _md5(secret + f":{nonce}:{own_nonce}".encode()).hexdigest()

        def make_proof(method: str) -> str:
            target = _md5(f"{method}:{_DIGEST_URI}".encode()).hexdigest()
            return _md5(f"{session_key}:{nonce}:{_NONCE_COUNT}:{own_nonce}:{_QOP}:{target}".encode()).hexdigest()

        self._proof = make_proof("")
        return (
            f'charset=utf-8,username="{_quote(self._username)}",realm="{_quote(realm)}",nonce="{_quote(nonce)}",'
            f'nc={_NONCE_COUNT},cnonce="{own_nonce}",digest-uri="{_DIGEST_URI}",maxbuf=65536,'
            f"response={make_proof('AUTHENTICATE')},qop={_QOP}"
        ).encode()


def _parse(challenge: bytes) -> dict[str, str]:
    """Return the directives of a challenge. Raises DigestError."""
    directives: dict[str, str] = {}
    position, text = 0, challenge.decode("utf-8", "replace")
    while position < len(text):
        match = _DIRECTIVE.match(text, position)
        if match is None:
            raise DigestError("the challenge is malformed")
        directives[match[1].lower()] = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        position = match.end()
    return directives


def _quote(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def _md5(data: bytes) -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
