"""SaslHandshake (key 17)."""

from odradek.protocol.schema import Message
from odradek.protocol.types import Int16


class SaslHandshakeRequest(Message, key=17, versions="0-1"):
    """Choose a SASL mechanism. Raw tokens follow version 0, SaslAuthenticate requests version 1 (KIP-152)."""

    mechanism: str


class SaslHandshakeResponse(Message, key=17, versions="0-1"):
    """Mechanisms that the broker has."""

    error_code: Int16
    mechanisms: list[str]
