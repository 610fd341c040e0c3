"""DescribeDelegationToken (key 41)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class DescribeDelegationTokenRequestDescribeDelegationTokenOwner(Struct):
    principal_type: str
    principal_name: str


class DescribeDelegationTokenRequest(Message, key=41, versions="1-3", flexible=2):
    """Describe the tokens of owners; those of all owners without a list."""

    owners: list[DescribeDelegationTokenRequestDescribeDelegationTokenOwner] | None


class DescribeDelegationTokenResponseDescribedDelegationTokenRenewer(Struct):
    principal_type: str
    principal_name: str


class DescribeDelegationTokenResponseDescribedDelegationToken(Struct):
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = field(since=3)
    token_requester_principal_name: str = field(since=3)
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes = field(is_secret=True)
    renewers: list[DescribeDelegationTokenResponseDescribedDelegationTokenRenewer]


class DescribeDelegationTokenResponse(Message, key=41, versions="1-3", flexible=2):
    """Tokens with their HMACs, which are secrets."""

    error_code: Int16
    tokens: list[DescribeDelegationTokenResponseDescribedDelegationToken]
    throttle_time_ms: Int32
