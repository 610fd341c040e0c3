"""SCRAM users of a cluster. Passwords are salted and hashed here; a broker receives the result."""

import secrets
from collections.abc import Sequence
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    AlterUserScramCredentialsResponse,
)
from odradek.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUserName,
    DescribeUserScramCredentialsResponse,
)
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, make_salt
from odradek.tools.kafka.cluster import Cluster, check

_NAMES: Final = {mechanism.number: name for name, mechanism in SCRAM_MECHANISMS.items()}


def fetch_users(cluster: Cluster, names: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """Return users, all without names, with the iterations of each of their mechanisms. Raises RequestError."""
    asked = [DescribeUserScramCredentialsRequestUserName(name=name) for name in names]
    request = DescribeUserScramCredentialsRequest(users=asked or None)
    response = cluster.ask_controller(request, DescribeUserScramCredentialsResponse)
    check(response.error_code, response.error_message)
    found = {}
    for one in sorted(response.results, key=lambda one: one.user):
        if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        check(one.error_code, one.error_message, f"user {one.user}")
        found[one.user] = {_NAMES[info.mechanism]: info.iterations for info in one.credential_infos}
    return found


def put_user(cluster: Cluster, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    """Add credentials of a user, or replace them. Raises RequestError."""
    # One request for each mechanism, because a request may name a user once only.
    for name in mechanisms:
        mechanism, salt = SCRAM_MECHANISMS[name], make_salt(secrets.randbits)
        upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion(
            name=user,
            mechanism=mechanism.number,
            iterations=iterations,
            salt=salt,
            salted_password=mechanism.salt_password(password, salt, iterations),
        )
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]))


def remove_user(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    """Remove credentials of a user. Raises RequestError."""
    for name in mechanisms:
        number = SCRAM_MECHANISMS[name].number
        deletion = AlterUserScramCredentialsRequestScramCredentialDeletion(name=user, mechanism=number)
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    for one in cluster.ask_controller(request, AlterUserScramCredentialsResponse).results:
        check(one.error_code, one.error_message, f"user {one.user}")
