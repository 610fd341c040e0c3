"""Markers, which record that a batch is written: their number, and their form as an offset of a group."""

from typing import NamedTuple


def marker_number(generation: int, batch_id: int) -> int:
    """A number that says all batches up to `batch_id` of a generation are written; it grows with both."""
    return (generation << 32) + batch_id + 1


def generation_of(marker: int) -> int:
    """The generation that a marker is of."""
    return marker >> 32


def batch_of(marker: int) -> int:
    """The last batch that is written by a marker; -1 if none of its generation is."""
    return (marker & 0xFFFFFFFF) - 1


class Marker(NamedTuple):
    """What a group's offset says: `offset`, and in its metadata the generation, batch and state of who wrote it, and
    when. A reset, and the claim of a lane, have no batch.

    An offset that somebody else committed has only itself.
    """

    offset: int
    generation: int | None = None
    batch: int | None = None
    at_ms: int | None = None
    state: str = ""

    @property
    def metadata(self) -> str:
        return ":".join("" if part is None else str(part) for part in self[1:])

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> "Marker":
        """The opposite of `metadata`; what is not ours is as if it were not there."""
        parts = (metadata or "").split(":")
        if len(parts) != 4 or not all(part == "" or part.isdecimal() for part in parts[:3]):
            return cls(offset)
        generation, batch, at_ms = (int(part) if part else None for part in parts[:3])
        return cls(offset, generation, batch, at_ms, parts[3])
