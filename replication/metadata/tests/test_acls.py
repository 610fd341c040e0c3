"""ACLs in the store: Kafka 3.9's nodes, changes by several brokers, notices, and content that others have written."""

import json
import logging

import pytest

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.acl_changes import PATTERNS_PER_TRANSACTION, AclChanges
from odradek.replication.controller.events import EventKind, EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.acls.acl_cache import DENY_ALL, AclCache
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, AclFilter, ResourcePattern
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import StoreDamagedError, StoreUnavailableError, run_now
from odradek.replication.tests.support import lose_next_response

READ = AclEntry("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = AclEntry("User:bob", "10.0.0.1", Operation.WRITE, Permission.DENY)
TOPIC = ResourcePattern(ResourceType.TOPIC, "t")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "t", PatternType.PREFIXED)
LITERAL_CHANGES, EXTENDED_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"


class Member:
    """A broker's cache of ACLs. Its changes are executed at once, and notices when `follow` is called."""

    def __init__(self, server, *, is_shared=True):
        self.store = server.connect()
        self.store.is_shared = is_shared
        run_now(prepare_store(self.store, "a-cluster"))
        self.posted = []
        self.now_ms = 0
        events = EventLoop(ImmediateExecutor())
        self.cache = AclCache(self.store, lambda description, work: self.posted.append(work), events.executor.pause)
        self.changes = AclChanges(self.store, self.cache, events, lambda: self.now_ms)
        self.published = []
        self.cache.listeners.append(self.published.append)
        run_now(self.changes.load())

    @property
    def acls(self):
        return self.cache.acls

    def create(self, pattern, *entries):
        return run_now(self.changes.create({pattern: set(entries)}))

    def delete(self, *filters):
        return run_now(self.changes.delete(filters))

    def follow(self):
        posted, self.posted = self.posted, []
        for work in posted:
            run_now(work())

    def data(self, path):
        return run_now(self.store.get(path)).data

    def children(self, path):
        return run_now(self.store.get_children(path))


@pytest.fixture
def server():
    return MemoryMetadataServer()


def test_nodes_and_notices_are_kafkas(server):
    member = Member(server)
    assert member.create(TOPIC, READ, WRITE) == {}
    assert member.create(PREFIX, READ) == {}
    assert json.loads(member.data("/kafka-acl/Topic/t")) == {
        "version": 1,
        "acls": [
            {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"},
            {"principal": "User:bob", "permissionType": "Deny", "operation": "Write", "host": "10.0.0.1"},
        ],
    }
    assert b'"operation":"Read"' in member.data("/kafka-acl-extended/prefixed/TransactionalId/t")
    [literal], [extended] = member.children(LITERAL_CHANGES), member.children(EXTENDED_CHANGES)
    assert literal == extended == "acl_changes_0000000000"
    assert member.data(f"{LITERAL_CHANGES}/{literal}") == b"TOPIC:t"
    assert json.loads(member.data(f"{EXTENDED_CHANGES}/{extended}")) == {
        "version": 1, "resourceType": "TRANSACTIONAL_ID", "name": "t", "patternType": "PREFIXED",
    }  # fmt: skip


def test_a_start_creates_the_nodes_that_kafka_creates(server):
    member = Member(server)
    types = ["Cluster", "DelegationToken", "Group", "Topic", "TransactionalId", "User"]
    assert member.children("/kafka-acl") == member.children("/kafka-acl-extended/prefixed") == types


def test_a_change_is_in_the_cache_at_once_and_reaches_the_other_broker(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)
    one.create(PREFIX, WRITE)
    assert one.acls == {TOPIC: {READ}, PREFIX: {WRITE}}
    assert other.acls == {}
    other.follow()
    assert other.acls == one.acls
    other.create(TOPIC, WRITE)
    one.follow()
    assert one.acls[TOPIC] == {READ, WRITE}


def test_an_existing_acl_is_not_written_again(server):
    member = Member(server)
    member.create(TOPIC, READ)
    published, number = len(member.published), member.store.last_transaction_id
    assert member.create(TOPIC, READ) == {}
    assert (len(member.published), member.store.last_transaction_id) == (published, number)


def test_of_two_changes_at_the_same_time_the_second_is_based_on_the_first(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)
    # The other broker has not followed the notice, and changes a node that it has not seen.
    third = AclEntry("User:carol", "*", Operation.ALL, Permission.ALLOW)
    assert other.create(TOPIC, WRITE) == {}
    assert one.create(TOPIC, third) == {}
    one.follow()
    other.follow()
    assert one.acls == other.acls == {TOPIC: {READ, WRITE, third}}


def test_a_race_within_a_transaction_is_repeated(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)
    execute, races = one.store.transaction, []

    async def transaction(operations):
        if not races:
            races.append(other.create(TOPIC, WRITE))
        return await execute(operations)

    one.store.transaction = transaction
    assert one.delete(AclFilter(principal="User:alice"))[0].deleted == [AclBinding(TOPIC, READ)]
    assert one.acls == {TOPIC: {WRITE}}


def test_the_node_of_the_last_acl_is_deleted(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ, WRITE)
    other.follow()
    [result] = one.delete(AclFilter(ResourceType.TOPIC, "t", PatternType.LITERAL))
    assert sorted(result.deleted) == sorted([AclBinding(TOPIC, READ), AclBinding(TOPIC, WRITE)])
    assert one.children("/kafka-acl/Topic") == []
    other.follow()
    assert one.acls == other.acls == {}
    assert other.published[-1] == {TOPIC: frozenset()}


def test_a_filter_that_names_a_pattern_deletes_what_this_broker_has_not_seen(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)
    assert other.delete(AclFilter(ResourceType.TOPIC, "t", PatternType.ANY))[0].deleted == [AclBinding(TOPIC, READ)]
    assert one.children("/kafka-acl/Topic") == []


def test_each_filter_lists_what_it_selects(server):
    member = Member(server)
    member.create(TOPIC, READ, WRITE)
    member.create(ResourcePattern(ResourceType.TOPIC, "*"), READ)
    matching = AclFilter(ResourceType.TOPIC, "t", PatternType.MATCH, principal="User:alice")
    everywhere, nothing = AclFilter(principal="User:alice"), AclFilter(principal="User:carol")
    results = member.delete(matching, everywhere, nothing)
    assert [len(result.deleted) for result in results] == [2, 2, 0]
    assert member.acls == {TOPIC: {WRITE}}


@pytest.mark.parametrize("name", ["t", "tee", "t" * 300, "*", "", None])
@pytest.mark.parametrize("resource_type", [ResourceType.TOPIC, ResourceType.ANY])
@pytest.mark.parametrize("pattern_type", [code for code in PatternType if code is not PatternType.UNKNOWN])
def test_a_filter_names_the_patterns_that_it_matches(name, resource_type, pattern_type):
    one = AclFilter(resource_type, name, pattern_type)
    patterns = [
        ResourcePattern(type_, stored, kind)
        for type_ in (ResourceType.TOPIC, ResourceType.GROUP)
        for stored in ("t", "te", "tee", "tt", "*", "x")
        for kind in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    named = one.named_patterns()
    matched = {pattern for pattern in patterns if one.matches_pattern(pattern)}
    assert named is None or matched == set(patterns) & set(named)
    assert (named is None) == (name is None or (len(name) == 300 and pattern_type is PatternType.MATCH))


def test_many_entries_of_a_pattern_are_added_in_several_transactions(server):
    member = Member(server)
    number = member.store.last_transaction_id
    entries = [AclEntry(f"User:{index}", "*", Operation.READ, Permission.ALLOW) for index in range(1201)]
    assert member.create(TOPIC, *entries) == {}
    assert member.acls == {TOPIC: set(entries)} == Member(server).acls
    assert member.store.last_transaction_id == number + 3


def test_many_patterns_are_changed_in_few_transactions(server):
    member = Member(server)
    count = 2 * PATTERNS_PER_TRANSACTION + 1
    number = member.store.last_transaction_id
    patterns = {ResourcePattern(ResourceType.TOPIC, f"t{index}"): {READ} for index in range(count)}
    assert run_now(member.changes.create(patterns)) == {}
    assert member.store.last_transaction_id == number + 3
    assert len(member.acls) == count
    [result] = member.delete(AclFilter())
    assert len(result.deleted) == count and member.acls == {}


def test_a_transaction_that_is_too_large_is_divided():
    server = MemoryMetadataServer(max_transaction_bytes=4000)
    member = Member(server)
    patterns = {ResourcePattern(ResourceType.TOPIC, f"t{index}"): {READ} for index in range(40)}
    assert run_now(member.changes.create(patterns)) == {}
    assert len(member.acls) == 40
    entries = [AclEntry(f"User:{index}", "*", Operation.READ, Permission.ALLOW) for index in range(60)]
    [(pattern, error)] = member.create(TOPIC, *entries).items()
    assert (pattern, error.code) == (TOPIC, ErrorCode.INVALID_REQUEST)
    assert TOPIC not in member.acls


def test_a_failing_store_fails_the_patterns(server, monkeypatch):
    member = Member(server)
    member.create(TOPIC, READ)

    async def fail(operations):
        raise StoreUnavailableError("the disk failed")

    monkeypatch.setattr(member.store, "transaction", fail)
    assert member.create(TOPIC, WRITE)[TOPIC].code == ErrorCode.KAFKA_STORAGE_ERROR
    [result] = member.delete(AclFilter())
    assert result.deleted == [] and result.error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert member.acls == {TOPIC: {READ}}


def test_a_new_session_loads_what_changed_meanwhile(server):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)
    other.follow()
    server.expire(other.store)
    run_now(other.store.renew())
    one.create(PREFIX, WRITE)
    one.delete(AclFilter(ResourceType.TOPIC, "t", PatternType.LITERAL))
    run_now(other.changes.load())
    assert other.acls == {PREFIX: {WRITE}}
    one.create(TOPIC, WRITE)
    other.follow()
    assert other.acls == one.acls


def test_a_notice_remains_new_until_it_was_followed(server, monkeypatch):
    one, other = Member(server), Member(server)
    one.create(TOPIC, READ)

    async def fail(paths, watch=None):
        raise StoreUnavailableError("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(other.store, "get_many", fail)
        with pytest.raises(StoreUnavailableError):
            other.follow()
    run_now(other.cache.follow())
    assert other.acls == {TOPIC: {READ}}


def test_old_notices_are_removed(server):
    now_ms = 0
    server = MemoryMetadataServer(now_ms=lambda: now_ms)
    member = Member(server)
    member.create(TOPIC, READ)
    now_ms = member.now_ms = 15 * 60_000 + 1
    member.create(TOPIC, WRITE)
    assert member.children(LITERAL_CHANGES) == ["acl_changes_0000000001"]


def test_notices_and_nodes_of_other_programs(server, caplog):
    member, store = Member(server), server.connect()
    rows = [
        {"principal": "User:x", "permissionType": "ALLOW", "operation": "IdempotentWrite", "host": "*"},
        {"principal": "User:y", "permissionType": "Allow", "operation": "Invented", "host": "*"},
    ]
    run_now(store.create("/kafka-acl/Cluster/kafka-cluster", json.dumps({"version": 1, "acls": rows}).encode()))
    run_now(store.create("/kafka-acl/Invented"))
    for notice in (b"Cluster:kafka-cluster", b"no colon", b"INVENTED:x", b"TOPIC:a/b", b"\xff:"):
        run_now(store.create(f"{LITERAL_CHANGES}/acl_changes_", notice, sequential=True))
    newer = b'{"version":2,"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}'
    run_now(store.create(f"{EXTENDED_CHANGES}/acl_changes_", newer, sequential=True))
    member.follow()
    cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    assert member.acls == {
        cluster: {
            AclEntry("User:x", "*", Operation.IDEMPOTENT_WRITE, Permission.ALLOW),
            AclEntry("User:y", "*", Operation.UNKNOWN, Permission.ALLOW),
        }
    }
    with caplog.at_level(logging.WARNING):
        assert Member(server).acls == member.acls
    assert "unknown resource type are ignored path=/kafka-acl/Invented" in caplog.text


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"version":2,"acls":[]}', b'{"version":1,"acls":[{"principal":"x","host":"*"}]}']
)
def test_a_damaged_node_denies_everything_until_it_is_corrected(server, caplog, data):
    member, store = Member(server), server.connect()
    member.create(TOPIC, READ)
    run_now(store.set("/kafka-acl/Topic/t", data))
    run_now(store.create(f"{LITERAL_CHANGES}/acl_changes_", b"TOPIC:t", sequential=True))
    member.follow()
    assert member.acls == {TOPIC: DENY_ALL} == Member(server).acls
    assert "every operation is denied" in caplog.text
    # A change would lose what the node was meant to contain.
    assert member.create(TOPIC, WRITE)[TOPIC].code == ErrorCode.KAFKA_STORAGE_ERROR
    assert run_now(store.get("/kafka-acl/Topic/t")).data == data


def test_the_damage_of_an_embedded_store_fails_the_start(server):
    member = Member(server, is_shared=False)
    run_now(member.store.create("/kafka-acl/Topic/t", b"{"))
    with pytest.raises(StoreDamagedError, match="/kafka-acl/Topic/t"):
        Member(server, is_shared=False)


NAMES = ("a/b", "%2F", "a%b", ".", "..", "*", "ä\n", "n" * 300)


@pytest.mark.parametrize("name", NAMES)
def test_an_embedded_store_has_acls_of_any_name(server, name):
    member = Member(server, is_shared=False)
    patterns = [ResourcePattern(ResourceType.GROUP, name, one) for one in (PatternType.LITERAL, PatternType.PREFIXED)]
    for pattern in patterns:
        member.changes.check_name(name)
        assert member.create(pattern, READ) == {}
    assert member.children(LITERAL_CHANGES) == []
    assert Member(server, is_shared=False).acls == {pattern: {READ} for pattern in patterns}
    [result] = member.delete(AclFilter(name=name))
    assert len(result.deleted) == 2
    assert member.children("/kafka-acl/Group") == []


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a\n", "\ue000"])
def test_zookeeper_refuses_acls_of_names_that_are_no_path(server, name):
    member = Member(server)
    with pytest.raises(KafkaError, match="invalid resource name"):
        member.changes.check_name(name)
    [result] = member.delete(AclFilter(ResourceType.TOPIC, name, PatternType.LITERAL))
    assert result.deleted == [] and result.error is None


def test_requests_are_executed_one_after_another(server):
    member = Member(server)
    kinds = []
    submit = member.changes._events.submit

    async def record(kind, description, work):
        kinds.append((kind, description))
        return await submit(kind, description, work)

    member.changes._events.submit = record
    member.create(TOPIC, READ)
    member.delete(AclFilter())
    assert kinds == [(EventKind.CONFIGURATION, "create ACLs"), (EventKind.CONFIGURATION, "delete ACLs")]


def test_a_change_whose_response_was_lost_is_reported_as_made(server):
    one = Member(server)
    lose_next_response(one.store)
    assert one.create(TOPIC, READ, WRITE) == {}
    lose_next_response(one.store)
    [deletion] = one.delete(AclFilter(ResourceType.TOPIC, "t", PatternType.LITERAL, principal="User:alice"))
    assert deletion == ([AclBinding(TOPIC, READ)], None)
    lose_next_response(one.store)
    [deletion] = one.delete(AclFilter())
    assert deletion == ([AclBinding(TOPIC, WRITE)], None)
    assert one.acls == {} and one.children("/kafka-acl/Topic") == []
