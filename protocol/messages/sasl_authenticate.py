"""SaslAuthenticate (key 36)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int64


class SaslAuthenticateRequest(Message, key=36, versions="0-2", flexible=2):
    """A token of the client (KIP-152)."""

    auth_bytes: bytes

    def __repr__(self) -> str:
        # Without the token, which may contain a password.
        return f"{type(self).__name__}({len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(Message, key=36, versions="0-2", flexible=2):
    """A token of the broker; from version 1 on with the session's lifetime (KIP-368)."""

    error_code: Int16
    error_message: str | None = None
    auth_bytes: bytes
    session_lifetime_ms: Int64 = field(since=1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.error_code}, {len(self.auth_bytes)} bytes)"
