"""Log lines as JSON: one object per event, in ASCII.

    {"time": "2025-03-01T12:00:00.123Z", "level": "INFO", "logger": "server.broker", "message": "odradek started",
     "address": "127.0.0.1:9092", "data": "/data", "version": "0.1.0", "start_ms": 412}

The key=value pairs of a message are fields of the object. They are read from the message's template before the values
are inserted, so that no value can be taken for a pair. A traceback is in the field `traceback`.
"""

import json
import logging
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from odradek.server.event_log.text_lines import format_time, short_name

RESERVED_FIELDS: Final = ("time", "level", "logger", "message", "traceback")

TEXT_FIELDS: Final = frozenset(
    {
        "broker",
        "from",
        "leader",
        "most",
        "new",
        "old",
        "partition",
        "partitions",
        "replicas",
        "to",
        "topics",
        "type",
        "version",
    }
)
"""Fields whose value is a number in some messages and text in others. Always written as text, because stores of logs
expect one type for each field."""

_PAIR: Final = re.compile(r'(?:^|(?<= ))([A-Za-z_][\w.-]*)=("[^"]*"|\S+)')
_DIRECTIVE: Final = re.compile(r"%(?:%|[#0 +-]*\d*(?:\.\d+)?[a-zA-Z])")
_UNSUPPORTED: Final = re.compile(r"%[#0 +-]*(?:\d*\.)?(?:\*|\()")
_NUMBER_DIRECTIVE: Final = re.compile(r"%(?:\.\d+)?[dfg]")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
_END_OF_VALUE: Final = ":;,."
_CACHED_TEMPLATES: Final = 1024


class _Part(NamedTuple):
    """A part of a template, and the numbers of the arguments that it contains."""

    template: str
    arguments: tuple[int, ...]

    def format(self, arguments: tuple[Any, ...]) -> str:
        return self.template % tuple(arguments[number] for number in self.arguments)


class _Template(NamedTuple):
    """A template without its pairs, the pairs, and the number of arguments."""

    message: _Part
    pairs: tuple[tuple[str, _Part], ...]
    argument_count: int


class JsonFormatter(logging.Formatter):
    """Formats an event as a JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        message, fields = _split_event(record)
        line: dict[str, object] = {
            "time": format_time(record),
            "level": record.levelname,
            "logger": _to_unicode(short_name(record)),
            "message": _to_unicode(message),
            **fields,
        }
        if record.exc_info:
            line["traceback"] = _to_unicode(self.formatException(record.exc_info))
        return json.dumps(line, allow_nan=False)


def _split_event(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Return the message without its pairs, and the pairs. Raises TypeError if arguments do not match the template."""
    arguments = record.args
    if not arguments or not isinstance(arguments, tuple) or not isinstance(record.msg, str):
        return record.getMessage(), {}
    template = parse_template(record.msg)
    if template is None or template.argument_count != len(arguments):
        return record.getMessage(), {}
    fields = {}
    for name, part in template.pairs:
        fields[f"{name}_" if name in RESERVED_FIELDS else name] = _format_value(name, part, arguments)
    return template.message.format(arguments).strip(), fields


@lru_cache(_CACHED_TEMPLATES)
def parse_template(text: str) -> _Template | None:
    """Divide a template; return None for one whose directives name their arguments or have several."""
    if _UNSUPPORTED.search(text):
        return None
    pairs, kept, count, position = [], _Part("", ()), 0, 0
    for match in _PAIR.finditer(text):
        value = match[2] if match[2][0] == '"' else match[2].rstrip(_END_OF_VALUE)
        start, end = match.start(), match.start(2) + len(value)
        before, count = _make_part(text[position:start].removesuffix(" "), count)
        kept = _join(kept, before)
        part, count = _make_part(value.removeprefix('"').removesuffix('"'), count)
        pairs.append((match[1], part))
        position = end
    rest, count = _make_part(text[position:], count)
    return _Template(_join(kept, rest), tuple(pairs), count)


def _make_part(text: str, first: int) -> tuple[_Part, int]:
    """Return a part whose arguments begin with number `first`, and the number of the next argument."""
    count = sum(directive != "%%" for directive in _DIRECTIVE.findall(text))
    return _Part(text, tuple(range(first, first + count))), first + count


def _join(first: _Part, second: _Part) -> _Part:
    return _Part(first.template + second.template, first.arguments + second.arguments)


def _format_value(name: str, part: _Part, arguments: tuple[Any, ...]) -> object:
    """Return a number for %d, %f and %g, and otherwise text without the quotation marks of `repr` and JSON."""
    if part.template == "%r" and isinstance(value := arguments[part.arguments[0]], str):
        return _to_unicode(value)
    text = part.format(arguments)
    if name not in TEXT_FIELDS and is_number(part.template) and _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("-").isdigit() else float(text)
    if part.template == "%s" and text[:1] == text[-1:] == '"':
        try:
            text = str(json.loads(text))
        except ValueError:
            return _to_unicode(text)
    return _to_unicode(text)


def is_number(template: str) -> bool:
    """Return whether the value of a pair is always a number."""
    return _NUMBER_DIRECTIVE.fullmatch(template) is not None


def _to_unicode(text: str) -> str:
    """Escape lone surrogates, which stand for bytes that are not UTF-8 and which parsers of JSON refuse."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
