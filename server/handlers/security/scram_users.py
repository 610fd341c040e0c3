"""DescribeUserScramCredentials 0 and AlterUserScramCredentials 0 (KIP-554).

Each user has an error of its own. In a cluster only the controller changes credentials, as in Kafka 3.9.
"""

from typing import TYPE_CHECKING, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseAlterUserScramCredentialsResult,
)
from odradek.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredentialInfo,
    DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult,
)
from odradek.protocol.schema import rows
from odradek.server.work.slices import SMALL_REQUEST_STEPS
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.controller import Controller
    from odradek.server.request import RequestContext
    from odradek.server.security.sasl.scram_users import DescribedUser, ScramUsers
    from odradek.server.work.slices import Slices


class ScramUserServices(Protocol):
    """The parts of a broker that requests about SCRAM users need."""

    controller: "Controller"
    slices: "Slices"

    @property
    def scram_users(self) -> "ScramUsers": ...


def describe_user_scram_credentials(
    services: ScramUserServices, context: "RequestContext", request: DescribeUserScramCredentialsRequest
) -> "Deferred[DescribeUserScramCredentialsResponse]":
    """Return mechanisms and iterations of users."""
    steps = services.scram_users.describe([user.name for user in request.users or ()])
    return services.slices.run(steps, SMALL_REQUEST_STEPS).addCallback(_make_description)


def _make_description(described: "list[DescribedUser]") -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_message="", results=rows(_make_result, described))


def _make_result(
    described: "DescribedUser",
) -> DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult:
    error = described.error
    return DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult(
        user=described.user,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message="" if error is None else error.message,
        credential_infos=[
            DescribeUserScramCredentialsResponseCredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in described.iterations.items()
        ],
    )


def describe_user_scram_credentials_error(
    request: DescribeUserScramCredentialsRequest, version: int, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    """Return `error` for the whole request and, as Kafka does, for a user without a name."""
    row = DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult(
        user="", error_code=error.code, error_message=error.message
    )
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=[row])


def alter_user_scram_credentials(
    services: ScramUserServices, context: "RequestContext", request: AlterUserScramCredentialsRequest
) -> "Deferred[AlterUserScramCredentialsResponse]":
    """Set and remove credentials. Raises KafkaError NOT_CONTROLLER."""
    # Imported here because the module is not needed at start.
    from odradek.server.security.sasl.scram_users import Change, Deletion, Upsertion

    if not services.controller.is_active:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)
    changes: list[Change] = [Deletion(one.name, one.mechanism) for one in request.deletions]
    changes += [
        Upsertion(one.name, one.mechanism, one.iterations, bytes(one.salt), bytes(one.salted_password))
        for one in request.upsertions
    ]
    return carry_through(services.scram_users.alter(changes)).addCallback(_make_response)


def _make_response(results: dict[str, KafkaError | None]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=rows(
            lambda user: AlterUserScramCredentialsResponseAlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.NONE if (error := results[user]) is None else error.code,
                error_message=None if error is None else error.message,
            ),
            list(results),
        )
    )


def alter_user_scram_credentials_error(
    request: AlterUserScramCredentialsRequest, version: int, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    """Return `error` for every user."""
    users = [deletion.name for deletion in request.deletions] + [one.name for one in request.upsertions]
    return _make_response(dict.fromkeys(users, error))
