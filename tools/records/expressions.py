"""Conditions on records: comparisons with `and`, `or`, `not` and parentheses.

    key == "k1" and value.amount > 10
    headers.trace =~ "^a" or not value contains "test"
    value.lines[0].sku == null

A path begins with key, value, headers, topic, partition, offset or timestamp_ms. Parts of JSON follow: `.name`,
`["a name"]` and `[index]`. Keys and values that are not decoded are text, and JSON where a path has such a part. The
operators are ==, !=, <, <=, >, >=, contains, and =~ for a regular expression that matches somewhere. A path alone is
true if it exists and is neither null nor false. A comparison with what does not exist is false, except with != and with
null. In a text a backslash escapes a quote only.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.errors import InvalidOptionError, UndecodableError
from odradek.tools.records.json_values import dump_line, load_json
from odradek.tools.records.record import Decoded, Part, Record

Condition = Callable[[Record], bool]
_Find = Callable[[Record], Any]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<word>[A-Za-z_][\w-]*)
    |(?P<sign>==|!=|<=|>=|=~|<|>|\(|\)|\[|\]|\.))""",
    re.VERBOSE,
)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=", "=~", "contains")
_LITERALS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
_FIELDS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp_ms")
_MAX_DEPTH: Final = 50
_MISSING: Final = object()

_Token = tuple[str, str, int]


def parse_condition(text: str) -> Condition:
    """Return the condition of an expression. Raises InvalidOptionError."""
    return _Parser(text).parse()


def require_key(text: str) -> Condition:
    """Return the condition that a key is equal to a text."""
    return lambda record: _is_equal(_find_in_part(record.key, []), text)


def require_header(name: str, text: str | None) -> Condition:
    """Return the condition that there is a header of a name, with this value unless `text` is None."""
    if text is None:
        return lambda record: _find_header(record, name) is not _MISSING
    return lambda record: _is_equal(_find_header(record, name), text)


def require_match(pattern: str) -> Condition:
    """Return the condition that a regular expression matches somewhere in the value. Raises InvalidOptionError."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise InvalidOptionError(f"--grep {pattern} is no regular expression: {error}") from None
    return lambda record: (text := _as_text(_find_in_part(record.value, []))) is not None and search(text) is not None


class _Parser:
    """A parser by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_split(text)]
        self._next = 0
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._parse_or()
        if self._peek()[0] != "end":
            self._fail(f"unexpected {self._peek()[1]}")
        return condition

    def _parse_or(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("too many parentheses")
        conditions = [self._parse_and()]
        while self._take("word", "or"):
            conditions.append(self._parse_and())
        self._depth -= 1
        return conditions[0] if len(conditions) == 1 else lambda record: any(each(record) for each in conditions)

    def _parse_and(self) -> Condition:
        conditions = [self._parse_not()]
        while self._take("word", "and"):
            conditions.append(self._parse_not())
        return conditions[0] if len(conditions) == 1 else lambda record: all(each(record) for each in conditions)

    def _parse_not(self) -> Condition:
        negations = 0
        while self._take("word", "not"):
            negations += 1
        condition = self._parse_comparison()
        return (lambda record: not condition(record)) if negations % 2 else condition

    def _parse_comparison(self) -> Condition:
        if self._take("sign", "("):
            condition = self._parse_or()
            if not self._take("sign", ")"):
                self._fail("a ) is missing")
            return condition
        find = self._parse_path()
        _, name, _ = self._peek()
        if name not in _COMPARISONS:
            return lambda record: _is_true(find(record))
        self._next += 1
        return _make_comparison(find, name, self._parse_literal(), self._fail)

    def _parse_path(self) -> _Find:
        kind, name, _ = self._peek()
        if kind != "word" or name not in _FIELDS:
            hint = suggest(name, _FIELDS) or f"; a condition begins with {', '.join(_FIELDS)}"
            self._fail(f"unexpected {name or 'end'}{hint}")
        self._next += 1
        steps: list[str | int] = []
        while True:
            if self._take("sign", "."):
                steps.append(self._take_kind("word", "a name"))
            elif self._take("sign", "["):
                is_index = self._peek()[0] == "number"
                step = self._take_kind("number" if is_index else "text", "an index or a name in quotes")
                steps.append(int(step) if is_index else _unquote(step))
                if not self._take("sign", "]"):
                    self._fail("a ] is missing")
            else:
                return _make_path(name, steps, self._fail)

    def _parse_literal(self) -> Any:
        kind, text, _ = self._peek()
        self._next += 1
        if kind == "number":
            return json.loads(text)
        if kind == "text":
            return _unquote(text)
        if kind == "word" and text in _LITERALS:
            return _LITERALS[text]
        self._next -= 1
        return self._fail(f"{text or 'end'} is no number, no text in quotes, nor true, false or null")

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, kind: str, text: str) -> bool:
        if self._peek()[:2] != (kind, text):
            return False
        self._next += 1
        return True

    def _take_kind(self, kind: str, what: str) -> str:
        found, text, _ = self._peek()
        if found != kind:
            self._fail(f"unexpected {text or 'end'} instead of {what}")
        self._next += 1
        return text

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidOptionError(f"--filter {self._text}: column {self._peek()[2] + 1}: {reason}")


def _split(text: str) -> list[_Token]:
    tokens = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise InvalidOptionError(f"--filter {text}: column {start + 1}: unexpected {text[start]}")
        tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        position = match.end()
    return [*tokens, ("end", "", end)]


def _unquote(text: str) -> str:
    """Return a text without its quotes. A backslash escapes a quote only: regular expressions remain readable."""
    quote = text[0]
    return text[1:-1].replace(f"\\{quote}", quote)


def _make_path(name: str, steps: list[str | int], fail: Callable[[str], NoReturn]) -> _Find:
    if name in ("key", "value"):
        find_part: Callable[[Record], Part] = operator.attrgetter(name)
        return lambda record: _find_in_part(find_part(record), steps)
    if name == "headers":
        if len(steps) != 1 or not isinstance(steps[0], str):
            fail("headers needs the name of a header, such as headers.trace")
        header = steps[0]
        return lambda record: _find_header(record, header)
    if steps:
        fail(f"{name} has no parts")
    return operator.attrgetter(name)


def _find_in_part(part: Part, steps: list[str | int]) -> Any:
    if isinstance(part, Decoded):
        value = part.value
    elif part is None or not steps:
        return part if part is None else part.decode("utf-8", "surrogateescape")
    else:
        try:
            value = load_json(part)
        except UndecodableError:
            return _MISSING
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def _find_header(record: Record, name: str) -> Any:
    """Return the text of the last header of a name, as Kafka's lastHeader does."""
    for each, value in reversed(record.headers):
        if each == name:
            return None if value is None else value.decode("utf-8", "surrogateescape")
    return _MISSING


def _is_true(value: Any) -> bool:
    return value is not _MISSING and value is not None and value is not False


def _make_comparison(find: _Find, name: str, literal: Any, fail: Callable[[str], NoReturn]) -> Condition:
    if name in ("==", "!="):
        is_wanted = name == "=="
        return lambda record: _is_equal(find(record), literal) is is_wanted
    if name == "contains":
        return lambda record: _contains(find(record), literal)
    if name == "=~":
        if not isinstance(literal, str):
            fail("=~ needs a regular expression in quotes")
        try:
            pattern = re.compile(literal)
        except re.error as error:
            fail(f"{literal} is no regular expression: {error}")
        return lambda record: (text := _as_text(find(record))) is not None and pattern.search(text) is not None
    if isinstance(literal, bool) or literal is None:
        fail(f"{name} needs a number or a text")
    compare = _ORDERS[name]
    return lambda record: _is_ordered(find(record), literal, compare)


def _is_equal(value: Any, literal: Any) -> bool:
    if literal is None:
        return value is None or value is _MISSING
    if isinstance(value, bool) or isinstance(literal, bool):
        return value is literal
    if isinstance(value, str) and isinstance(literal, int | float):
        return _as_number(value) == literal
    return bool(value == literal)


def _is_ordered(value: Any, literal: Any, compare: Callable[[Any, Any], bool]) -> bool:
    if isinstance(literal, int | float) and isinstance(value, str):
        value = _as_number(value)
    try:
        return not isinstance(value, bool) and compare(value, literal)
    except TypeError:
        return False


def _as_number(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _contains(value: Any, literal: Any) -> bool:
    if isinstance(value, list):
        return any(_is_equal(each, literal) for each in value)
    text = _as_text(value)
    return text is not None and (literal if isinstance(literal, str) else dump_line(literal).decode()) in text


def _as_text(value: Any) -> str | None:
    """Return the text that `contains` and `=~` search, JSON for what is no text; None if there is nothing."""
    if value is _MISSING or value is None:
        return None
    return value if isinstance(value, str) else dump_line(value).decode()
