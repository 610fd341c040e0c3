"""A COMMIT that fails: the store reads back whether the change was made, and the image agrees with the store."""

import random
import sqlite3
from contextlib import suppress

import pytest
from twisted.internet.task import Clock

from odradek.protocol.access_control import Operation, Permission, ResourceType
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.acl_changes import AclChanges
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.controller.events import EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.controller.token_changes import TokenChanges, TokenSettings
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclEntry, AclFilter, ResourcePattern
from odradek.replication.metadata.delegation_tokens import TokenCache
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.store import SessionEvent, StoreUnavailableError, run_now
from odradek.replication.pauses import no_pause
from odradek.replication.tests.support import Cluster
from odradek.server.security.sasl.scram_users import Deletion, ScramUsers, Upsertion
from odradek.server.stores.sqlite import SETTLE_INTERVAL_S, SqliteMetadataStore

MADE = pytest.mark.parametrize("is_made", [True, False], ids=["made", "not made"])


class Disk:
    """The store's connections. Each of the next COMMITs fails, after it is made if its entry in `commits` is true."""

    def __init__(self):
        self.commits = []
        self.is_broken = False
        self.opened = 0

    def connect(self, path):
        self.opened += 1
        if self.is_broken:
            raise sqlite3.OperationalError("disk I/O error")
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                if statement != "COMMIT" or not disk.commits:
                    return super().execute(statement, *values)
                is_made = disk.commits.pop(0)
                if is_made:
                    super().execute(statement)
                raise sqlite3.OperationalError("disk I/O error")

        return sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, disk, clock):
    store = SqliteMetadataStore(tmp_path, lambda: 1000, call_later=clock.callLater, connect=disk.connect)
    yield store
    disk.is_broken = False
    clock.advance(SETTLE_INTERVAL_S)
    run_now(store.close())


def test_a_change_that_was_made_is_reported_as_success(store, disk):
    run_now(store.create("/a", b"0"))
    disk.commits = [True]
    assert run_now(store.set("/a", b"1")).version == 1
    assert run_now(store.get("/a")).data == b"1"
    assert run_now(store.set("/a", b"2", 1)).version == 2


def test_a_change_that_was_not_made_is_reported_as_failed(store, disk):
    run_now(store.create("/a", b"0"))
    disk.commits = [False]
    with pytest.raises(StoreUnavailableError, match="disk I/O error"):
        run_now(store.set("/a", b"1"))
    assert run_now(store.get("/a")).data == b"0"
    assert run_now(store.set("/a", b"2", 0)).version == 1


@MADE
def test_the_store_is_unavailable_until_the_outcome_can_be_read(store, disk, clock, is_made):
    run_now(store.create("/a", b"0"))
    run_now(store.create("/alive", ephemeral=True))
    events = []
    store.add_session_listener(events.append)
    disk.commits, disk.is_broken = [is_made], True
    with pytest.raises(StoreUnavailableError, match="its outcome cannot be read"):
        run_now(store.set("/a", b"1"))
    opened = disk.opened
    for attempt in (store.get("/a"), store.set("/a", b"2"), store.get_children("/")):
        with pytest.raises(StoreUnavailableError, match="is unknown"):
            run_now(attempt)
    assert disk.opened == opened, "only the timer opens the file again"
    clock.advance(SETTLE_INTERVAL_S)
    assert disk.opened > opened
    assert events == [SessionEvent.DISCONNECTED]
    disk.is_broken = False
    clock.advance(SETTLE_INTERVAL_S)
    assert events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED]
    assert run_now(store.get("/a")).data == (b"1" if is_made else b"0")
    assert run_now(store.exists("/alive")) is not None
    assert run_now(store.set("/a", b"2")).version == 1 + is_made
    assert not clock.getDelayedCalls()


def test_changes_that_were_read_back_outlive_the_process(tmp_path, store, disk):
    seed = random.Random(5)
    run_now(store.create("/a", b"-1"))
    last = -1
    for number in range(40):
        disk.commits = [seed.random() < 0.5] if seed.random() < 0.6 else []
        try:
            run_now(store.set("/a", b"%d" % number))
        except StoreUnavailableError:
            pass
        else:
            last = number
        copy = tmp_path / f"copy-{number}"
        copy.mkdir()
        for path in tmp_path.glob("odradek*"):
            (copy / path.name).write_bytes(path.read_bytes())
        again = SqliteMetadataStore(copy, lambda: 1)
        assert run_now(again.get("/a")).data == b"%d" % last
        run_now(again.close())


# The controller


@pytest.fixture
def cluster(store, clock):
    class Server:
        def connect(self):
            return store

    cluster = Cluster(server=Server())

    def reload(event):
        if event is SessionEvent.CONNECTED:
            run_now(cluster.controller.reload())

    store.add_session_listener(reload)
    return cluster


def assert_agreement(cluster):
    stored = ClusterMetadata()
    run_now(load_image(cluster.store, stored))
    assert cluster.image.contents() == stored.contents()
    topics = {(name, index) for name, topic in stored.topics.items() for index in range(len(topic.partitions))}
    assert {(log.topic, log.partition) for log in cluster.logs.all_logs()} == topics
    assert set(cluster.replicas.partitions) == topics


@MADE
@pytest.mark.parametrize("is_read_at_once", [True, False], ids=["read at once", "read later"])
def test_the_image_agrees_with_the_store(cluster, disk, clock, is_made, is_read_at_once):
    create(cluster, new("kept", partitions=2))
    create(cluster, new("gone", configs={"retention.ms": "5"}))
    controller = cluster.controller

    def later(change):
        disk.commits, disk.is_broken = [is_made], not is_read_at_once
        try:
            errors = run_now(change)
        except StoreUnavailableError as error:
            errors = {"": error}
        assert (not errors) == (is_made and is_read_at_once)
        disk.is_broken = False
        clock.advance(SETTLE_INTERVAL_S)
        assert_agreement(cluster)

    later(controller.put_topic_config("kept", {"retention.ms": "7"}))
    assert cluster.image.topic_configs.get("kept", {}) == ({"retention.ms": "7"} if is_made else {})
    later(controller.put_broker_config(None, {"log.retention.ms": "9"}))
    kept = cluster.image.topics["kept"]
    moved = kept.partitions[0]._replace(leader_epoch=5)
    later(controller.put_partitions([kept._replace(partitions=(moved, *kept.partitions[1:]))]))
    assert (cluster.image.partition("kept", 0).leader_epoch == 5) == is_made
    later(controller.delete_topics(["gone"]))
    assert ("gone" in cluster.image.topics) != is_made


@MADE
def test_a_topic_of_unknown_outcome_exists_if_its_creation_was_made(cluster, disk, clock, is_made):
    disk.commits, disk.is_broken = [is_made], True
    [result] = create(cluster, new("perhaps"))
    assert result.error_code == 56
    assert "perhaps" not in cluster.image.topics
    disk.is_broken = False
    clock.advance(SETTLE_INTERVAL_S)
    assert ("perhaps" in cluster.image.topics) == is_made
    assert_agreement(cluster)
    [result] = create(cluster, new("perhaps"))
    assert result.error_code == (36 if is_made else 0)



# Users, ACLs and delegation tokens


class Security:
    """The parts of a broker that change them. They are loaded again as the broker does, when the session continues."""

    def __init__(self, store):
        self.store = store
        self.entities = EntityConfigs(store, lambda description, work: None)
        self.users = ScramUsers(self.entities, store, lambda: 0)
        events = EventLoop(ImmediateExecutor())
        cache = AclCache(store, lambda description, work: None, no_pause)
        self.acls = AclChanges(store, cache, events, lambda: 0)
        tokens = TokenCache(store, lambda description, work: None, no_pause, b"key")
        settings = TokenSettings(1000, 1000)
        self.tokens = TokenChanges(store, tokens, events, settings, lambda: 0, random.Random(1).randbytes)
        self.load()

    def load(self):
        run_now(self.entities.start())
        run_now(self.acls.load())
        run_now(self.tokens.load())

    @property
    def content(self):
        return dict(self.entities.configs), dict(self.acls.cache.acls), dict(self.tokens.cache.tokens)


@pytest.fixture
def security(store):
    run_now(prepare_store(store, "a-cluster"))
    security = Security(store)
    store.add_session_listener(lambda event: security.load() if event is SessionEvent.CONNECTED else None)
    return security


TOPIC = ResourcePattern(ResourceType.TOPIC, "t")
ENTRY = AclEntry("User:alice", "*", Operation.READ, Permission.ALLOW)
CHANGES = {
    "set a user": lambda one: one.users.alter([Upsertion("bob", 1, 4096, b"salt", b"salted")]),
    "change a user": lambda one: one.users.alter([Upsertion("alice", 1, 8192, b"salt", b"salted")]),
    "remove a user": lambda one: one.users.alter([Deletion("alice", 1)]),
    "create an ACL": lambda one: one.acls.create({TOPIC: {ENTRY._replace(host="10.0.0.1")}}),
    "delete an ACL": lambda one: one.acls.delete([AclFilter()]),
    "create a token": lambda one: one.tokens.create("User:bob", "User:bob", [], -1),
    "delete a token": lambda one: one.tokens.expire("User:alice", next(iter(one.tokens.cache._ids)), -1),
}


@MADE
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_users_acls_and_tokens_agree_with_the_store(security, disk, clock, change, is_made):
    run_now(security.users.alter([Upsertion("alice", 1, 4096, b"salt", b"salted")]))
    run_now(security.acls.create({TOPIC: {ENTRY}}))
    run_now(security.tokens.create("User:alice", "User:alice", [], -1))
    before = security.content
    disk.commits, disk.is_broken = [is_made], True
    with suppress(KafkaError):
        run_now(change(security))
    assert security.content == before
    disk.is_broken = False
    clock.advance(SETTLE_INTERVAL_S)
    assert (security.content != before) == is_made
    assert security.content == Security(security.store).content
