"""RenewDelegationToken (key 39)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32, Int64


class RenewDelegationTokenRequest(Message, key=39, versions="1-2", flexible=2):
    """Extend the lifetime of a token."""

    hmac: bytes = field(is_secret=True)
    renew_period_ms: Int64


class RenewDelegationTokenResponse(Message, key=39, versions="1-2", flexible=2):
    """The time at which the token expires now."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32
