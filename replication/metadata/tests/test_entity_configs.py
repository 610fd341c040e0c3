"""Configurations of users and clients: two brokers see each other's changes, and none is lost."""

import pytest

from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata import znodes
from odradek.replication.metadata.entity_configs import CLIENT_METRICS, EntityConfigs
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import StoreDamagedError, StoreUnavailableError, run_now
from odradek.replication.metadata.znode_store import check_path


class Member:
    def __init__(self, server):
        self.store = server.connect()
        run_now(prepare_store(self.store, "a-cluster"))
        self.posted = []
        self.entities = EntityConfigs(self.store, lambda description, work: self.posted.append(work))
        self.changes = []
        self.entities.listeners.append(self.changes.append)
        run_now(self.entities.start())

    def put(self, path, **values):
        return run_now(change_entity(self.store, path, lambda before: {**before, **values}, lambda: 1000))

    def remove(self, path):
        return run_now(change_entity(self.store, path, lambda before: {}, lambda: 1000))

    def follow(self):
        posted, self.posted = self.posted, []
        for work in posted:
            run_now(work())


@pytest.fixture
def server():
    return MemoryMetadataServer()


def test_a_change_reaches_the_other_broker(server):
    one, other = Member(server), Member(server)
    one.put("users/alice", a="1")
    one.put("users/alice", b="2")
    one.put("users/alice/clients/app", c="3")
    other.follow()
    assert other.entities.configs == {"users/alice": {"a": "1", "b": "2"}, "users/alice/clients/app": {"c": "3"}}
    one.remove("users/alice")
    other.follow()
    assert other.entities.configs == {"users/alice/clients/app": {"c": "3"}}
    assert other.changes[-1] == {"users/alice": {}}


def test_a_start_loads_everything_and_reports_what_was_removed_meanwhile(server):
    one = Member(server)
    one.put("users/%3Cx%3E/clients/app", a="1")
    one.put("clients/<default>", b="2")
    one.put("ips/10.0.0.1", c="3")
    other = Member(server)
    assert set(other.entities.configs) == {"users/%3Cx%3E/clients/app", "clients/<default>", "ips/10.0.0.1"}
    one.remove("ips/10.0.0.1")
    run_now(other.entities.start())
    assert "ips/10.0.0.1" not in other.entities.configs
    assert other.changes[-1] == {"ips/10.0.0.1": {}}


def test_a_user_that_exists_only_for_its_clients_has_no_configuration(server):
    one, other = Member(server), Member(server)
    one.put("users/alice/clients/app", a="1")
    assert run_now(one.store.get("/config/users/alice")).data is None
    notice = b'{"version":2,"entity_path":"users/alice"}'
    run_now(one.store.create("/config/changes/config_change_", notice, sequential=True))
    other.follow()
    assert other.entities.configs == {"users/alice/clients/app": {"a": "1"}}


def test_of_two_changes_at_the_same_time_the_second_is_based_on_the_first(server):
    one, other = Member(server), Member(server)
    one.put("users/alice", a="1")
    attempts = []

    def change(before):
        attempts.append(dict(before))
        if len(attempts) == 1:
            other.put("users/alice", b="2")
        return {**before, "c": "3"}

    run_now(change_entity(one.store, "users/alice", change, lambda: 1000))
    assert attempts == [{"a": "1"}, {"a": "1", "b": "2"}]
    other.follow()
    assert other.entities.configs["users/alice"] == {"a": "1", "b": "2", "c": "3"}


SECRET = b"9Hc0vzvH"
DAMAGED = (b"\xff" + SECRET, b'["%b"]' % SECRET, b'{"config":["%b"]}' % SECRET, b'{"config":' + b"[" * 100_000 + SECRET)


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_user_does_not_hide_the_others_and_its_content_is_not_logged(server, caplog, data):
    one = Member(server)
    one.put("users/alice", a="1")
    one.put("users/bob", b="2")
    one.put("users/carol", c="3")
    other = Member(server)
    run_now(one.store.set("/config/users/bob", data))
    one.put("users/alice", a="2")
    notice = b'{"version":2,"entity_path":"users/bob"}'
    run_now(one.store.create("/config/changes/config_change_", notice, sequential=True))
    one.put("users/carol", c="4")
    other.follow()
    started = Member(server)
    assert other.entities.configs == started.entities.configs == {"users/alice": {"a": "2"}, "users/carol": {"c": "4"}}
    with pytest.raises(StoreDamagedError, match="its node /config/users/bob cannot be decoded") as refusal:
        one.put("users/bob", b="3")
    assert SECRET.decode() not in str(refusal.value)
    assert "/config/users/bob" in caplog.text and SECRET.decode() not in caplog.text


@pytest.mark.parametrize("path", ["users/../x", "users//clients/app", "users/", "users/\\u0000"])
def test_a_notice_with_a_path_that_no_entity_has_does_not_stop_those_after_it(server, path):
    one, other = Member(server), Member(server)
    get_many = other.store.get_many

    async def get_many_as_zookeeper(paths, watch=None):
        for each in paths:
            check_path(each)
        return await get_many(paths, watch)

    other.store.get_many = get_many_as_zookeeper
    notice = b'{"version":2,"entity_path":"%b"}' % path.encode()
    run_now(one.store.create("/config/changes/config_change_", notice, sequential=True))
    one.put("users/alice", a="1")
    other.follow()
    assert other.entities.configs == {"users/alice": {"a": "1"}}


def test_a_user_that_is_removed_while_its_change_is_followed_has_no_configuration(server):
    one, other = Member(server), Member(server)
    one.put("users/alice", a="1")
    one.put("users/bob", b="2")
    run_now(one.store.delete("/config/users/alice"))
    other.follow()
    assert other.entities.configs == {"users/bob": {"b": "2"}}


def test_a_failed_read_of_a_change_is_repeated_completely(server):
    one, other = Member(server), Member(server)
    one.put("users/alice", a="1")
    one.put("users/bob", b="2")
    get_many, calls = other.store.get_many, []

    async def get_many_once(paths, watch=None):
        calls.append(paths)
        if len(calls) == 2:
            raise StoreUnavailableError("the connection is lost")
        return await get_many(paths, watch)

    other.store.get_many = get_many_once
    with pytest.raises(StoreUnavailableError):
        other.follow()
    assert other.entities.configs == {}
    run_now(other.entities.follow())
    assert other.entities.configs == {"users/alice": {"a": "1"}, "users/bob": {"b": "2"}}


class Subscriber(Member):
    """A broker that follows the subscriptions of client metrics."""

    def __init__(self, server):
        super().__init__(server)
        post = lambda description, work: self.posted.append(work)  # noqa: E731
        self.client_metrics = EntityConfigs(self.store, post, (CLIENT_METRICS,), znodes.CLIENT_METRICS_CHANGES)
        run_now(self.client_metrics.start())

    def subscribe(self, path, **values):
        change = lambda before: values  # noqa: E731
        return run_now(change_entity(self.store, path, change, lambda: 1000, znodes.CLIENT_METRICS_CHANGES))


def test_subscriptions_of_client_metrics_reach_the_other_broker(server):
    one, other = Subscriber(server), Subscriber(server)
    one.subscribe("client-metrics/a%20b", metrics="x")
    other.follow()
    assert other.client_metrics.configs == {"client-metrics/a%20b": {"metrics": "x"}}
    assert Subscriber(server).client_metrics.configs == other.client_metrics.configs
    one.subscribe("client-metrics/a%20b")
    other.follow()
    assert other.client_metrics.configs == {}


def test_brokers_of_kafka_get_no_notice_of_client_metrics(server):
    """Kafka 3.9 would stop at a notice whose type it does not have, and follow no later change of a configuration."""
    one = Subscriber(server)
    one.subscribe("client-metrics/all", metrics="x")
    assert run_now(one.store.get_children(znodes.CONFIG_CHANGES)) == []
    assert len(run_now(one.store.get_children(znodes.CLIENT_METRICS_CHANGES))) == 1
    assert one.entities.configs == {}
