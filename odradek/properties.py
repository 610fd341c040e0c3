"""Declarations of configuration properties, and sets of their values.

A set of properties is a class whose attributes are declarations:

    class LogConfig(PropertySet):
        segment_bytes = integer("segment.bytes", 1 << 30, minimum=1 << 20, doc="When to roll a segment.")

    config = LogConfig({"segment.bytes": "2097152"})
    config.segment_bytes       # 2097152, an int for the type checker and at run time

Parsing, validation, `odradek config`, DescribeConfigs and docs/configuration.md are derived from the
declarations. Kinds, parsing and validation follow Kafka's ConfigDef: values are trimmed, lists are
separated by commas, integers have Java's 16, 32 or 64 bits.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, overload

T = TypeVar("T")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
HIDDEN = "[hidden]"


class Kind(IntEnum):
    """Kafka's ConfigType, with the numbers of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(Enum):
    """Scope in which a broker property can be changed at run time (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Synonym(NamedTuple):
    """A broker property that is the default of a topic property; its value is multiplied by `factor`."""

    name: str
    factor: int = 1


class PropertyError(ValueError):
    """An invalid value; `str()` is one line with property, value and the allowed values."""

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class UnknownPropertyError(PropertyError):
    """An undeclared name."""

    def __init__(self, name: str, nearest: str | None) -> None:
        hint = f", did you mean {nearest}?" if nearest else ""
        ValueError.__init__(self, f"Unknown configuration {name}{hint}")
        self.name = name
        self.value = None
        self.allowed = ""
        self.nearest = nearest


class Property(Generic[T]):
    """A declared property: name, kind, default, allowed values and description.

    `no_effect` is the reason why a property is accepted without effect; empty for all others.

    There is no `__set__`, so the value in an instance's `__dict__` takes precedence, and reading a property
    costs the same as reading any attribute.
    """

    __slots__ = (
        "attribute", "check", "choices", "default", "doc", "ignore_case", "internal", "kind",
        "maximum", "may_be_empty", "minimum", "name", "no_effect", "note", "sensitive", "synonyms",
        "unique", "update_mode",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: Kind,
        default: T,
        *,
        doc: str,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: tuple[str, ...] = (),
        ignore_case: bool = False,
        unique: bool = False,
        may_be_empty: bool = True,
        check: Callable[[Any], bool] | None = None,
        note: str = "",
        update_mode: UpdateMode = UpdateMode.READ_ONLY,
        internal: bool = False,
        no_effect: str = "",
        synonyms: Iterable[Synonym | str] = (),
    ) -> None:
        self.name = name
        self.attribute = name.replace(".", "_")
        self.kind = kind
        self.default = default
        self.doc = doc
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices
        self.ignore_case = ignore_case
        self.unique = unique
        self.may_be_empty = may_be_empty
        self.check = check
        self.note = note
        self.update_mode = update_mode
        self.sensitive = kind is Kind.PASSWORD
        self.internal = internal
        self.no_effect = no_effect
        self.synonyms = tuple(Synonym(s) if isinstance(s, str) else s for s in synonyms)

    def __set_name__(self, owner: type, attribute: str) -> None:
        if attribute != self.attribute:
            raise TypeError(f"{owner.__name__}.{attribute} must be called {self.attribute}")

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        raise AttributeError(self.attribute)

    def parse(self, text: str) -> T:
        """Parse a value. Raises PropertyError for an invalid form or value."""
        stripped = text.strip()
        try:
            value = _PARSERS[self.kind](stripped)
        except ValueError:
            raise self.error(text, f"expected {_FORMS[self.kind]}") from None
        problem = self._problem(value)
        if problem is not None:
            raise self.error(text, problem)
        return value  # type: ignore[no-any-return]

    def format(self, value: T) -> str | None:
        """Return the text of a value as in DescribeConfigs and configuration files; None if it is not set."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return _format_double(value)
        return str(value)

    def error(self, value: str | None, allowed: str) -> PropertyError:
        """Return a PropertyError for this property; it hides the value of a secret."""
        return PropertyError(self.name, HIDDEN if self.sensitive else value, allowed)

    @property
    def allowed(self) -> str:
        """The restriction of the property beyond its kind, as a phrase; empty if there is none."""
        if self.note:
            return self.note
        if self.choices:
            phrase = "any of" if self.kind is Kind.LIST else "one of"
            return f"{phrase}: {', '.join(self.choices)}"
        if self.minimum is not None and self.maximum is not None:
            return f"between {self.minimum} and {self.maximum}"
        if self.minimum is not None:
            return f"at least {self.minimum}"
        if self.maximum is not None:
            return f"at most {self.maximum}"
        return "" if self.may_be_empty else "not empty"

    def _problem(self, value: Any) -> str | None:
        if self.kind is Kind.LIST:
            return self._problem_of_list(value)
        if self.choices and not self._is_choice(value):
            return f"must be {self.allowed}"
        if self.minimum is not None and not value >= self.minimum:
            return f"must be {self.allowed}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be {self.allowed}"
        if not self.may_be_empty and not value:
            return "must not be empty"
        if self.check is not None and not self.check(value):
            return f"must be {self.allowed}"
        return None

    def _problem_of_list(self, values: tuple[str, ...]) -> str | None:
        if not values and not self.may_be_empty:
            return "must not be empty"
        if self.unique or self.choices:
            if len(set(values)) != len(values):
                return "must not have duplicate entries"
            if "" in values:
                return "must not have empty entries"
        if self.choices and not all(self._is_choice(value) for value in values):
            return f"must be {self.allowed}"
        if self.check is not None and not self.check(values):
            return f"must be {self.allowed}"
        return None

    def _is_choice(self, value: str) -> bool:
        if self.ignore_case:
            return value.upper() in {choice.upper() for choice in self.choices}
        return value in self.choices


class PropertySet:
    """A set of property values; subclasses declare the properties.

    `values` are texts by Kafka's name. Other properties have the value of `base` (a set of the same class)
    or the declared default. `explicit` is the unparsed `values`. Instances are immutable. Raises
    PropertyError for an invalid value, UnknownPropertyError for an undeclared name.
    """

    __slots__ = ("__dict__", "base", "explicit")
    __declared: ClassVar[dict[str, Property[Any]]] = {}
    __defaults: ClassVar[dict[str, Any]] = {}

    explicit: Mapping[str, str]
    base: Self | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared: dict[str, Property[Any]] = {}
        for ancestor in reversed(cls.__mro__):
            for value in ancestor.__dict__.values():
                if isinstance(value, Property):
                    declared[value.name] = value
        cls.__declared = declared
        cls.__defaults = {prop.attribute: prop.default for prop in declared.values()}

    def __init__(self, values: Mapping[str, str] | None = None, *, base: Self | None = None) -> None:
        self.explicit = dict(values or {})
        self.base = base
        attributes = self.__dict__
        attributes.update(self.__defaults if base is None else base.__dict__)
        for name, text in self.explicit.items():
            prop = self.__declared.get(name)
            if prop is None:
                raise UnknownPropertyError(name, nearest(name, self.__declared))
            attributes[prop.attribute] = prop.parse(text)
        self.derive()

    def derive(self) -> None:
        """Set derived attributes; called once, at the end of construction."""

    def validate(self) -> None:
        """Raise PropertyError if valid properties contradict each other."""

    def validate_change(self, current: Self) -> None:
        """Raise PropertyError if this set is valid at a start but cannot replace `current` at run time."""

    @classmethod
    def declared(cls) -> dict[str, Property[Any]]:
        """Return the properties by Kafka's name, in the order of declaration."""
        return cls.__declared

    @classmethod
    def takes(cls, name: str) -> bool:
        """Return whether the name is allowed in `values`."""
        return name in cls.__declared

    def replace(self, changes: Mapping[str, str | None]) -> Self:
        """Return a set with some values changed; None resets a property to its default."""
        values = dict(self.explicit)
        for name, text in changes.items():
            if text is None:
                values.pop(name, None)
            else:
                values[name] = text
        return type(self)(values, base=self.base)

    def value(self, name: str) -> Any:
        """Return the effective value of a property by Kafka's name. Raises KeyError for an undeclared name."""
        return self.__dict__[self.__declared[name].attribute]

    def text(self, name: str) -> str | None:
        """Return the effective value as text; None if it is not set. Raises KeyError for an undeclared name."""
        prop = self.__declared[name]
        return prop.format(self.__dict__[prop.attribute])

    def __repr__(self) -> str:
        # A name that is not declared may be that of a secret, with a prefix.
        shown_names = {name for name, prop in self.__declared.items() if not prop.sensitive}
        shown = (f"{n}={t if n in shown_names else HIDDEN}" for n, t in self.explicit.items())
        return f"{type(self).__name__}({', '.join(shown)})"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names` to a misspelt name, if one is similar."""
    from difflib import get_close_matches  # imported only after a mistake

    matches = get_close_matches(name, list(names), n=1, cutoff=0.75)
    return matches[0] if matches else None


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _parse_integer(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(text)
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError(text)
        return value

    return parse


def _parse_double(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _format_double(value: float) -> str:
    """Format as Java does: 0.5, 1.7976931348623157E308."""
    mantissa, e, exponent = repr(value).partition("e")
    if not e:
        return mantissa
    return f"{mantissa}{'' if '.' in mantissa else '.0'}E{int(exponent)}"


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    Kind.BOOLEAN: _parse_boolean,
    Kind.STRING: str,
    Kind.INT: _parse_integer(32),
    Kind.SHORT: _parse_integer(16),
    Kind.LONG: _parse_integer(64),
    Kind.DOUBLE: _parse_double,
    Kind.LIST: _parse_list,
    Kind.CLASS: str,
    Kind.PASSWORD: str,
}

_FORMS: dict[Kind, str] = {
    Kind.BOOLEAN: "true or false",
    Kind.INT: "a 32-bit integer",
    Kind.SHORT: "a 16-bit integer",
    Kind.LONG: "a 64-bit integer",
    Kind.DOUBLE: "a number",
}


def boolean(name: str, default: bool, *, doc: str, **options: Any) -> Property[bool]:
    """Declare a boolean."""
    return Property(name, Kind.BOOLEAN, default, doc=doc, **options)


@overload
def integer(name: str, default: int, *, doc: str, **options: Any) -> Property[int]: ...
@overload
def integer(name: str, default: None, *, doc: str, **options: Any) -> Property[int | None]: ...
def integer(name: str, default: int | None, *, doc: str, **options: Any) -> Any:
    """Declare a 32-bit integer; options `minimum` and `maximum` are inclusive."""
    return Property(name, Kind.INT, default, doc=doc, **options)


def short(name: str, default: int, *, doc: str, **options: Any) -> Property[int]:
    """Declare a 16-bit integer."""
    return Property(name, Kind.SHORT, default, doc=doc, **options)


@overload
def long(name: str, default: int, *, doc: str, **options: Any) -> Property[int]: ...
@overload
def long(name: str, default: None, *, doc: str, **options: Any) -> Property[int | None]: ...
def long(name: str, default: int | None, *, doc: str, **options: Any) -> Any:
    """Declare a 64-bit integer."""
    return Property(name, Kind.LONG, default, doc=doc, **options)


def double(name: str, default: float, *, doc: str, **options: Any) -> Property[float]:
    """Declare a floating-point number."""
    return Property(name, Kind.DOUBLE, default, doc=doc, **options)


@overload
def string(name: str, default: str, *, doc: str, **options: Any) -> Property[str]: ...
@overload
def string(name: str, default: None, *, doc: str, **options: Any) -> Property[str | None]: ...
def string(name: str, default: str | None, *, doc: str, **options: Any) -> Any:
    """Declare a text; option `choices` lists the allowed texts."""
    return Property(name, Kind.STRING, default, doc=doc, **options)


@overload
def string_list(name: str, default: tuple[str, ...], *, doc: str, **options: Any) -> Property[tuple[str, ...]]: ...
@overload
def string_list(name: str, default: None, *, doc: str, **options: Any) -> Property[tuple[str, ...] | None]: ...
def string_list(name: str, default: tuple[str, ...] | None, *, doc: str, **options: Any) -> Any:
    """Declare a comma-separated list; options `choices`, `unique` (no duplicates), `may_be_empty`."""
    return Property(name, Kind.LIST, default, doc=doc, **options)


@overload
def class_name(name: str, default: str, *, doc: str, **options: Any) -> Property[str]: ...
@overload
def class_name(name: str, default: None, *, doc: str, **options: Any) -> Property[str | None]: ...
def class_name(name: str, default: str | None, *, doc: str, **options: Any) -> Any:
    """Declare a class name; names of Kafka's Java classes are accepted, but the classes are not loaded."""
    return Property(name, Kind.CLASS, default, doc=doc, **options)


def password(name: str, *, doc: str, **options: Any) -> Property[str | None]:
    """Declare a secret, which is never logged, shown or described."""
    return Property(name, Kind.PASSWORD, None, doc=doc, **options)
