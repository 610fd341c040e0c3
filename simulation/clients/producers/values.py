"""Records with unique values, and with timestamps as clients set them."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Final

from odradek.protocol.batches.record_batch import NO_TIMESTAMP
from odradek.simulation.api import World
from odradek.simulation.history import Headers, SentRecord

YEARS_MS: Final = 3 * 365 * 86_400_000
AHEAD_MS: Final = 300_000
"""Offset of clients whose clock is fast. A broker accepts an hour (`message.timestamp.after.max.ms`) by its own clock.
"""
_MANY: Final = 60
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "now": ("now",),
    "fresh": ("now", "now", "none"),
    "any": ("now", "none", "old", "mixed"),
    "aged": ("old", "mixed", "none"),
    "odd": ("ahead", "contradictory", "none"),
    "odd but new": ("ahead", "none"),
}
"""The kinds of timestamps of a producer. With "mixed" each record has another kind. With "contradictory" a batch has
timestamps in the future, in the past, and none."""
_CONTRADICTORY: Final = ("now", "none", "old", "ahead", "first")


class Values:
    """Creates records with unique values for one client.

    `times` is a key of `_KINDS`; -1 is the timestamp of a client that sets none. A partition drops the state of a
    producer whose last batch is older than producer.id.expiration.ms by the batch's timestamps, as Kafka does.
    Therefore idempotent producers use the current time.
    """

    def __init__(
        self, world: World, random: Random, name: str, *, are_keyed: bool = False, times: str = "now"
    ) -> None:
        self._are_keyed = are_keyed
        self._time = random.choice(_KINDS[times])
        self._world = world
        self._random = random
        self._name = name
        self._numbers = count()

    def label(self) -> bytes:
        """Return a new label, which makes a value unique."""
        return b"%s.%d" % (self._name.encode(), next(self._numbers))

    def records(self, most: int = 8) -> tuple[SentRecord, ...]:
        """Return one to `most` new records, rarely many."""
        number = self._random.choice((1, 2, self._random.randint(1, most)))
        if self._random.random() < 0.01:
            number = _MANY
        return tuple(self.record() for _ in range(number))

    def record(self, value: bytes | None = None) -> SentRecord:
        """Return a new record with the given value or a new one."""
        random = self._random
        if value is None:
            value = self.label() + b"|" + b"." * random.choice((0, 0, 0, 3, 3, 40, 150))
        key = random.choice((None, b"", b"key-%d" % random.randrange(10)))
        if key is None and self._are_keyed:
            key = b"key"
        headers: Headers = ()
        if random.random() < 0.2:
            headers = (("name", value[:5]), ("name", None))
        return SentRecord(value, key, headers, self._timestamp())

    def _timestamp(self) -> int:
        now_ms = self._world.now_ms() + self._random.randrange(3)
        kind = self._time
        if kind in ("mixed", "contradictory"):
            kind = self._random.choice(_KINDS["any"] if kind == "mixed" else _CONTRADICTORY)
        if kind == "none":
            return NO_TIMESTAMP
        if kind == "first":
            return self._random.choice((0, 1))
        if kind == "ahead":
            return now_ms + AHEAD_MS
        return now_ms - YEARS_MS if kind in ("old", "mixed") else now_ms
