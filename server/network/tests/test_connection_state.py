"""The table of a connection's states."""

import pytest

from odradek.server.network.connection_state import TRANSITIONS, ConnectionEvent, ConnectionState

S, E = ConnectionState, ConnectionEvent


def follow(*events):
    state = S.OPEN
    for event in events:
        state = TRANSITIONS[state, event]
    return state


def test_there_is_a_transition_for_every_event_in_every_state():
    assert set(TRANSITIONS) == {(state, event) for state in S for event in E}


@pytest.mark.parametrize("event", E)
def test_a_closed_connection_stays_closed(event):
    assert TRANSITIONS[S.CLOSED, event] is S.CLOSED


@pytest.mark.parametrize("state", S)
def test_a_close_or_a_loss_ends_every_state(state):
    assert TRANSITIONS[state, E.CLOSE] is TRANSITIONS[state, E.LOSS] is S.CLOSED


def test_a_refusal_overrides_the_end_of_the_input():
    assert follow(E.INPUT_END, E.REFUSAL) is follow(E.REFUSAL, E.INPUT_END) is S.REFUSED


def test_a_closing_connection_ignores_refusals_and_the_end_of_the_input():
    for event in (E.INPUT_END, E.REFUSAL, E.TRANSPORT_CLOSE):
        assert follow(E.TRANSPORT_CLOSE, event) is S.CLOSING
