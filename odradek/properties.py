"""Configuration properties, each declared once, and sets of them.

A set of properties is a class whose attributes are declarations:

    class LogConfig(PropertySet):
        segment_bytes = integer("segment.bytes", 1 << 30, minimum=1 << 20, doc="When to roll a segment.")

    config = LogConfig({"segment.bytes": "2097152"})
    config.segment_bytes       # 2097152, an int for the type checker and at run time

Parsing, validation, `odradek config`, DescribeConfigs and docs/configuration.md all derive from the
declarations. Kinds, parsing and validation follow Kafka's ConfigDef: values are trimmed, lists are
separated by commas, integers are Java's 16, 32 and 64 bit ones.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, overload

T = TypeVar("T")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
HIDDEN = "[hidden]"


class Kind(IntEnum):
    """Kafka's ConfigType; the numbers are those of DescribeConfigs (KIP-569)."""

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
    """Where a broker property may be changed while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Synonym(NamedTuple):
    """A broker property that gives a topic property its default; its number times `factor` is the value."""

    name: str
    factor: int = 1


class PropertyError(ValueError):
    """A value that a property does not allow; `str()` names property, value and what is allowed in a line."""

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class UnknownPropertyError(PropertyError):
    """A name that no property of the set has."""

    def __init__(self, name: str, nearest: str | None) -> None:
        hint = f", did you mean {nearest}?" if nearest else ""
        ValueError.__init__(self, f"Unknown configuration {name}{hint}")
        self.name = name
        self.value = None
        self.allowed = ""
        self.nearest = nearest


class Property(Generic[T]):
    """One declared property: what it is called, what it may hold, and what it is for.

    `no_effect` is the reason for which it is accepted without effect; empty for all others.

    It has no `__set__`, so that the value in an instance's `__dict__` is found first: reading a property
    costs what reading any attribute costs.
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
        """The value that `text` stands for. Raises PropertyError if its form or the value is not allowed."""
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
        """The text of a value, as DescribeConfigs and files have it; None for a property that is not set."""
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
        """A PropertyError about this property that shows no secret."""
        return PropertyError(self.name, HIDDEN if self.sensitive else value, allowed)

    @property
    def allowed(self) -> str:
        """What the property allows beyond its kind, as a phrase; empty when everything of its kind is."""
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
                return "must not name anything twice"
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

    `values` are the given texts by Kafka's name; what is not given comes from `base` (a set of the same
    class) or from the declared defaults. `explicit` is what was given, unparsed. Instances are not changed
    after they are made. Raises PropertyError for a bad value, UnknownPropertyError for an undeclared name.
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
        """Sets attributes that follow from others; called once, at the end of construction."""

    def validate(self) -> None:
        """Raises PropertyError where properties, each allowed, contradict one another."""

    def validate_change(self, current: Self) -> None:
        """Raises PropertyError where these, if allowed at a start, cannot follow `current` while the broker runs."""

    @classmethod
    def declared(cls) -> dict[str, Property[Any]]:
        """The properties by Kafka's name, in the order of their declaration."""
        return cls.__declared

    @classmethod
    def takes(cls, name: str) -> bool:
        """Return whether a value may be given under this name."""
        return name in cls.__declared

    def replace(self, changes: Mapping[str, str | None]) -> Self:
        """A set with some values changed; None takes a value back, so that its default holds again."""
        values = dict(self.explicit)
        for name, text in changes.items():
            if text is None:
                values.pop(name, None)
            else:
                values[name] = text
        return type(self)(values, base=self.base)

    def value(self, name: str) -> Any:
        """The value in force of the property with Kafka's name `name`. Raises KeyError if there is none."""
        return self.__dict__[self.__declared[name].attribute]

    def text(self, name: str) -> str | None:
        """The value in force as text; None when it is not set. Raises KeyError for a name not declared."""
        prop = self.__declared[name]
        return prop.format(self.__dict__[prop.attribute])

    def __repr__(self) -> str:
        hidden = {name for name, prop in self.__declared.items() if prop.sensitive}
        shown = (f"{n}={HIDDEN if n in hidden else t}" for n, t in self.explicit.items())
        return f"{type(self).__name__}({', '.join(shown)})"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like a misspelt one, if there is one like it."""
    from difflib import get_close_matches  # only wanted for a mistake

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
    """As Java writes it: 0.5, 1.7976931348623157E308."""
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
    """Declares a property that is true or false."""
    return Property(name, Kind.BOOLEAN, default, doc=doc, **options)


@overload
def integer(name: str, default: int, *, doc: str, **options: Any) -> Property[int]: ...
@overload
def integer(name: str, default: None, *, doc: str, **options: Any) -> Property[int | None]: ...
def integer(name: str, default: int | None, *, doc: str, **options: Any) -> Any:
    """Declares a 32-bit integer; options `minimum` and `maximum` are inclusive."""
    return Property(name, Kind.INT, default, doc=doc, **options)


def short(name: str, default: int, *, doc: str, **options: Any) -> Property[int]:
    """Declares a 16-bit integer."""
    return Property(name, Kind.SHORT, default, doc=doc, **options)


@overload
def long(name: str, default: int, *, doc: str, **options: Any) -> Property[int]: ...
@overload
def long(name: str, default: None, *, doc: str, **options: Any) -> Property[int | None]: ...
def long(name: str, default: int | None, *, doc: str, **options: Any) -> Any:
    """Declares a 64-bit integer."""
    return Property(name, Kind.LONG, default, doc=doc, **options)


def double(name: str, default: float, *, doc: str, **options: Any) -> Property[float]:
    """Declares a floating-point number."""
    return Property(name, Kind.DOUBLE, default, doc=doc, **options)


@overload
def string(name: str, default: str, *, doc: str, **options: Any) -> Property[str]: ...
@overload
def string(name: str, default: None, *, doc: str, **options: Any) -> Property[str | None]: ...
def string(name: str, default: str | None, *, doc: str, **options: Any) -> Any:
    """Declares a text; option `choices` lists the texts that are allowed."""
    return Property(name, Kind.STRING, default, doc=doc, **options)


@overload
def string_list(name: str, default: tuple[str, ...], *, doc: str, **options: Any) -> Property[tuple[str, ...]]: ...
@overload
def string_list(name: str, default: None, *, doc: str, **options: Any) -> Property[tuple[str, ...] | None]: ...
def string_list(name: str, default: tuple[str, ...] | None, *, doc: str, **options: Any) -> Any:
    """Declares a list separated by commas; options `choices`, `unique` (nothing twice), `may_be_empty`."""
    return Property(name, Kind.LIST, default, doc=doc, **options)


@overload
def class_name(name: str, default: str, *, doc: str, **options: Any) -> Property[str]: ...
@overload
def class_name(name: str, default: None, *, doc: str, **options: Any) -> Property[str | None]: ...
def class_name(name: str, default: str | None, *, doc: str, **options: Any) -> Any:
    """Declares the name of a class; Kafka's are Java classes, which are accepted as names only."""
    return Property(name, Kind.CLASS, default, doc=doc, **options)


def password(name: str, *, doc: str, **options: Any) -> Property[str | None]:
    """Declares a secret: never logged, shown or described."""
    return Property(name, Kind.PASSWORD, None, doc=doc, **options)
