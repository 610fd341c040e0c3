"""The life of a coordinator's shard."""

from enum import Enum

from odradek.protocol.errors import ErrorCode


class CoordinatorState(Enum):
    """Where a shard is in its life, by what it answers to those who come at the wrong time."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    CLOSED = ErrorCode.NOT_COORDINATOR
