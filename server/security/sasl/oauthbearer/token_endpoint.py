"""The request of a token for this broker. It blocks, and runs in a thread.

Sources: RFC 6749, 5; Kafka's HttpJwtRetriever.
"""

import json
import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from odradek.protocol.errors import shorten
from odradek.server.security.sasl.oauthbearer.grants import Form, Grant
from odradek.server.security.sasl.oauthbearer.response_deadline import ResponseDeadline

MAX_RESPONSE_BYTES: Final = 1 << 20

_SUCCESS: Final = (200, 201)
_REFUSED: Final = frozenset({*range(300, 408), *range(409, 418), 501, 505})
"""Statuses after which another attempt has hardly a better result."""


class TokenRefusedError(ValueError):
    """The issuer refuses the request; the next attempt has the same result unless somebody changes something."""


class TokenRequest(NamedTuple):
    """A request of a token."""

    url: str
    grant: Grant
    connect_timeout_s: float = 10
    read_timeout_s: float = 10


def request_token(request: TokenRequest, context: ssl.SSLContext | None = None) -> str:
    """Return a token of the issuer. Raises OSError, TokenRefusedError, or ValueError for a malformed response.

    context: for `https:`; by default the certificates of the operating system are trusted
    """
    form = request.grant.make_form()
    status, content = _post(request, form, context)
    if status in _SUCCESS:
        return _find_token(content)
    reason = f"it responded {status} {_describe_error(content, form.secrets)}".rstrip()
    if status in _REFUSED:
        raise TokenRefusedError(reason)
    raise OSError(reason)


def _post(request: TokenRequest, form: Form, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    """Return status and content of the response. Redirects are not followed, because the request has the secret."""
    # Imported here, in the thread, because it takes 50 ms.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(request.url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=request.connect_timeout_s,
            context=context or ssl.create_default_context(),
        )
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=request.connect_timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.connect()
        with ResponseDeadline(connection.sock, request.read_timeout_s) as deadline:
            connection.request("POST", target, form.body, _make_headers(form))
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES + 1)
            deadline.check()
    except HTTPException as error:
        raise OSError(f"its response is malformed: {type(error).__name__}") from None
    finally:
        connection.close()
    if len(content) > MAX_RESPONSE_BYTES:
        raise ValueError(f"its response is larger than {MAX_RESPONSE_BYTES} bytes")
    return response.status, content


def _make_headers(form: Form) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return headers if form.authorization is None else {**headers, "Authorization": form.authorization}


def _find_token(content: bytes) -> str:
    token = _parse_object(content).get("access_token")
    if not isinstance(token, str) or not token.strip():
        # Without the response, which may contain another secret.
        raise ValueError("its response has no access_token")
    return token.strip()


def _describe_error(content: bytes, secrets: Iterable[str]) -> str:
    """Return the error of a response on one line, without secrets: RFC 6749, 5.2, or the fields that Kafka reads."""
    fields = _parse_object(content)
    pairs = ("error", "error_description"), ("errorCode", "errorSummary")
    texts = [str(fields[name]) for pair in pairs for name in pair if fields.get(name)]
    text = ": ".join(texts)
    for secret in secrets:
        text = text.replace(secret, "[hidden]")
    return shorten(" ".join("".join(one if one.isprintable() else " " for one in text).split()))


def _parse_object(content: bytes) -> dict[str, object]:
    """Parse a JSON object; return an empty one for anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
