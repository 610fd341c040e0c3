"""Changes of nodes that several brokers write: compare-and-set, with repetition."""

from typing import Final, TypeVar

from odradek.replication.controller.events import Work
from odradek.replication.metadata.store import BadVersionError, NodeExistsError, NoNodeError, TransactionError

T = TypeVar("T")

_ATTEMPTS: Final = 10
_RACES: Final = (BadVersionError, NodeExistsError, NoNodeError)
"""Another broker changed, created or removed a node, or removed an old notice, at the same time."""


async def retry_races(write: Work[T]) -> T:
    """Return the result of a write, which is tried again if another broker was faster. Raises TransactionError."""
    for attempt in range(_ATTEMPTS):
        try:
            return await write()
        except TransactionError as error:
            if not isinstance(error.cause, _RACES) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
