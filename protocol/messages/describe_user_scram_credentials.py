"""DescribeUserScramCredentials (key 50)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32


class DescribeUserScramCredentialsRequestUserName(Struct):
    name: str


class DescribeUserScramCredentialsRequest(Message, key=50, versions="0-0", flexible=0):
    """Describe the SCRAM credentials of users; of all users if the list is null or empty (KIP-554)."""

    users: list[DescribeUserScramCredentialsRequestUserName] | None


class DescribeUserScramCredentialsResponseCredentialInfo(Struct):
    mechanism: Int8
    iterations: Int32


class DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult(Struct):
    user: str
    error_code: Int16
    error_message: str | None = None
    credential_infos: list[DescribeUserScramCredentialsResponseCredentialInfo]


class DescribeUserScramCredentialsResponse(Message, key=50, versions="0-0", flexible=0):
    """Mechanisms and iterations, without the credentials themselves."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None = None
    results: list[DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult]
