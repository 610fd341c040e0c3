"""Error codes in responses of leaders, which may have a later version of Kafka."""

from odradek.protocol.errors import ErrorCode


def read_code(code: int) -> ErrorCode:
    """Return the error of a response; UNKNOWN_SERVER_ERROR for a code that this version does not have."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
