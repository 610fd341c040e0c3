"""ExpireDelegationToken (key 40)."""

from odradek.protocol.schema import Message, field
from odradek.protocol.types import Int16, Int32, Int64


class ExpireDelegationTokenRequest(Message, key=40, versions="1-2", flexible=2):
    """Change the time at which a token expires, or delete the token."""

    hmac: bytes = field(is_secret=True)
    expiry_time_period_ms: Int64


class ExpireDelegationTokenResponse(Message, key=40, versions="1-2", flexible=2):
    """The time at which the token expires now."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32
