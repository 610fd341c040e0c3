"""The page of a group that can be listed, but not described."""

from importlib import import_module
from typing import Any, cast

import pytest

from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.groups import Group, ListedGroup

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


@pytest.mark.parametrize(("name", "fake"), [("describe_groups", describe_as_dead), ("compute_lags", refuse)])
def test_state_and_type_are_shown(get, monkeypatch, name, fake):
    monkeypatch.setattr(groups, name, fake)
    page = get("/group?name=queue")
    for text in ("Stable", "share protocol", "/brokers/3", "members and offsets"):
        assert text in page
    assert "<b>" not in page and "/group/reset" not in page and "no members" not in page
    listed = get("/groups")
    assert "queue" in listed and 'data-label="Lag">\N{EN DASH}</td>' in listed


def test_a_group_that_is_not_listed_does_not_exist(get):
    assert "GROUP_ID_NOT_FOUND" in get("/group?name=other", 404)
