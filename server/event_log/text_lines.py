"""Log lines as text: one line per event.

    2025-03-01T12:00:00.123Z INFO server.broker odradek started address=127.0.0.1:9092 data=/data version=0.1.0

Times are in UTC. A message is a short text followed by key=value pairs. Control characters are escaped, so that text
from the network cannot forge a line. Only a traceback takes additional lines, each indented.
"""

import json
import logging
import time
from typing import Final

MAX_NAME_LENGTH: Final = 200
"""Characters of a quoted name; longer names are shortened."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
    # Line and paragraph separators, at which some programs divide lines.
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class TextFormatter(logging.Formatter):
    """Formats an event as one line, and its traceback, if it has one, as indented lines after it."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_ESCAPES)
        line = f"{format_time(record)} {record.levelname} {short_name(record)} {message}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {row}" for row in trace.splitlines())
        return line


def format_time(record: logging.LogRecord) -> str:
    """Return the time of an event in ISO 8601, in UTC with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def short_name(record: logging.LogRecord) -> str:
    """Return the name of an event's logger, without the name of this package."""
    return record.name.removeprefix("odradek.")


def quote(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Return a name in quotation marks, in printable ASCII, shortened to `max_length` characters before escapes."""
    if len(text) > max_length:
        text = f"{text[:max_length]}... ({len(text)} characters)"
    return json.dumps(text)
