"""States of a SASL authentication, and the events that change them."""

from collections.abc import Mapping
from enum import Enum, unique
from typing import Final


@unique
class SaslState(Enum):
    """State of an authentication."""

    START = "start"
    """Nothing was received that counts: ApiVersions or SaslHandshake is expected."""
    HANDSHAKE = "handshake"
    """ApiVersions was answered: SaslHandshake is expected."""
    AUTHENTICATE = "authenticate"
    """A token is expected."""
    OTHER_MECHANISM = "other mechanism"
    """A re-authentication with another mechanism: it fails with the next frame."""
    COMPLETE = "complete"
    FAILED = "failed"
    """The connection closes soon."""


@unique
class SaslEvent(Enum):
    """Event that changes the state of an authentication."""

    VERSIONS = "versions"
    MECHANISM = "mechanism"
    OTHER_MECHANISM = "other mechanism"
    SUCCESS = "success"
    FAILURE = "failure"


_State, _Event = SaslState, SaslEvent

TRANSITIONS: Final[Mapping[tuple[SaslState, SaslEvent], SaslState]] = {
    (_State.START, _Event.VERSIONS): _State.HANDSHAKE,
    (_State.START, _Event.MECHANISM): _State.AUTHENTICATE,
    (_State.START, _Event.OTHER_MECHANISM): _State.OTHER_MECHANISM,
    (_State.START, _Event.FAILURE): _State.FAILED,
    (_State.HANDSHAKE, _Event.MECHANISM): _State.AUTHENTICATE,
    (_State.HANDSHAKE, _Event.FAILURE): _State.FAILED,
    (_State.AUTHENTICATE, _Event.SUCCESS): _State.COMPLETE,
    (_State.AUTHENTICATE, _Event.FAILURE): _State.FAILED,
    (_State.OTHER_MECHANISM, _Event.FAILURE): _State.FAILED,
}
"""The state after an event. Other pairs do not occur."""
