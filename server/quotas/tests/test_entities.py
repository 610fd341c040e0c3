"""Paths of entities, and the entities that AlterClientQuotas accepts."""

import pytest

from odradek.server.quotas.alterations import _check_entity
from odradek.server.quotas.entities import QuotaEntity, parse_path


@pytest.mark.parametrize("name", ["alice", ".", "..", "a/b", "%", "*", "~", "<default>", "ü"])
def test_every_name_has_a_path_of_its_own(name):
    for entity in (QuotaEntity(user=name), QuotaEntity(client_id=name), QuotaEntity(user=name, client_id=name)):
        assert "/." not in entity.path
        assert parse_path(entity.path) == entity


def test_names_that_are_no_paths_are_accepted():
    assert _check_entity({"user": ".", "client-id": ".."}) == QuotaEntity(user=".", client_id="..")
