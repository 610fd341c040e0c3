"""Requests about delegation tokens: who may make them, and the order of errors."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
)
from odradek.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenRequestDescribeDelegationTokenOwner,
)
from odradek.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.tests.test_delegation_tokens import Member
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.handlers.security import delegation_tokens as handlers
from odradek.server.request import RequestContext
from odradek.server.security.authorization.operations import Operation, ResourceType
from odradek.server.security.principal import ANONYMOUS, USER_TYPE, Principal
from odradek.server.work.slices import Slices

API_OF_HANDLER = {
    handlers.create_delegation_token: APIS[38],
    handlers.renew_delegation_token: APIS[39],
    handlers.expire_delegation_token: APIS[40],
    handlers.describe_delegation_token: APIS[41],
}

Rights = set[tuple[Operation, ResourceType, str]]


class Authorizer:
    def __init__(self, rights: Rights) -> None:
        self.rights = rights

    def allows(self, client: Any, operation: Operation, kind: ResourceType, name: str, **options: Any) -> bool:
        return (operation, kind, name) in self.rights


class Fixture:
    """The services of a broker, with tokens and an authorizer, and requests to it."""

    def __init__(self) -> None:
        self.member = Member(MemoryMetadataServer(lambda: 1_000_000), [1_000_000])
        clock = Clock()
        self.authorizer: Any = None
        self.services: Any = SimpleNamespace(tokens=self.member.changes, slices=Slices(clock, clock.seconds, 1.0))
        self.context = RequestContext("127.0.0.1", "SASL", "SASL_SSL", Principal(USER_TYPE, "alice"))

    def call(self, handler: Any, request: Any) -> Any:
        self.context.rights = None
        if self.authorizer is not None:
            handler = AuthorizationStage(self.authorizer)(API_OF_HANDLER[handler], 3, handler)
        reply = handler(self.services, self.context, request)
        if not isinstance(reply, Deferred):
            return reply
        results: list[Any] = []
        reply.addBoth(results.append)
        (result,) = results
        if hasattr(result, "raiseException"):
            result.raiseException()
        return result

    def create(self, owner: tuple[str, str] | None = None, renewer: tuple[str, str] | None = None) -> Any:
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        if owner is not None:
            request.owner_principal_type, request.owner_principal_name = owner
        if renewer is not None:
            row = CreateDelegationTokenRequestCreatableRenewers(principal_type=renewer[0], principal_name=renewer[1])
            request.renewers = [row]
        return self.call(handlers.create_delegation_token, request)

    def describe(self, *owners: str) -> list[str]:
        request = DescribeDelegationTokenRequest(owners=None)
        if owners:
            request.owners = [
                DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type="User", principal_name=name)
                for name in owners
            ]
        return [one.token_id for one in self.call(handlers.describe_delegation_token, request).tokens]


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_a_token_of_the_requester(fixture: Fixture) -> None:
    response = fixture.create(renewer=("User", "bob"))
    (token,) = fixture.member.cache.tokens.values()
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ("User:bob",))
    assert response.error_code == ErrorCode.NONE
    assert (response.token_id, response.hmac) == (token.token_id, fixture.member.hmac(token))
    assert (response.principal_type, response.principal_name) == ("User", "alice")
    assert (response.issue_timestamp_ms, response.max_timestamp_ms, response.expiry_timestamp_ms) == token[4:]


@pytest.mark.parametrize(
    ("protocol", "principal"),
    [
        ("PLAINTEXT", ANONYMOUS),
        ("SSL", ANONYMOUS),
        ("SASL_SSL", Principal(USER_TYPE, "alice", is_token_authenticated=True)),
    ],
)
def test_clients_without_a_proof_of_their_own_are_refused(
    fixture: Fixture, protocol: str, principal: Principal
) -> None:
    fixture.context = RequestContext("127.0.0.1", "L", protocol, principal)
    # This is checked first, also without a secret.
    fixture.services.tokens = None
    response = fixture.create(owner=("User", "bob"), renewer=("Group", "g"))
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert (response.issue_timestamp_ms, response.max_timestamp_ms, response.token_id) == (-1, -1, "")
    assert (response.principal_name, response.token_requester_principal_name) == ("bob", principal.name)
    for handler, request in (
        (handlers.renew_delegation_token, RenewDelegationTokenRequest()),
        (handlers.expire_delegation_token, ExpireDelegationTokenRequest()),
    ):
        response = fixture.call(handler, request)
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert response.expiry_timestamp_ms == -1
    with pytest.raises(KafkaError) as caught:
        fixture.describe()
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_a_client_with_a_certificate_may_create_tokens(fixture: Fixture) -> None:
    fixture.context = RequestContext("127.0.0.1", "L", "SSL", Principal(USER_TYPE, "CN=alice"))
    assert fixture.create().principal_name == "CN=alice"


def test_tokens_of_others_need_a_right(fixture: Fixture) -> None:
    fixture.authorizer = Authorizer(set())
    response = fixture.create(owner=("User", "bob"), renewer=("Group", "g"))
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert fixture.create().error_code == ErrorCode.NONE
    assert fixture.create(owner=("User", "alice")).error_code == ErrorCode.NONE
    fixture.authorizer.rights.add((Operation.CREATE_TOKENS, ResourceType.USER, "User:bob"))
    response = fixture.create(owner=("User", "bob"))
    assert (response.error_code, response.principal_name) == (ErrorCode.NONE, "bob")
    assert response.token_requester_principal_name == "alice"


@pytest.mark.parametrize(("owner", "renewer"), [(None, ("Group", "g")), (("Group", "g"), None), (("", "x"), None)])
def test_other_types_of_principals_are_refused(fixture: Fixture, owner: Any, renewer: Any) -> None:
    assert fixture.create(owner, renewer).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    fixture.services.tokens = None
    assert fixture.create(owner, renewer).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert fixture.member.cache.tokens == {}


def test_the_number_of_renewers_is_limited(fixture: Fixture) -> None:
    """Any client that has proven its identity may create tokens."""
    for count, code in ((handlers.MAX_RENEWERS, 0), (handlers.MAX_RENEWERS + 1, ErrorCode.INVALID_REQUEST)):
        row = CreateDelegationTokenRequestCreatableRenewers(principal_type=USER_TYPE, principal_name="bob")
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1, renewers=[row] * count)
        assert fixture.call(handlers.create_delegation_token, request).error_code == code


def test_without_a_secret(fixture: Fixture) -> None:
    fixture.services.tokens = None
    assert fixture.create().error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    for handler, request in (
        (handlers.renew_delegation_token, RenewDelegationTokenRequest()),
        (handlers.expire_delegation_token, ExpireDelegationTokenRequest()),
        (handlers.describe_delegation_token, DescribeDelegationTokenRequest(owners=None)),
    ):
        with pytest.raises(KafkaError) as caught:
            fixture.call(handler, request)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_renew_and_expire(fixture: Fixture) -> None:
    hmac = fixture.create().hmac
    renewal = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=10)
    assert fixture.call(handlers.renew_delegation_token, renewal).expiry_timestamp_ms == 1_000_010
    expiry = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=-1)
    assert fixture.call(handlers.expire_delegation_token, expiry).expiry_timestamp_ms == 1_000_000
    for handler, request in ((handlers.renew_delegation_token, renewal), (handlers.expire_delegation_token, expiry)):
        with pytest.raises(KafkaError) as caught:
            fixture.call(handler, request)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_describe_returns_what_the_requester_may_see(fixture: Fixture) -> None:
    authorizer = fixture.authorizer = Authorizer(set())
    member = fixture.member
    own = member.create("User:alice", "User:alice").token_id
    renewed = member.create("User:bob", "User:bob", ["User:alice"]).token_id
    other = member.create("User:bob", "User:bob").token_id
    hidden = member.create("User:carol", "User:carol").token_id
    assert fixture.describe() == [own, renewed]
    assert fixture.describe("bob") == [renewed]
    # The owners of a request select requesters and renewers too, as in Kafka.
    assert fixture.describe("alice") == [own, renewed]
    authorizer.rights.add((Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob"))
    assert fixture.describe() == [own, renewed, other]
    authorizer.rights.add((Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, hidden))
    assert fixture.describe() == [own, renewed, other, hidden]
    assert fixture.describe("dave") == []
    fixture.authorizer = None
    assert fixture.describe() == [own, renewed, other, hidden]


def test_the_requester_of_a_token_may_describe_it(fixture: Fixture) -> None:
    fixture.authorizer = Authorizer(set())
    requested = fixture.member.create("User:carol", "User:alice").token_id
    assert fixture.describe() == [requested]
    assert fixture.describe("alice") == fixture.describe("carol") == [requested]
    hmac = fixture.member.hmac(fixture.member.cache.tokens[requested])
    with pytest.raises(KafkaError) as caught:
        fixture.call(handlers.renew_delegation_token, RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=-1))
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
