"""Unique values, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

from odradek.protocol.records import Codec, build_batch
from odradek.simulation.api import World
from odradek.simulation.history import Headers, SentRecord

CODECS = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


class Values:
    """Makes records whose values nobody else makes, in the name of one client."""

    def __init__(self, world: World, random: Random, name: str, *, are_keyed: bool = False) -> None:
        self._are_keyed = are_keyed
        self._world = world
        self._random = random
        self._name = name
        self._numbers = count()

    def label(self) -> bytes:
        """A new label: what makes a value unique."""
        return b"%s.%d" % (self._name.encode(), next(self._numbers))

    def records(self, most: int = 8) -> tuple[SentRecord, ...]:
        """One to `most` new records."""
        return tuple(self.record() for _ in range(self._random.choice((1, 2, self._random.randint(1, most)))))

    def record(self, value: bytes | None = None) -> SentRecord:
        """A new record, of a given value or of a new one."""
        random = self._random
        if value is None:
            value = self.label() + b"|" + b"." * random.choice((0, 0, 0, 3, 3, 40, 150))
        key = random.choice((None, b"", b"key-%d" % random.randrange(10)))
        if key is None and self._are_keyed:
            key = b"key"
        headers: Headers = ()
        if random.random() < 0.2:
            headers = (("name", value[:5]), ("name", None))
        return SentRecord(value, key, headers, self._world.now_ms() + random.randrange(3))


def batch_of(
    records: Sequence[SentRecord],
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """The records as a producer sends them; `producer` is its id, epoch and the sequence of the first."""
    producer_id, epoch, sequence = producer
    return build_batch(
        ((record.timestamp, record.key, record.value, record.headers) for record in records),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
