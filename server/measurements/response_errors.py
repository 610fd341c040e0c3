"""Counts of the error codes in responses, by API (KIP-188)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.schema import ArrayType, Message, Struct, StructType, makes_rows

MAX_CODES: Final = 4096
"""Codes of one response that are counted; it takes about a millisecond."""

MAX_MADE_ROWS: Final = 256
"""Rows of one response that are made only for their codes (`schema.rows`), each in two or three microseconds."""


class _MadeRows:
    """The number of rows that were made for the codes of one response."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def take(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Make rows, up to the limit."""
        for row in islice(rows, MAX_MADE_ROWS - self.count):
            self.count += 1
            yield row
            if self.count >= MAX_MADE_ROWS:
                return


FindCodes = Callable[[Any, _MadeRows], Iterator[int]]


class ResponseErrors:
    """The number of error codes in responses, by (API name, code); NONE is 0.

    A code is counted for each row that has one, as in Kafka, in large responses for the first rows only (MAX_CODES,
    MAX_MADE_ROWS). Responses that the produce fast path encodes are not passed to `count`, and have no error.

    responses: the number of responses that were passed to `count`, by API name
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.responses: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()
        self._finders: dict[type[Message], FindCodes] = {}

    def count_without_error(self, api_name: str) -> None:
        """Count a response without an error that is encoded already."""
        self.counts[api_name, ErrorCode.NONE] += 1

    def count(self, api_name: str, response: Message) -> None:
        """Count the codes of a response."""
        self.responses[api_name] += 1
        kind = type(response)
        find = self._finders.get(kind)
        if find is None:
            find = self._finders[kind] = _make_finder(kind)
        counts = self.counts
        for code in islice(find(response, _MadeRows()), MAX_CODES):
            counts[api_name, code] += 1

    def find_uncounted(self, api_name: str, requests: int) -> int:
        """Return how many of the `requests` so far had a response that was not passed to `count`.

        The number never decreases, though a response is passed to `count` before its request is one of `requests`.
        """
        found = max(self._uncounted[api_name], requests - self.responses[api_name])
        self._uncounted[api_name] = found
        return found


def _make_finder(kind: type[Struct]) -> FindCodes:
    """Return a generator function of all `error_code` fields of a struct and the structs in it."""
    has_code = any(field.name == "error_code" for field in kind.fields)
    inner: list[tuple[str, bool, FindCodes]] = []
    for field in kind.fields:
        wire = field.wire
        if isinstance(wire, ArrayType) and isinstance(wire.element, StructType) and _has_codes(wire.element.cls):
            inner.append((field.name, True, _make_finder(wire.element.cls)))
        elif isinstance(wire, StructType) and _has_codes(wire.cls):
            inner.append((field.name, False, _make_finder(wire.cls)))

    def find(struct: Any, made: _MadeRows) -> Iterator[int]:
        if has_code:
            yield struct.error_code
        for name, is_array, find_inner in inner:
            value: Any = getattr(struct, name)
            if value is None:
                continue
            for one in _list_structs(value, made) if is_array else (value,):
                yield from find_inner(one, made)

    return find


def _list_structs(array: Sequence[Any], made: _MadeRows) -> Iterable[Any]:
    return made.take(array) if makes_rows(array) else array


def _has_codes(kind: type[Struct]) -> bool:
    for field in kind.fields:
        wire = field.wire.element if isinstance(field.wire, ArrayType) else field.wire
        if field.name == "error_code" or (isinstance(wire, StructType) and _has_codes(wire.cls)):
            return True
    return False
