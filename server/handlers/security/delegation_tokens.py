"""CreateDelegationToken 1-3, RenewDelegationToken 1-2, ExpireDelegationToken 1-2, DescribeDelegationToken 1-3.

Sources: KIP-48, KIP-373 (owners that differ from requesters); Kafka 4.3's KafkaApis, for the order of the checks. Kafka
accepts owners of other types than User, and their tokens then authenticate users of the same name; here they are
refused. It also accepts any number of renewers.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from odradek.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeDelegationTokenResponseDescribedDelegationToken,
    DescribeDelegationTokenResponseDescribedDelegationTokenRenewer,
)
from odradek.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from odradek.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from odradek.protocol.schema import rows
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.principal import ANONYMOUS, USER_TYPE, Principal, parse_principal
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS
from odradek.server.work.waits import carry_through

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.replication.controller.token_changes import TokenChanges
    from odradek.replication.metadata.delegation_tokens import DelegationToken
    from odradek.server.request import RequestContext
    from odradek.server.security.authorization.rights import Rights
    from odradek.server.work.slices import Slices

MAX_RENEWERS: Final = 1_000
"""Renewers of a token. Each broker decodes them all whenever the token is created or renewed; 20,000 take 40 ms."""

_NO_TIME: Final = -1
"""The times in the response to a request that the broker refuses before its controller would process it."""


class DelegationTokenServices(Protocol):
    """The parts of a broker that requests about delegation tokens need."""

    slices: "Slices"
    tokens: "TokenChanges | None"


def create_delegation_token(
    services: DelegationTokenServices, context: "RequestContext", request: CreateDelegationTokenRequest
) -> "CreateDelegationTokenResponse | Deferred[CreateDelegationTokenResponse]":
    """Create a token of the requester, or of another user."""
    requester = Principal(*context.principal[:2])
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    error = _check_creation(context, owner, request)
    if error is not None:
        return _refuse_creation(error, owner, requester)
    if services.tokens is None:
        response = _make_creation_response(owner, requester)
        response.error_code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return response
    renewers = [f"{one.principal_type}:{one.principal_name}" for one in request.renewers]
    return carry_through(_create(services.tokens, owner, requester, renewers, request.max_lifetime_ms))


def _check_creation(
    context: "RequestContext", owner: Principal, request: CreateDelegationTokenRequest
) -> ErrorCode | None:
    """Return the error of a request, in Kafka's order; None if it is valid."""
    if not _may_use_tokens(context):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    rights = context.rights
    is_other = owner[:2] != context.principal[:2]
    if is_other and rights is not None and not rights.allows(ResourceType.USER, str(owner)):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    if owner.type != USER_TYPE or any(one.principal_type != USER_TYPE for one in request.renewers):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    if len(request.renewers) > MAX_RENEWERS:
        return ErrorCode.INVALID_REQUEST
    return None


async def _create(
    tokens: "TokenChanges", owner: Principal, requester: Principal, renewers: list[str], max_lifetime_ms: int
) -> CreateDelegationTokenResponse:
    token = await tokens.create(str(owner), str(requester), renewers, max_lifetime_ms)
    response = _make_creation_response(owner, requester)
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.token_id
    response.hmac = tokens.cache.compute_hmac(token.token_id)
    return response


def _make_creation_response(owner: Principal, requester: Principal) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
    )


def _refuse_creation(code: int, owner: Principal, requester: Principal) -> CreateDelegationTokenResponse:
    response = _make_creation_response(owner, requester)
    response.error_code = code
    response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = _NO_TIME
    return response


def create_delegation_token_error(
    request: CreateDelegationTokenRequest, version: int, error: KafkaError
) -> CreateDelegationTokenResponse:
    """Return `error`, with the principals that Kafka returns."""
    return _refuse_creation(error.code, ANONYMOUS, ANONYMOUS)


def renew_delegation_token(
    services: DelegationTokenServices, context: "RequestContext", request: RenewDelegationTokenRequest
) -> "RenewDelegationTokenResponse | Deferred[RenewDelegationTokenResponse]":
    """Extend the time for which a token is valid."""
    if not _may_use_tokens(context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)
    tokens = _require(services.tokens)
    principal = _name_of(context)

    async def renew() -> RenewDelegationTokenResponse:
        expires_ms = await tokens.renew(principal, bytes(request.hmac), request.renew_period_ms)
        return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)

    return carry_through(renew())


def renew_delegation_token_error(
    request: RenewDelegationTokenRequest, version: int, error: KafkaError
) -> RenewDelegationTokenResponse:
    """Return `error`."""
    return RenewDelegationTokenResponse(error_code=error.code)


def expire_delegation_token(
    services: DelegationTokenServices, context: "RequestContext", request: ExpireDelegationTokenRequest
) -> "ExpireDelegationTokenResponse | Deferred[ExpireDelegationTokenResponse]":
    """Change the time for which a token is valid, or delete the token."""
    if not _may_use_tokens(context):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)
    tokens = _require(services.tokens)
    principal = _name_of(context)

    async def expire() -> ExpireDelegationTokenResponse:
        expires_ms = await tokens.expire(principal, bytes(request.hmac), request.expiry_time_period_ms)
        return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)

    return carry_through(expire())


def expire_delegation_token_error(
    request: ExpireDelegationTokenRequest, version: int, error: KafkaError
) -> ExpireDelegationTokenResponse:
    """Return `error`."""
    return ExpireDelegationTokenResponse(error_code=error.code)


def describe_delegation_token(
    services: DelegationTokenServices, context: "RequestContext", request: DescribeDelegationTokenRequest
) -> "Deferred[DescribeDelegationTokenResponse]":
    """Return the tokens that the client owns, has requested, may renew or may describe.

    Raises KafkaError DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, DELEGATION_TOKEN_AUTH_DISABLED.
    """
    if not _may_use_tokens(context):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    tokens = _require(services.tokens)
    owners = None
    if request.owners is not None:
        owners = {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
    return services.slices.run(_describe(context.rights, tokens, _name_of(context), owners), SMALL_REQUEST_STEPS)


def _describe(
    rights: "Rights | None", tokens: "TokenChanges", requester: str, owners: set[str] | None
) -> Generator[None, None, DescribeDelegationTokenResponse]:
    described = []
    for number, token in enumerate(list(tokens.cache.tokens.values()), 1):
        if number % ROWS_PER_STEP == 0:
            yield
        is_requested = owners is None or not owners.isdisjoint((token.owner, token.requester, *token.renewers))
        if is_requested and (
            rights is None
            or token.is_described_for(requester)
            or rights.allows(ResourceType.DELEGATION_TOKEN, token.token_id, audits_denial=False)
            or rights.allows(ResourceType.USER, token.owner, audits_denial=False)
        ):
            described.append((token, tokens.cache.compute_hmac(token.token_id)))
    return DescribeDelegationTokenResponse(tokens=rows(_make_described, described))


def _make_described(
    described: "tuple[DelegationToken, bytes]",
) -> DescribeDelegationTokenResponseDescribedDelegationToken:
    token, hmac = described
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    return DescribeDelegationTokenResponseDescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[
            DescribeDelegationTokenResponseDescribedDelegationTokenRenewer(
                principal_type=renewer.type, principal_name=renewer.name
            )
            for renewer in map(parse_principal, token.renewers)
        ],
    )


def describe_delegation_token_error(
    request: DescribeDelegationTokenRequest, version: int, error: KafkaError
) -> DescribeDelegationTokenResponse:
    """Return `error` and no tokens."""
    return DescribeDelegationTokenResponse(error_code=error.code)


def _may_use_tokens(context: "RequestContext") -> bool:
    """Return whether the client has proven its identity, and not by a token."""
    principal, protocol = context.principal, context.security_protocol
    if principal.is_token_authenticated or protocol == "PLAINTEXT":
        return False
    return protocol != "SSL" or principal != ANONYMOUS


def _require(tokens: "TokenChanges | None") -> "TokenChanges":
    """Return the tokens. Raises KafkaError DELEGATION_TOKEN_AUTH_DISABLED if there are none."""
    if tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return tokens


def _name_of(context: "RequestContext") -> str:
    return str(context.principal)
