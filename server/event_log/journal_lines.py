"""Log lines for the journal of systemd: each begins with its priority, `<4>` for a warning, which the journal removes.

Source: systemd.exec(5), SyslogLevelPrefix= and $JOURNAL_STREAM; sd-daemon(3).
"""

import logging
import os
from collections.abc import Mapping
from typing import Final, TextIO

_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


class JournalFormatter(logging.Formatter):
    """Adds the priority to each line of another formatter."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), _DEBUG)
        lines = self._inner.format(record).split("\n")
        return "\n".join(f"<{priority}>{line}" for line in lines)


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether systemd connected a stream to the journal."""
    try:
        file = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"
