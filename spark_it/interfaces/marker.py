"""Markers, which record that a batch was written: as a number, and as a committed offset of a group."""

from typing import NamedTuple


def make_marker_number(generation: int, batch_id: int) -> int:
    """Return a number that marks all batches up to `batch_id` of a generation as written; it increases with both."""
    return (generation << 32) + batch_id + 1


def get_generation(marker: int) -> int:
    """Return the generation of a marker."""
    return marker >> 32


def get_batch(marker: int) -> int:
    """Return the last batch that a marker marks as written; -1 if it marks no batch of its generation."""
    return (marker & 0xFFFFFFFF) - 1


class BatchMarker(NamedTuple):
    """A marker as a committed offset of a group: `offset`; its metadata contains the writer's generation, batch and
    state identity, and the time of the commit.

    A marker that a reset or the claim of a slot commits has no batch. One that another program committed has no
    metadata.
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
    def read(cls, offset: int, metadata: str | None) -> "BatchMarker":
        """Return the marker with this offset and metadata. Metadata of another program is ignored."""
        parts = (metadata or "").split(":")
        if len(parts) != 4 or not all(part == "" or part.isdecimal() for part in parts[:3]):
            return cls(offset)
        generation, batch, at_ms = (int(part) if part else None for part in parts[:3])
        return cls(offset, generation, batch, at_ms, parts[3])
