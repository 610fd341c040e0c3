"""Configurations of users and clients: two brokers see each other's changes, and none is lost."""

import pytest

from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now


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
