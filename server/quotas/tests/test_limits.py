"""The limit of a client, by Kafka's precedence, and the clients that share it."""

import pytest

from odradek.server.quotas.entities import DEFAULT, QuotaEntity, parse_path
from odradek.server.quotas.limits import Limit, Limits

BY_PRECEDENCE = [
    (("alice", "app"), ("alice", "app")),
    (("alice", DEFAULT), ("alice", "app")),
    (("alice", None), ("alice", "")),
    ((DEFAULT, "app"), ("alice", "app")),
    ((DEFAULT, DEFAULT), ("alice", "app")),
    ((DEFAULT, None), ("alice", "")),
    ((None, "app"), ("", "app")),
    ((None, DEFAULT), ("", "app")),
]
"""Entities from the most specific to the least, and the owner of their use by User:alice with client id app."""


@pytest.mark.parametrize("first", range(len(BY_PRECEDENCE)))
def test_the_most_specific_limit_applies(first):
    limits = Limits()
    for number, (pair, _) in enumerate(BY_PRECEDENCE[first:]):
        limits.put(*pair, 100.0 + number)
    assert limits.find("alice", "app") == Limit(100.0, BY_PRECEDENCE[first][1])


def test_limits_of_others_do_not_apply():
    limits = Limits()
    for pair in (("bob", None), ("bob", DEFAULT), (None, "other"), ("alice", "other"), (DEFAULT, "other")):
        user, client_id = pair
        limits.put(user, client_id, 1.0)
    assert limits.find("alice", "app") is None


def test_a_client_without_a_client_id_has_only_limits_of_users():
    limits = Limits()
    for pair in ((None, DEFAULT), ("alice", DEFAULT), (DEFAULT, DEFAULT)):
        user, client_id = pair
        limits.put(user, client_id, 1.0)
    assert limits.find("alice", "") is None
    limits.put(DEFAULT, None, 5.0)
    assert limits.find("alice", "") == Limit(5.0, ("alice", ""))
    limits.put("alice", None, 6.0)
    assert limits.find("alice", "") == Limit(6.0, ("alice", ""))


def test_a_removed_limit_does_not_apply():
    limits = Limits()
    limits.put("alice", None, 1.0)
    limits.put("alice", None, None)
    assert limits.find("alice", "app") is None
    assert not limits


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (QuotaEntity(user="alice"), "users/alice"),
        (QuotaEntity(user=DEFAULT), "users/<default>"),
        (QuotaEntity(user="<default>"), "users/%3Cdefault%3E"),
        (QuotaEntity(user="CN=a b,O=ü%/*~"), "users/CN%3Da%20b%2CO%3D%C3%BC%25%2F%2A%7E"),
        (QuotaEntity(user="alice", client_id="a/b"), "users/alice/clients/a%2Fb"),
        (QuotaEntity(user=DEFAULT, client_id=DEFAULT), "users/<default>/clients/<default>"),
        (QuotaEntity(client_id="app-1_2.3"), "clients/app-1_2.3"),
        (QuotaEntity(ip="10.0.0.1"), "ips/10.0.0.1"),
        (QuotaEntity(ip=DEFAULT), "ips/<default>"),
    ],
)
def test_paths_are_those_of_kafka(entity, path):
    assert entity.path == path
    assert parse_path(path) == entity


@pytest.mark.parametrize("path", ["users", "brokers/1", "users/a/clients", "users/a/topics/b", "ips/1/clients/2"])
def test_other_paths_are_no_entities(path):
    assert parse_path(path) is None
