"""Batches as clients build them: all codecs, and headers whose largest timestamp differs from that of the records.

librdkafka with `timestamp=-1` sends base timestamp -1 and largest timestamp 0. Other clients send a largest timestamp
that is too low or too high. A broker computes the largest timestamp from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from odradek.properties import INT64_MAX
from odradek.protocol.batches.record_batch import ATTRIBUTES_POSITION, NO_TIMESTAMP
from odradek.protocol.records import Codec, build_batch, stamp_timestamps
from odradek.simulation.history import SentRecord

CODECS: Final = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
_AHEAD_MS: Final = 600_000

_COMMON: Final[dict[str, Callable[[Sequence[int]], int]]] = {
    "exact": max,
    "zero": lambda timestamps: 0,
    "understated": lambda timestamps: max(-1, min(timestamps) - 1),
    "overstated": lambda timestamps: max(timestamps) + _AHEAD_MS,
}
_ABSURD: Final[dict[str, Callable[[Sequence[int]], int]]] = {
    "missing": lambda timestamps: NO_TIMESTAMP,
    "years ahead": lambda timestamps: max(timestamps) + 100_000 * _AHEAD_MS,
    "maximum": lambda timestamps: INT64_MAX,
    "minimum": lambda timestamps: -INT64_MAX - 1,
}
_LARGEST: Final = _COMMON | _ABSURD


class Packing(NamedTuple):
    """Codec and kind of header of a producer's batches; `header` is a key of `_LARGEST`."""

    codec: Codec = Codec.NONE
    header: str = "exact"

    def __str__(self) -> str:
        return self.codec.name if self.header == "exact" else f"{self.codec.name}/{self.header}"


def draw_packing(random: Random) -> Packing:
    """Draw the packing of a producer."""
    return Packing(random.choice(CODECS), random.choice(("exact", "exact", "exact", *_COMMON)))


def draw_wrong_packing(random: Random) -> Packing:
    """Draw the packing of a producer with wrong batch headers."""
    return Packing(random.choice(CODECS), random.choice(list(_ABSURD)))


def batch_of(
    records: Sequence[SentRecord],
    packing: Packing = Packing(),  # noqa: B008 - immutable
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Build the batch that a producer sends; `producer` is its id, epoch and the sequence of the first record."""
    producer_id, epoch, sequence = producer
    batch = build_batch(
        ((record.timestamp, record.key, record.value, record.headers) for record in records),
        codec=packing.codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    if packing.header == "exact":
        return batch
    largest = _LARGEST[packing.header]([record.timestamp for record in records])
    patched = bytearray(batch)
    stamp_timestamps(patched, patched[ATTRIBUTES_POSITION + 1], largest)
    return bytes(patched)
