"""A producer of invalid batches as defective or hostile clients send them; a broker must reject all of them.

None of their records may ever be read, regardless of the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from struct import Struct
from typing import Final

from odradek.properties import INT32_MAX, INT64_MAX
from odradek.protocol.batches.compression import compress
from odradek.protocol.batches.crc import crc32c
from odradek.protocol.batches.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, MAX_TIMESTAMP_POSITION
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import Codec
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import NEEDS_IDS, Link, Versions
from odradek.simulation.clients.producers.batches import Packing, batch_of
from odradek.simulation.clients.producers.produce import produce_request
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import Guarantee, History, Outcome, Partition, SentRecord

_BASE_OFFSET, _LENGTH, _MAGIC = 0, 8, 16
_BASE_TIMESTAMP = 27
_LAST_DELTA, _PRODUCER_ID, _SEQUENCE, _COUNT = 23, 43, 53, 57
_RECORDS: Final = 61
_CONTROL, _LOG_APPEND_TIME, _UNKNOWN_CODEC = 0x20, 0x08, 0x07
_DAYS_MS: Final = 3 * 86_400_000
_EMPTY_RECORD: Final = bytes((12, 0, 0, 0, 1, 1, 0))
_UNALLOCATED_PRODUCER_ID: Final = 1 << 40
"""A producer id that no broker allocates."""

Records = Sequence[SentRecord]
Spoil = Callable[[Records, Random], bytes]


def _patch(records: Records, *patches: tuple[int, str, int], packing: Packing | None = None) -> bytes:
    """Return the batch with some fields overwritten, each by position and format, and a correct checksum."""
    batch = bytearray(batch_of(records, packing or Packing()))
    for position, layout, value in patches:
        Struct(">" + layout).pack_into(batch, position, value)
    Struct(">I").pack_into(batch, CRC_POSITION, crc32c(bytes(batch[ATTRIBUTES_POSITION:])))
    return bytes(batch)


def _resize(batch: bytes) -> bytes:
    """Return the batch with its length field corrected."""
    out = bytearray(batch)
    Struct(">i").pack_into(out, _LENGTH, len(out) - _LENGTH - 4)
    Struct(">I").pack_into(out, CRC_POSITION, crc32c(bytes(out[ATTRIBUTES_POSITION:])))
    return bytes(out)


def _in_future(records: Records, first: int = 0) -> list[SentRecord]:
    """Return the records, from `first` on with timestamps days in the future."""
    return [
        record._replace(timestamp=record.timestamp + _DAYS_MS) if number >= first else record
        for number, record in enumerate(records)
    ]


def _compressed_garbage(records: Records, random: Random) -> bytes:
    batch = _patch(records, packing=Packing(random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))))
    return _resize(batch[:_RECORDS] + random.randbytes(40))


def _far_fewer_than_counted(records: Records, random: Random) -> bytes:
    """Return a batch with so many records that the broker checks them in steps."""
    count = random.choice((20_000, 200_000, 3_000_000))
    header = _patch(
        records, (_COUNT, "i", count), (_LAST_DELTA, "i", count - 1), (ATTRIBUTES_POSITION, "h", Codec.ZSTD)
    )[:_RECORDS]
    return _resize(header + compress(Codec.ZSTD, _EMPTY_RECORD * 19_000))


KINDS: Final[dict[str, Spoil]] = {
    "no records": lambda records, random: _resize(
        _patch(records, (_COUNT, "i", 0), (_LAST_DELTA, "i", -1))[:_RECORDS]
    ),
    "no records at an offset": lambda records, random: _resize(
        _patch(records, (_COUNT, "i", 0), (_LAST_DELTA, "i", 0))[:_RECORDS]
    ),
    "fewer records than counted": lambda records, random: _patch(
        records, (_COUNT, "i", len(records) + 1), (_LAST_DELTA, "i", len(records))
    ),
    "more records than counted": lambda records, random: _patch(
        [*records, *records], (_COUNT, "i", len(records)), (_LAST_DELTA, "i", len(records) - 1)
    ),
    "compressed and miscounted": lambda records, random: _patch(
        records, (_COUNT, "i", len(records) + 1), (_LAST_DELTA, "i", len(records)), packing=Packing(Codec.LZ4)
    ),
    "far fewer records than counted": _far_fewer_than_counted,
    "wrong last delta": lambda records, random: _patch(records, (_LAST_DELTA, "i", len(records) + 6)),
    "wrong base offset": lambda records, random: _patch(records, (_BASE_OFFSET, "q", 7)),
    "control batch": lambda records, random: _patch(records, (ATTRIBUTES_POSITION, "h", _CONTROL)),
    "old magic": lambda records, random: _patch(records, (_MAGIC, "b", random.choice((0, 1)))),
    "unknown codec": lambda records, random: _patch(records, (ATTRIBUTES_POSITION, "h", _UNKNOWN_CODEC)),
    "wrong checksum": lambda records, random: _patch(records)[:-1] + b"\xfe",
    "cut off": lambda records, random: _patch(records)[: random.randint(1, 60)],
    "two batches": lambda records, random: _patch(records) + _patch(records),
    "compressed garbage": _compressed_garbage,
    "records overlap": lambda records, random: _resize(_patch(records)[:_RECORDS] + b"\x80\x01" + bytes(20)),
    "negative sequence": lambda records, random: _patch(
        records, (_PRODUCER_ID, "q", _UNALLOCATED_PRODUCER_ID), (_SEQUENCE, "i", -1)
    ),
    "days ahead": lambda records, random: _patch(_in_future(records)),
    "days ahead under an older header": lambda records, random: _patch(
        _in_future(records, len(records) // 2), (MAX_TIMESTAMP_POSITION, "q", records[0].timestamp)
    ),
    "compressed and days ahead under an older header": lambda records, random: _patch(
        _in_future(records, len(records) // 2),
        (MAX_TIMESTAMP_POSITION, "q", records[0].timestamp),
        packing=Packing(Codec.GZIP),
    ),
    "days ahead under the broker's time": lambda records, random: _patch(
        _in_future(records),
        (ATTRIBUTES_POSITION, "h", _LOG_APPEND_TIME),
        (MAX_TIMESTAMP_POSITION, "q", records[0].timestamp),
    ),
}
"""Kinds of errors, each with a function that builds an invalid batch from valid records. The topic has CreateTime."""

CONTRADICTIONS: Final[dict[str, Spoil]] = {
    "two thousand million records counted": lambda records, random: _patch(
        records, (_COUNT, "i", INT32_MAX), (_LAST_DELTA, "i", INT32_MAX - 1)
    ),
    "two thousand million records counted, compressed": lambda records, random: _patch(
        records,
        (_COUNT, "i", INT32_MAX),
        (_LAST_DELTA, "i", INT32_MAX - 1),
        packing=Packing(random.choice((Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))),
    ),
    "a negative count": lambda records, random: _patch(records, (_COUNT, "i", -1), (_LAST_DELTA, "i", -2)),
    "a negative last delta": lambda records, random: _patch(records, (_LAST_DELTA, "i", -1)),
    "the largest last delta": lambda records, random: _patch(records, (_LAST_DELTA, "i", INT32_MAX)),
    "a last delta of another count, compressed": lambda records, random: _patch(
        records, (_LAST_DELTA, "i", len(records)), packing=Packing(Codec.ZSTD)
    ),
    "the largest base timestamp": lambda records, random: _patch(
        records, (_BASE_TIMESTAMP, "q", INT64_MAX - 1)
    ),
    "a length beyond the batch": lambda records, random: _patch(records, (_LENGTH, "i", INT32_MAX)),
    "a negative length": lambda records, random: _patch(records, (_LENGTH, "i", -1)),
}
"""Further kinds, as in `KINDS`: counts, deltas and lengths that contradict the contents."""


class HostileProducer:
    """Sends an invalid batch at random times, until the world ends."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        kinds: dict[str, Spoil] = KINDS,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._kinds = kinds
        self._values = Values(world, random, name)
        self._link = Link(world, history, name, random, Versions(random, NEEDS_IDS | {0: (7, 13)}))

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            try:
                await self._send(self._random.choice(list(self._kinds)))
            except ConnectionLost:
                await self._link.back_off(1)
            await self._link.nap(self._random.choice((0.05, 0.3)))
        self._link.close()

    async def _send(self, kind: str) -> None:
        random, history = self._random, self._history
        partition = random.choice(self._partitions)
        records = [self._values.record() for _ in range(random.choice((1, 3, 12)))]
        batch = self._kinds[kind](records, random)
        request = await produce_request(self._link, {partition: batch}, -1)
        send = history.begin_send(self.name, partition, self.name, Guarantee.PLAIN, records)
        history.attempt_send(send, kind)
        error = "no response"
        try:
            answer = await self._link.request(request)
            code = answer.responses[0].partition_responses[0].error_code
            error = ErrorCode(code).name
            if code == ErrorCode.NONE:
                history.note_odd(self.name, f"a batch with {kind} was accepted")
        finally:
            history.end_send(send, Outcome.FAILED, error=f"{kind}: {error}")
