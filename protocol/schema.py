"""Message declarations: one class for all versions of a message.

    class HeartbeatRequest(Message, key=12, versions="0-4", flexible=4):
        group_id: str
        generation_id: Int32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

The class statement turns the annotations into slots, a keyword-only `__init__` and a tuple of `Field`s, from which
`codec` compiles and `interpreter` reads. As in Kafka's message definitions (its message README), one type covers all
versions, and each field declares the versions in which it exists.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import GenericAlias, UnionType
from typing import Annotated, Any, ClassVar, Final, TypeVar, cast, get_args, get_origin

from odradek.protocol.types import BOOL, BYTES, RECORDS, STRING, UUID, ZERO_UUID, FixedType, WireType

NEWEST: Final = 32767
MISSING: Final[Any] = object()


class ArrayType(WireType):
    """A counted sequence of one element type."""

    __slots__ = ("element",)

    def __init__(self, element: WireType) -> None:
        super().__init__(f"[]{element.name}")
        self.element = element


class StructType(WireType):
    """A nested struct."""

    __slots__ = ("cls",)

    def __init__(self, cls: "type[Struct]") -> None:
        super().__init__(cls.__name__)
        self.cls = cls


class Field:
    """A field of a message: its wire type and the versions in which it exists, may be null, or is tagged.

    is_secret: its value is not in the `repr` of the message
    """

    __slots__ = ("default", "is_secret", "name", "nullable_since", "since", "tag", "tag_since", "until", "wire")

    def __init__(
        self, since: int, until: int, nullable_since: int, tag: int, tag_since: int, default: Any, *, is_secret: bool
    ) -> None:
        self.name = ""
        self.wire: WireType = BYTES
        self.since = since
        self.until = until
        self.nullable_since = nullable_since
        self.tag = tag
        self.tag_since = tag_since
        self.default = default
        self.is_secret = is_secret

    def is_in(self, version: int) -> bool:
        """Return whether the field exists in this version, tagged or not."""
        return self.since <= version <= self.until

    def is_tagged(self, version: int) -> bool:
        """Return whether the field is a tagged field in this version (KIP-482)."""
        return self.tag >= 0 and version >= self.tag_since

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be null in this version."""
        return version >= self.nullable_since

    def make_default(self) -> Any:
        """Return the default value; a new list for an array."""
        if isinstance(self.wire, ArrayType) and self.default is MISSING:
            return []
        return self.default


def field(
    *,
    since: int = 0,
    until: int = NEWEST,
    nullable_since: int | None = None,
    tag: int = -1,
    tag_since: int | None = None,
    default: Any = MISSING,
    is_secret: bool = False,
) -> Any:
    """Declare the properties of a field that its annotation cannot express.

    `since`/`until` are the versions in which the field exists, `nullable_since` the first in which it may be null (an
    annotation `X | None` means: in all), `tag` its tag and `tag_since` the first version in which it is tagged. With
    `is_secret` its value is not in the `repr` of the message.
    """
    nullable = NEWEST + 1 if nullable_since is None else nullable_since
    return Field(
        since, until, nullable, tag, since if tag_since is None else tag_since, default, is_secret=is_secret
    )


def parse_versions(text: str) -> tuple[int, int]:
    """Parse `"0-4"` or `"3"` to (first, last)."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _wire_type(annotation: Any) -> tuple[WireType, bool]:
    """Return the wire type of an annotation, and whether it may be null."""
    if isinstance(annotation, UnionType) or (
        get_origin(annotation) is not Annotated and type(None) in get_args(annotation)
    ):
        inner = [arm for arm in get_args(annotation) if arm is not type(None)]
        return _wire_type(inner[0])[0], True
    if isinstance(annotation, GenericAlias):
        return ArrayType(_wire_type(annotation.__args__[0])[0]), False
    metadata = getattr(annotation, "__metadata__", None)
    if metadata:
        return metadata[0], False
    if annotation is str:
        return STRING, False
    if annotation is bytes:
        return BYTES, False
    if annotation is bool:
        return BOOL, False
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return StructType(annotation), False
    raise TypeError(f"not a wire type: {annotation!r}")


def _zero(wire: WireType) -> Any:
    if isinstance(wire, FixedType):
        return False if wire is BOOL else 0
    if wire is STRING:
        return ""
    if wire is BYTES:
        return b""
    if wire is RECORDS:
        return None
    if wire is UUID:
        return ZERO_UUID
    if isinstance(wire, StructType):
        return wire.cls()
    return MISSING


def _annotations(namespace: dict[str, Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        return annotationlib.call_annotate_function(annotate, annotationlib.Format.VALUE) if annotate else {}
    annotations: dict[str, Any] = namespace.get("__annotations__", {})
    return annotations


def _compile_init(name: str, fields: tuple[Field, ...]) -> Any:
    """Compile a keyword-only `__init__` that sets the slots.

    An omitted array is a new list. An omitted struct is the field's default, which all instances share: replace it,
    never modify it.
    """
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, lines = [], []
    for number, item in enumerate(fields):
        if item.default is MISSING:
            parameters.append(f"{item.name}=MISSING")
            lines.append(f"    self.{item.name} = [] if {item.name} is MISSING else {item.name}")
        else:
            scope[f"default{number}"] = item.default
            parameters.append(f"{item.name}=default{number}")
            lines.append(f"    self.{item.name} = {item.name}")
    signature = f"def __init__(self, *, {', '.join(parameters)}):" if fields else "def __init__(self):"
    exec("\n".join([signature, *(lines or ["    pass"])]), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{name}.__init__"
    return init


class StructMeta(type):
    """Converts the annotations of a class statement to slots, fields and `__init__`."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        fields = []
        for field_name, annotation in _annotations(namespace).items():
            if get_origin(annotation) is ClassVar:
                continue
            given = namespace.pop(field_name, MISSING)
            item = given if isinstance(given, Field) else field(default=given)
            item.name = field_name
            item.wire, nullable = _wire_type(annotation)
            if nullable and item.nullable_since > NEWEST:
                item.nullable_since = 0
            if item.default is MISSING:
                item.default = _zero(item.wire)
            fields.append(item)
        namespace["__slots__"] = tuple(item.name for item in fields)
        namespace["fields"] = tuple(fields)
        namespace["__init__"] = _compile_init(name, tuple(fields))
        return super().__new__(mcs, name, bases, namespace, **options)


class Struct(metaclass=StructMeta):
    """Base of all declarations; equality and repr compare and print the fields, except secrets."""

    fields: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        """Replaced in each subclass by a compiled `__init__`: keyword-only parameters, each with a default."""
        raise TypeError("Struct is abstract")

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        for item in self.fields:  # noqa: SIM110 - all() with a generator takes twice as long
            if getattr(self, item.name) != getattr(other, item.name):
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(
            f"{item.name}={'[hidden]' if item.is_secret else repr(getattr(self, item.name))}" for item in self.fields
        )
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """A top-level message: the body of a request or response, or a record's versioned key or value.

    Class options: `versions` (inclusive range, as "0-4"), `flexible` (first version with compact types and tagged
    fields, KIP-482; None if there is none) and, for requests and responses, the API `key`.
    """

    api_key: ClassVar[int] = -1
    first_version: ClassVar[int] = 0
    last_version: ClassVar[int] = 0
    flexible_since: ClassVar[int] = NEWEST + 1

    def __init_subclass__(cls, versions: str = "0", flexible: int | None = None, key: int = -1) -> None:
        cls.api_key = key
        cls.first_version, cls.last_version = parse_versions(versions)
        cls.flexible_since = NEWEST + 1 if flexible is None else flexible

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Return whether this version has compact types and tagged fields (KIP-482)."""
        return version >= cls.flexible_since


Row = TypeVar("Row")


class _Rows:
    """An array whose elements are created when they are encoded."""

    __slots__ = ("_items", "_make")

    def __init__(self, make: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._make = make
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._items)

    def __getitem__(self, index: int) -> Any:
        return self._make(self._items[index])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | _Rows) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def rows(make: Callable[[Any], Row], items: Sequence[Any]) -> list[Row]:
    """Return an array of `make(item)` for each item, for a message that is only encoded.

    The elements of a large response are created in the steps in which it is encoded, and not kept.
    """
    return cast(list[Row], _Rows(make, items))


def makes_rows(array: object) -> bool:
    """Return whether each access to an element of an array creates it (`rows`)."""
    return isinstance(array, _Rows)
