"""The states of a coordinator's shard."""

from enum import Enum

from odradek.protocol.errors import ErrorCode


class CoordinatorState(Enum):
    """State of a shard. The value is the error with which requests are rejected in that state."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    CLOSED = ErrorCode.NOT_COORDINATOR
