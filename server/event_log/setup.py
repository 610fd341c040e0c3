"""Levels of the log, and the destination of all events."""

import io
import logging
import os
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
    handler.setFormatter(_make_formatter(log_format, stream))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # If the log cannot be written, the broker continues to serve, without a traceback for each event.
    logging.raiseExceptions = False


def _make_formatter(log_format: str, stream: TextIO) -> logging.Formatter:
    formatter: logging.Formatter = TextFormatter()
    # Imported here because a log of text in another place does not need them.
    if log_format != "text":
        from odradek.server.event_log.json_lines import JsonFormatter

        formatter = JsonFormatter()
    if "JOURNAL_STREAM" in os.environ:
        from odradek.server.event_log.journal_lines import JournalFormatter, is_journal

        if is_journal(stream, os.environ):
            formatter = JournalFormatter(formatter)
    return formatter
