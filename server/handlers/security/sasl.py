"""SaslHandshake 0-1 and SaslAuthenticate 0-2 of a client that needs no authentication, or has authenticated itself.

`network.sasl` processes these requests before, and those of a re-authentication.
"""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from odradek.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from odradek.server.request import RequestContext


class SaslServices(Protocol):
    """These requests need no part of a broker."""


def sasl_handshake(
    services: SaslServices, context: "RequestContext", request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Return ILLEGAL_SASL_STATE."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_handshake_error(request: SaslHandshakeRequest, version: int, error: KafkaError) -> SaslHandshakeResponse:
    """Return `error`."""
    return SaslHandshakeResponse(error_code=error.code)


def sasl_authenticate(
    services: SaslServices, context: "RequestContext", request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Return ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


def sasl_authenticate_error(
    request: SaslAuthenticateRequest, version: int, error: KafkaError
) -> SaslAuthenticateResponse:
    """Return `error`."""
    return SaslAuthenticateResponse(error_code=error.code, error_message=error.message)
