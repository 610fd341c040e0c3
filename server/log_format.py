"""The broker's log: one line per event on standard output, through the standard library's logging.

    2025-03-01T12:00:00.123Z INFO server.broker odradek started address=127.0.0.1:9092 data=/data version=0.1.0

Times are in UTC. A message is a short text followed by key=value pairs. Control characters are escaped, so that text
from the network cannot forge a line. Only a traceback takes additional lines, each indented.
"""

import logging
import time
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


class LineFormatter(logging.Formatter):
    """Formats an event as one line, and its traceback, if it has one, as indented lines after it."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        name = record.name.removeprefix("odradek.")
        message = record.getMessage().translate(_ESCAPES)
        line = f"{seconds}.{int(record.msecs):03d}Z {record.levelname} {name} {message}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {row}" for row in trace.splitlines())
        return line


def configure_logging(level: str, stream: TextIO) -> None:
    """Send every event at or above `level` (one of LEVELS) to `stream`, and to no earlier destination."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # If the log cannot be written, the broker continues to serve, without a traceback for each event.
    logging.raiseExceptions = False
