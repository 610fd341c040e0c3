"""CreateDelegationToken (key 38)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class CreateDelegationTokenRequestCreatableRenewers(Struct):
    principal_type: str
    principal_name: str


class CreateDelegationTokenRequest(Message, key=38, versions="1-3", flexible=2):
    """Create a token, for another owner than the requester since version 3 (KIP-373)."""

    owner_principal_type: str | None = field(since=3)
    owner_principal_name: str | None = field(since=3)
    renewers: list[CreateDelegationTokenRequestCreatableRenewers]
    max_lifetime_ms: Int64


class CreateDelegationTokenResponse(Message, key=38, versions="1-3", flexible=2):
    """A new token. Its HMAC is the secret."""

    error_code: Int16
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(since=3)
    token_requester_principal_name: str = field(since=3)
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: str
    hmac: bytes = field(is_secret=True)
    throttle_time_ms: Int32
