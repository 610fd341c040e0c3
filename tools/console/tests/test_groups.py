"""The page of a group that can be listed, but not described."""

from importlib import import_module
from typing import Any, cast

import pytest

from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.groups.description import Group, ListedGroup, Member, PartitionLag

# The package has a blueprint of this name.
groups = import_module("odradek.tools.console.pages.groups")


def describe_as_dead(cluster, names):
    return [Group(name, "Dead", "", "", 1, []) for name in names]


def refuse(*_):
    raise RequestError("UNSUPPORTED_VERSION", "group <b>: UNSUPPORTED_VERSION")


@pytest.fixture
def get(monkeypatch):
    """Return a page of a cluster that lists one share group."""
    listed = [ListedGroup("queue", "Stable", "share", "share", 3)]
    monkeypatch.setattr(groups, "describe_groups", describe_as_dead)
    monkeypatch.setattr(groups, "compute_lags", lambda cluster, found, problems: {one.group: [] for one in found})
    monkeypatch.setattr(groups, "list_groups", lambda cluster, problems: listed)
    monkeypatch.setattr(groups, "unknown_group", lambda cluster, name: RequestError("GROUP_ID_NOT_FOUND", name))
    settings = ConsoleSettings(allows_changes=True)

    def open_page(path, status=200):
        console = Console(lambda: cast(Any, FakeCluster()), "", settings)
        response = make_app(console).test_client().get(path)
        assert response.status_code == status
        return response.get_data(as_text=True)

    return open_page


class FakeCluster:
    def close(self):
        """Do nothing."""


def test_names_with_characters_that_are_not_printed(get, monkeypatch):
    name = "a\u202eb\0<i>"
    member = Member("m\u202e", None, "c\0\u202e", "host", [])
    monkeypatch.setattr(
        groups, "list_groups", lambda cluster, problems: [ListedGroup(name, "Stable", "classic", "", 3)]
    )
    monkeypatch.setattr(groups, "describe_groups", lambda *_: [Group(name, "Stable", "classic", "", 1, [member])])
    listed, shown = get("/groups"), get("/group?name=a%E2%80%AEb%00%3Ci%3E")
    for page in (listed, shown):
        assert "a\\u202eb\\u0000&lt;i&gt;" in page
        assert "\u202e" not in page and "\0" not in page
    assert "/group?name=a%E2%80%AEb%00%3Ci%3E" in listed
    assert "m\\u202e" in shown and "c\\u0000\\u202e" in shown


@pytest.mark.parametrize(("name", "fake"), [("describe_groups", describe_as_dead), ("compute_lags", refuse)])
def test_state_and_type_are_shown(get, monkeypatch, name, fake):
    monkeypatch.setattr(groups, name, fake)
    page = get("/group?name=queue")
    for text in ("Stable", "share protocol", "/brokers/3", "members and offsets"):
        assert text in page
    assert "<b>" not in page and "/group/reset" not in page and "no members" not in page
    listed = get("/groups")
    assert "queue" in listed and 'data-label="Lag">\N{EN DASH}</td>' in listed


def test_members_with_the_same_client_id(get, monkeypatch):
    own = [("orders", partition) for partition in range(40)]
    many = [(f"topic-{index:02}", 0) for index in range(13)]
    static = Member("id-1", "instance-1", "reader", "/h", own)
    dynamic, other = Member("id-2", None, "reader", "/h", many), Member("id-3", None, "<i>", "/h", [])
    group = Group("queue", "Stable", "consumer", "uniform", 1, [static, dynamic, other])
    lags = [PartitionLag("orders", 0, 1, 5, 4, static), PartitionLag("topic-00", 0, None, 5, None, dynamic)]
    monkeypatch.setattr(groups, "describe_groups", lambda cluster, names: [group])
    monkeypatch.setattr(groups, "compute_lags", lambda cluster, found, problems: {"queue": lags})
    page = get("/group?name=queue")
    assert "<div>orders: 0\N{EN DASH}39</div>" in page and ">40</td>" in page
    assert "<div>topic-09: 0</div>" in page and "topic-10" not in page and "and 3 more topics" in page
    assert (
        '<br><span class="code muted">instance-1</span>' in page and '<br><span class="code muted">id-2</span>' in page
    )
    assert "<i>" not in page


def test_a_group_whose_clients_have_a_member_each(get, monkeypatch):
    group = Group("queue", "Stable", "classic", "range", 1, [Member("id-1", None, "reader", "/h", [("t", 0)])])
    monkeypatch.setattr(groups, "describe_groups", lambda cluster, names: [group])
    lags = {"queue": [PartitionLag("t", 0, 1, 5, 4, group.members[0])]}
    monkeypatch.setattr(groups, "compute_lags", lambda cluster, found, problems: lags)
    assert '<td class="wide" data-label="Member">reader</td>' in get("/group?name=queue")


def test_a_group_that_is_not_listed_does_not_exist(get):
    assert "GROUP_ID_NOT_FOUND" in get("/group?name=other", 404)
