"""AlterUserScramCredentials (key 51)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int8, Int16, Int32


class AlterUserScramCredentialsRequestScramCredentialDeletion(Struct):
    name: str
    mechanism: Int8


class AlterUserScramCredentialsRequestScramCredentialUpsertion(Struct):
    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        # Without the salted password, which is as good as the password.
        return f"{type(self).__name__}(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterUserScramCredentialsRequest(Message, key=51, versions="0-0", flexible=0):
    """Set and remove SCRAM credentials of users (KIP-554)."""

    deletions: list[AlterUserScramCredentialsRequestScramCredentialDeletion]
    upsertions: list[AlterUserScramCredentialsRequestScramCredentialUpsertion]


class AlterUserScramCredentialsResponseAlterUserScramCredentialsResult(Struct):
    user: str
    error_code: Int16
    error_message: str | None = None


class AlterUserScramCredentialsResponse(Message, key=51, versions="0-0", flexible=0):
    """An error for each user."""

    throttle_time_ms: Int32
    results: list[AlterUserScramCredentialsResponseAlterUserScramCredentialsResult]
