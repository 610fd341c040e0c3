"""Values made from one state of the metadata image, such as the response to Metadata for all topics."""

from collections.abc import Callable, Generator, Hashable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.server.work.slices import Slices

T = TypeVar("T")

MAX_VALUES: Final = 8
"""Values held, for as many combinations of API version, listener and flags."""


class ImageCache(Generic[T]):
    """Holds values until the image changes. A value is made once, in slices, for all requests that wait for it."""

    def __init__(self, image: "ClusterMetadata", slices: "Slices") -> None:
        self._image = image
        self._slices = slices
        self._revision = image.revision
        self._values: dict[Hashable, T] = {}
        self._waiting: dict[Hashable, list[Deferred[T]]] = {}

    def get(self, key: Hashable, make: Callable[[], Generator[None, None, T]]) -> "Deferred[T]":
        """Return a Deferred of the value of `key`. `make` makes it if there is none for the current image.

        `make` reads the image before its first `yield` only, because the image may change between steps.
        """
        if self._revision != self._image.revision:
            self._revision = self._image.revision
            # Values of the old image that are being made are returned to the requests that wait, and not held.
            self._values, self._waiting = {}, {}
        value = self._values.get(key)
        if value is not None:
            return succeed(value)
        outcome: Deferred[T] = Deferred()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(outcome)
            return outcome
        self._waiting[key] = [outcome]
        self._slices.run(make()).addBoth(self._on_made, key, self._values, self._waiting)
        return outcome

    @staticmethod
    def _on_made(
        result: "T | Failure", key: Hashable, values: dict[Hashable, T], waiting: dict[Hashable, list["Deferred[T]"]]
    ) -> None:
        if not isinstance(result, Failure):
            while len(values) >= MAX_VALUES:
                del values[next(iter(values))]
            values[key] = result
        for outcome in waiting.pop(key):
            outcome.callback(result)
