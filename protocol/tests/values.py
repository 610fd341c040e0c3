"""Generated values for any declared message: for Hypothesis, or from a seeded `random.Random`.

Only fields that exist in the version are set; others keep their defaults, so that the decoded message can be compared
with `==`.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hypothesis import strategies as st

from odradek.protocol.messages import API_NAMES, request_class, response_class
from odradek.protocol.schema import ArrayType, Field, Message, Struct, StructType
from odradek.protocol.types import BOOL, BYTES, FLOAT64, RECORDS, STRING, UUID, FixedType, WireType

REQUESTS = [request_class(key) for key in API_NAMES]
RESPONSES = [response_class(key) for key in API_NAMES]
MESSAGES = REQUESTS + RESPONSES
MESSAGE_IDS = [cls.__name__ for cls in MESSAGES]


def versions_of(cls: type[Message]) -> range:
    return range(cls.first_version, cls.last_version + 1)


ALL = [(cls, version) for cls in MESSAGES for version in versions_of(cls)]


@contextmanager
def version_in_failure(cls: type[Message], version: int) -> Iterator[None]:
    """Add the message and its version to any failure, for tests that check all versions of a message in one loop."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"{cls.__name__} v{version}")
        raise


class Source(Protocol):
    """Source of generated values."""

    def integer(self, low: int, high: int) -> int: ...

    def truth(self) -> bool: ...

    def text(self) -> str: ...

    def binary(self) -> bytes: ...

    def uuid(self) -> bytes: ...

    def size(self) -> int:
        """Length of an array."""
        ...


class HypothesisSource:
    """Values that Hypothesis draws, and shrinks after a failure."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(_integers(low, high))

    def truth(self) -> bool:
        return self._draw(_BOOLEANS)

    def text(self) -> str:
        return self._draw(_TEXTS)

    def binary(self) -> bytes:
        return self._draw(_BINARIES)

    def uuid(self) -> bytes:
        return self._draw(_UUIDS)

    def size(self) -> int:
        return self._draw(_SIZES)


_INTEGERS: dict[tuple[int, int], st.SearchStrategy[int]] = {}
_BOOLEANS = st.booleans()
# 127 and 128 bytes are where the length of a compact string takes a second byte.
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(["x" * 126, "é" * 64])
_BINARIES = st.binary(max_size=5) | st.sampled_from([b"\xff" * 126, b"\x80" * 127, bytes(300)])
_UUIDS = st.binary(min_size=16, max_size=16) | st.just(bytes(16))
_SIZES = st.integers(0, 2)


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return _INTEGERS.setdefault((low, high), st.integers(low, high))


class RandomSource:
    """Values from a seeded generator: repeatable and fast."""

    def __init__(self, rng: random.Random, long_array_first: bool = False) -> None:
        self._rng = rng
        self._long_array_first = long_array_first

    def integer(self, low: int, high: int) -> int:
        rng = self._rng
        return rng.choice((low, high, -1 if low < 0 else 1, 0)) if rng.random() < 0.3 else rng.randint(low, high)

    def truth(self) -> bool:
        return self._rng.random() < 0.5

    def text(self) -> str:
        rng = self._rng
        size = rng.choice((0, 1, 3, 8, 126, 127, 128, 300) if rng.random() < 0.2 else (0, 1, 5, 9))
        return "".join(rng.choice("aZ09.-_ \x00\n\"\\é€𝄞") for _ in range(size))

    def binary(self) -> bytes:
        rng = self._rng
        return rng.randbytes(rng.choice((126, 127, 128, 400) if rng.random() < 0.2 else (0, 1, 4, 61)))

    def uuid(self) -> bytes:
        return self._rng.randbytes(16) if self._rng.random() < 0.8 else bytes(16)

    def size(self) -> int:
        if self._long_array_first:
            self._long_array_first = False
            return 130
        return self._rng.randint(0, 3)


Override = Callable[[type[Struct], Field, Source], Any]
AS_USUAL: Any = object()


def usual(cls: type[Struct], item: Field, source: Source) -> Any:
    """Return `AS_USUAL`: the override that changes nothing."""
    return AS_USUAL


def make(cls: type[Struct], version: int, source: Source, override: Override = usual) -> Any:
    """Return a struct with a value in every field of the version.

    `override` is called first for each field, and may restrict its values.
    """
    values: dict[str, Any] = {}
    for item in cls.fields:
        if not item.is_in(version) or (item.is_tagged(version) and source.truth()):
            continue
        value = override(cls, item, source)
        if value is AS_USUAL:
            if item.is_nullable(version) and source.truth():
                value = None
            else:
                value = _make_value(item.wire, version, source, override)
        values[item.name] = value
    return cls(**values)


def _make_value(wire: WireType, version: int, source: Source, override: Override) -> Any:
    if isinstance(wire, StructType):
        return make(wire.cls, version, source, override)
    if isinstance(wire, ArrayType):
        return [_make_value(wire.element, version, source, override) for _ in range(source.size())]
    if wire is BOOL:
        return source.truth()
    if wire is FLOAT64:
        return source.integer(-(2**40), 2**40) / 8
    if isinstance(wire, FixedType):
        bits = 8 * wire.size_bytes
        if wire.format_char.isupper():
            return source.integer(0, 2**bits - 1)
        return source.integer(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    makers: dict[WireType, Callable[[], Any]] = {
        STRING: source.text,
        BYTES: source.binary,
        RECORDS: source.binary,
        UUID: source.uuid,
    }
    return makers[wire]()


@st.composite
def messages(draw: Callable[..., Any], cls: type[Message], version: int, override: Override = usual) -> Message:
    """Hypothesis strategy for one version of a message."""
    message: Message = make(cls, version, HypothesisSource(draw), override)
    return message
