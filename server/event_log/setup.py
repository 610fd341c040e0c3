"""Levels of the log, and the destination of all events."""

import io
import logging
from typing import Final, TextIO

from odradek.server.event_log.text_lines import TextFormatter

LEVELS: Final = ("debug", "info", "warning", "error")


def configure_logging(level: str, stream: TextIO, log_format: str = "text") -> None:
    """Send every event at or above `level` (one of LEVELS) to `stream`, and to no earlier destination.

    log_format: text or json
    """
    if isinstance(stream, io.TextIOWrapper):
        # A character that the stream's encoding lacks is escaped; otherwise its line would be lost.
        stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_make_formatter(log_format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # If the log cannot be written, the broker continues to serve, without a traceback for each event.
    logging.raiseExceptions = False


def _make_formatter(log_format: str) -> logging.Formatter:
    if log_format == "text":
        return TextFormatter()
    # Imported here because a log of text does not need it.
    from odradek.server.event_log.json_lines import JsonFormatter

    return JsonFormatter()
