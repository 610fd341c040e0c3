"""Requests, handlers and a socket in every order: each request is answered once, or the connection is closed."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.server import connection as connection_module
from odradek.server import transport as transport_module
from odradek.server.tests.edge import Edge, Kind, Script, run_all_scripts

DEPTH = 7
"""Choices of which every combination is tried; a scenario of two or three requests takes about this many."""

KINDS = [kind for kind in Kind if kind is not Kind.PARKED]
ANSWERED = [Kind.SMALL, Kind.RECORDS, Kind.LATER, Kind.RECORDS_LATER, Kind.AT_ONCE, Kind.NO_RESPONSE_LATER]


@pytest.fixture
def small_limits(monkeypatch):
    """Limits that a few requests reach."""
    monkeypatch.setattr(connection_module, "_BACKLOG_LIMIT", 2)
    monkeypatch.setattr(transport_module, "_TURN_LIMIT_BYTES", 12)
    monkeypatch.setattr(transport_module, "_PENDING_LIMIT_BYTES", 40)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_in_good_weather_every_kind_of_request_is_answered_or_closes_the_connection(kind):
    Edge(Script(), [Kind.SMALL, kind, Kind.LATER, kind, Kind.RECORDS], (2, 3)).run().check()


def test_a_socket_that_has_room_again_at_once_does_not_block_the_connection():
    # The request arrives; the socket takes half of the response; then, before any event, it has room for the rest.
    edge = Edge(Script([0, 1]), [Kind.SMALL, Kind.SMALL]).run().check()
    assert edge.script.taken[1] == (1, 5)


@pytest.mark.parametrize("cuts", [(1,), (3,), (1, 2)], ids=str)
@pytest.mark.parametrize(
    "kinds", list(itertools.product(ANSWERED, repeat=2)), ids=lambda kinds: "-".join(kind.name for kind in kinds)
)
def test_every_order_of_partial_sends_and_events(kinds, cuts):
    def run(script):
        Edge(script, (*kinds, Kind.SMALL), cuts, send_outcomes=3).run().check()

    assert run_all_scripts(run, DEPTH) > DEPTH


@pytest.mark.parametrize("kind", [Kind.SMALL, Kind.RECORDS, Kind.LATER, Kind.CLOSE_LATER], ids=lambda kind: kind.name)
def test_every_order_with_a_socket_that_fails_and_a_client_that_leaves(kind):
    def run(script):
        Edge(script, (Kind.RECORDS, kind, Kind.SMALL), (3,), send_outcomes=6, may_leave=True).run().check()

    assert run_all_scripts(run, DEPTH - 1) > DEPTH


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    cuts=st.lists(st.sampled_from((1, 1.5, 2, 3.5, 8)), min_size=1, max_size=3),
    choices=st.lists(st.integers(0, 11), max_size=120),
    errors=st.booleans(),
    may_leave=st.booleans(),
)
def test_any_order_of_anything(small_limits, kinds, cuts, choices, errors, may_leave):
    Edge(Script(choices), kinds, cuts, send_outcomes=5 + errors, may_leave=may_leave).run().check()
