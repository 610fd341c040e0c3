"""Delegation tokens: Kafka's checks and lifetimes, and two brokers that share the tokens."""

import hashlib
import hmac
import itertools
import json

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.events import EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.controller.token_changes import TokenChanges, TokenSettings
from odradek.replication.metadata.delegation_tokens import CHANGES, TOKENS, TokenCache, decode_token, encode_token
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.pauses import no_pause
from odradek.replication.tests.support import lose_next_response

SETTINGS = TokenSettings(max_lifetime_ms=10_000, expiry_time_ms=1000)
SECRET = b"the secret of all brokers"


class Member:
    def __init__(self, server, clock, *, is_shared=True):
        self.store = server.connect()
        self.store.is_shared = is_shared
        run_now(prepare_store(self.store, "a-cluster"))
        self.posted = []
        self.cache = TokenCache(self.store, lambda description, work: self.posted.append(work), no_pause, SECRET)
        numbers = itertools.count(id(self))
        self.changes = TokenChanges(
            self.store,
            self.cache,
            EventLoop(ImmediateExecutor()),
            SETTINGS,
            lambda: clock[0],
            lambda count: next(numbers).to_bytes(count, "big"),
        )
        run_now(self.changes.load())

    def create(self, owner="User:alice", requester="User:alice", renewers=(), max_lifetime_ms=-1):
        return run_now(self.changes.create(owner, requester, renewers, max_lifetime_ms))

    def renew(self, token, principal="User:alice", period_ms=-1):
        return run_now(self.changes.renew(principal, self.hmac(token), period_ms))

    def expire(self, token, principal="User:alice", period_ms=-1):
        return run_now(self.changes.expire(principal, self.hmac(token), period_ms))

    def hmac(self, token):
        return hmac.digest(SECRET, token.token_id.encode(), hashlib.sha512)

    def follow(self):
        posted, self.posted = self.posted, []
        for work in posted:
            run_now(work())


@pytest.fixture
def clock():
    return [1_000_000]


@pytest.fixture
def server():
    return MemoryMetadataServer(lambda: 1_000_000)


def refused(code, call, *arguments, **options):
    with pytest.raises(KafkaError) as caught:
        call(*arguments, **options)
    assert caught.value.code == code


def test_node_has_the_content_of_kafka(server, clock):
    member = Member(server, clock)
    token = member.create("User:CN=a b,O=~x*", "User:admin", ["User:bob"])
    (name,) = run_now(member.store.get_children(TOKENS))
    assert name == token.token_id
    assert len(name) == 22
    assert json.loads(run_now(member.store.get(f"{TOKENS}/{name}")).data) == {
        "version": 3,
        "owner": "User%3ACN%3Da%20b%2CO%3D%7Ex%2A",
        "tokenRequester": "User%3Aadmin",
        "renewers": ["User%3Abob"],
        "issueTimestamp": 1_000_000,
        "maxTimestamp": 1_010_000,
        "expiryTimestamp": 1_001_000,
        "tokenId": name,
    }
    (notice,) = run_now(member.store.get_children(CHANGES))
    assert notice == "token_change_0000000000"
    assert run_now(member.store.get(f"{CHANGES}/{notice}")).data == name.encode()
    assert decode_token(encode_token(token)) == token


@pytest.mark.parametrize("version", [1, 2])
def test_in_old_nodes_the_owner_is_the_requester(version):
    data = json.dumps(
        {
            "version": version,
            "owner": "User%3Aalice",
            "renewers": [],
            "issueTimestamp": 1,
            "maxTimestamp": 3,
            "expiryTimestamp": 2,
            "tokenId": "id",
        }
    ).encode()
    assert decode_token(data) == ("id", "User:alice", "User:alice", (), 1, 3, 2)


def test_lifetimes_of_a_new_token(server, clock):
    member = Member(server, clock)
    assert member.create(max_lifetime_ms=-1)[-2:] == (1_010_000, 1_001_000)
    assert member.create(max_lifetime_ms=0)[-2:] == (1_010_000, 1_001_000)
    assert member.create(max_lifetime_ms=500)[-2:] == (1_000_500, 1_000_500)
    assert member.create(max_lifetime_ms=2**63 - 1)[-2:] == (1_010_000, 1_001_000)


@pytest.mark.parametrize(
    ("period_ms", "expires_ms"),
    [(-1, 1_001_500), (0, 1_001_500), (200, 1_000_700), (5000, 1_001_500), (2**63 - 1, 1_001_500)],
)
def test_renew_extends_the_validity_at_most_by_the_configured_time(server, clock, period_ms, expires_ms):
    member = Member(server, clock)
    token = member.create()
    clock[0] += 500
    assert member.renew(token, period_ms=period_ms) == expires_ms
    assert member.cache.tokens[token.token_id].expires_ms == expires_ms


def test_renew_ends_at_the_maximum(server, clock):
    member = Member(server, clock)
    token = member.create(max_lifetime_ms=800)
    clock[0] += 500
    assert member.renew(token) == 1_000_800


def test_only_owner_and_renewers_renew_and_expire(server, clock):
    member = Member(server, clock)
    token = member.create("User:alice", "User:admin", ["User:bob"])
    assert member.renew(token, "User:bob")
    assert member.expire(token, "User:bob", period_ms=100)
    for principal in ("User:admin", "User:carol", "alice"):
        refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, member.renew, token, principal)
        refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, member.expire, token, principal)


def test_expired_tokens(server, clock):
    member = Member(server, clock)
    token = member.create()
    clock[0] = token.expires_ms
    assert not token.has_expired(clock[0])
    clock[0] += 1
    assert token.has_expired(clock[0])
    # Kafka checks in this order.
    refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, member.renew, token, "User:carol")
    refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, member.expire, token, "User:carol")
    refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, member.expire, token, period_ms=0)
    assert member.expire(token, period_ms=-1) == clock[0]
    refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, member.expire, token)


def test_expire_shortens_the_validity_or_deletes_the_token(server, clock):
    member = Member(server, clock)
    token = member.create()
    assert member.expire(token, period_ms=100) == 1_000_100
    assert member.expire(token, period_ms=2**63 - 1) == token.max_ms
    assert member.expire(token, period_ms=-1) == 1_000_000
    assert member.cache.tokens == {}
    assert member.cache.find_by_hmac(member.hmac(token)) is None
    assert run_now(member.store.get_children(TOKENS)) == []
    refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, member.renew, token)


def test_brokers_follow_each_other(server, clock):
    one, other = Member(server, clock), Member(server, clock)
    token = one.create()
    other.follow()
    assert other.cache.tokens == {token.token_id: token}
    assert other.cache.find_by_hmac(one.hmac(token)) == token
    expires_ms = other.renew(token, period_ms=10)
    one.follow()
    assert one.cache.tokens[token.token_id].expires_ms == expires_ms
    one.expire(token)
    other.follow()
    assert other.cache.tokens == {}


def test_a_token_of_another_broker_is_renewed_before_its_notice_is_followed(server, clock):
    one, other = Member(server, clock), Member(server, clock)
    token = one.create()
    assert other.renew(token)
    one.expire(token)
    refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, other.renew, token)
    assert other.cache.tokens == {}


def test_start_loads_all_tokens_and_forgets_deleted_ones(server, clock):
    one, other = Member(server, clock), Member(server, clock)
    kept, deleted = one.create(), one.create()
    later = Member(server, clock)
    assert later.cache.tokens == {kept.token_id: kept, deleted.token_id: deleted}
    other.follow()
    one.expire(deleted)
    run_now(other.changes.load())
    assert other.cache.tokens == {kept.token_id: kept}


def test_expired_tokens_are_deleted(server, clock):
    one, other = Member(server, clock), Member(server, clock)
    expired, renewed, valid = one.create(), one.create(), one.create()
    clock[0] += 900
    one.renew(valid)
    other.follow()
    one.renew(renewed)
    clock[0] += 200
    run_now(other.changes.delete_expired())
    assert set(run_now(one.store.get_children(TOKENS))) == {renewed.token_id, valid.token_id}
    assert expired.token_id not in other.cache.tokens


def test_a_damaged_node_is_ignored(server, clock, caplog):
    one = Member(server, clock)
    token = one.create()
    run_now(one.store.create(f"{TOKENS}/damaged", b'{"version":4}'))
    run_now(one.store.create(f"{CHANGES}/token_change_", b"../../config", sequential=True))
    run_now(one.store.create(f"{CHANGES}/token_change_", b"damaged", sequential=True))
    other = Member(server, clock)
    assert set(other.cache.tokens) == {token.token_id}
    one.follow()
    assert set(one.cache.tokens) == {token.token_id}
    assert "cannot be" in caplog.text


def test_a_store_of_one_broker_gets_no_notices(server, clock):
    member = Member(server, clock, is_shared=False)
    member.expire(member.create())
    assert run_now(member.store.get_children(CHANGES)) == []


def test_a_change_whose_response_was_lost_is_reported_as_made(server, clock):
    one, other = Member(server, clock), Member(server, clock)
    lose_next_response(one.store)
    token = one.create()
    assert [decode_token(run_now(one.store.get(f"{TOKENS}/{token.token_id}")).data)] == [token]
    lose_next_response(one.store)
    assert one.renew(token) == token.expires_ms
    lose_next_response(one.store)
    assert one.expire(token, period_ms=5) == clock[0] + 5
    lose_next_response(one.store)
    assert one.expire(token, period_ms=-1) == clock[0]
    refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, one.expire, token, period_ms=-1)
    other.follow()
    assert one.cache.tokens == other.cache.tokens == {}
