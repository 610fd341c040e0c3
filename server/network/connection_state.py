"""States of a connection, and the events that change them."""

from collections.abc import Mapping
from enum import Enum, unique
from typing import Final


@unique
class ConnectionState(Enum):
    """State of a connection."""

    OPEN = "open"
    INPUT_ENDED = "input ended"
    """The client has closed its side: the connection closes after the responses to the requests that have arrived."""
    REFUSED = "refused"
    """The client has sent malformed input: the connection closes after the responses to the requests before it."""
    CLOSING = "closing"
    """The transport is closing: no request is begun; one in progress may still complete."""
    CLOSED = "closed"
    """Nothing more is sent."""


@unique
class ConnectionEvent(Enum):
    """Event that changes the state of a connection."""

    INPUT_END = "input end"
    REFUSAL = "refusal"
    TRANSPORT_CLOSE = "transport close"
    CLOSE = "close"
    LOSS = "loss"


_State, _Event = ConnectionState, ConnectionEvent

TRANSITIONS: Final[Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = {
    (_State.OPEN, _Event.INPUT_END): _State.INPUT_ENDED,
    (_State.OPEN, _Event.REFUSAL): _State.REFUSED,
    (_State.OPEN, _Event.TRANSPORT_CLOSE): _State.CLOSING,
    (_State.OPEN, _Event.CLOSE): _State.CLOSED,
    (_State.OPEN, _Event.LOSS): _State.CLOSED,
    (_State.INPUT_ENDED, _Event.INPUT_END): _State.INPUT_ENDED,
    (_State.INPUT_ENDED, _Event.REFUSAL): _State.REFUSED,
    (_State.INPUT_ENDED, _Event.TRANSPORT_CLOSE): _State.CLOSING,
    (_State.INPUT_ENDED, _Event.CLOSE): _State.CLOSED,
    (_State.INPUT_ENDED, _Event.LOSS): _State.CLOSED,
    (_State.REFUSED, _Event.INPUT_END): _State.REFUSED,
    (_State.REFUSED, _Event.REFUSAL): _State.REFUSED,
    (_State.REFUSED, _Event.TRANSPORT_CLOSE): _State.CLOSING,
    (_State.REFUSED, _Event.CLOSE): _State.CLOSED,
    (_State.REFUSED, _Event.LOSS): _State.CLOSED,
    (_State.CLOSING, _Event.INPUT_END): _State.CLOSING,
    (_State.CLOSING, _Event.REFUSAL): _State.CLOSING,
    (_State.CLOSING, _Event.TRANSPORT_CLOSE): _State.CLOSING,
    (_State.CLOSING, _Event.CLOSE): _State.CLOSED,
    (_State.CLOSING, _Event.LOSS): _State.CLOSED,
    **{(_State.CLOSED, event): _State.CLOSED for event in _Event},
}
"""The state after an event, for every pair."""
