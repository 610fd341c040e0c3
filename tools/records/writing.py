"""Batches of records to a stream, in large pieces."""

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import BinaryIO, Protocol

from confluent_kafka import Message

from odradek.tools.records.decoding import Decoding
from odradek.tools.records.formats import FormatRecord
from odradek.tools.records.record import Record, read_record

Accept = Callable[[Record], bool]


class RecordWriter(Protocol):
    """Writes batches of records."""

    def write(self, messages: Sequence[Message], most: int) -> tuple[int, int, int]:
        """Write at most `most` of the records; return how many were read, how many written, and the bytes written."""
        ...


class PlainWriter:
    """Writes values as lines, or keys and values, without looking at them: the usual commands, whose cost for each
    record counts.
    """

    def __init__(self, stream: BinaryIO, null: bytes, key_separator: bytes | None = None) -> None:
        self._stream = stream
        self._null = null
        self._key_separator = key_separator

    def write(self, messages: Sequence[Message], most: int) -> tuple[int, int, int]:
        """Write at most `most` records."""
        taken = messages if len(messages) <= most else messages[:most]
        if not taken:
            return 0, 0, 0
        values: list[bytes | None] = [*map(Message.value, taken)]
        if self._key_separator is None:
            data = self._join(b"\n", values) + b"\n"
        else:
            keys = map(Message.key, taken)
            lines = zip(keys, repeat(self._key_separator), values, repeat(b"\n"))
            data = self._join(b"", [*chain.from_iterable(lines)])
        self._stream.write(data)
        return len(taken), len(taken), len(data)

    def _join(self, separator: bytes, parts: Sequence[bytes | None]) -> bytes:
        try:
            return separator.join(parts)  # type: ignore[arg-type]  # a None raises TypeError
        except TypeError:
            return separator.join([self._null if part is None else part for part in parts])


class FormattedWriter:
    """Decodes records, selects some by a condition, and writes them in a format."""

    def __init__(
        self, stream: BinaryIO, decoding: Decoding, accept: Accept | None, format_record: FormatRecord
    ) -> None:
        self._stream = stream
        self._decoding = decoding
        self._accept = accept
        self._format = format_record

    def write(self, messages: Sequence[Message], most: int) -> tuple[int, int, int]:
        """Write at most `most` records."""
        pieces: list[bytes] = []
        count = size_bytes = 0
        for message in messages:
            if len(pieces) >= most:
                break
            count += 1
            record = self._decoding.decode(read_record(message))
            size_bytes += max(record.value_bytes, 0) + max(record.key_bytes, 0)
            if self._accept is None or self._accept(record):
                pieces.append(self._format(record))
        self._stream.write(b"".join(pieces))
        return count, len(pieces), size_bytes
