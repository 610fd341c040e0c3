"""Steps of a move, which is a generator: it yields what it waits for, and continues afterwards."""

from collections.abc import Callable, Generator
from enum import Enum, auto
from typing import Protocol

from odradek.log.storage.filesystem import storage_error


class Wait(Enum):
    """A condition that a move waits for."""

    THROTTLE = auto()
    """The throttle is exceeded."""


MoveStep = Callable[[], None] | int | Wait
"""Work to run in a thread, a delay (ms), or a Wait. An exception of the work is raised where the generator waits.

Other moves may run during a delay or a Wait, for as long as they take.
"""

MoveSteps = Generator[MoveStep, None, None]


class MoveThrottle(Protocol):
    """Limit of the bytes per second that all moves copy (replica.alter.log.dirs.io.max.bytes.per.second)."""

    def is_exceeded(self) -> bool:
        """Return whether to wait before more is copied."""

    def record(self, size_bytes: int) -> None:
        """Count copied bytes."""


class NoMoveLimit:
    """A MoveThrottle without a limit."""

    def is_exceeded(self) -> bool:
        """Return False."""
        return False

    def record(self, size_bytes: int) -> None:
        """Count nothing."""


def no_work() -> None:
    """Do nothing. A step with this work ends, and the next one begins after other work of the log's thread."""


def in_directory(path: str, what: str, work: Callable[[], None]) -> Callable[[], None]:
    """Return `work` with an OSError raised as LogDirFailure or ShortageError of the log directory `path`."""

    def run() -> None:
        try:
            work()
        except OSError as error:
            raise storage_error(path, f"{what} failed in {path}: {error}", error) from error

    return run
