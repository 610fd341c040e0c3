"""Durations and instants in a pipeline's file."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

_UNITS_MS = {
    "ms": 1, "millisecond": 1, "s": 1000, "second": 1000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)", re.IGNORECASE)

TIMESTAMP_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark options for timestamps in written JSON and CSV: microseconds, where Spark's default truncates to
milliseconds."""


def parse_interval_ms(text: str) -> int:
    """Parse a duration such as `10 seconds`, `1 hour 30 minutes` or `500 ms`. Raises ValueError for anything else."""
    total_ms, at = 0, 0
    while at < len(text.rstrip()):
        match = _PART.match(text, at)
        unit = match[2].lower() if match else ""
        unit = unit if unit in _UNITS_MS else unit.removesuffix("s")
        if match is None or unit not in _UNITS_MS:
            raise ValueError(f"{text} is not a duration such as 10 seconds")
        total_ms += int(match[1]) * _UNITS_MS[unit]
        at = match.end()
    if at == 0:
        raise ValueError("empty duration; write for example 10 seconds")
    return total_ms


def parse_instant_ms(text: str) -> int:
    """Parse an instant: ISO 8601 as in `2026-01-01T00:00:00Z` (UTC by default), or a number of milliseconds since 1970.

    Raises ValueError for anything else.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def is_interval(text: str) -> bool:
    """Return whether `parse_interval_ms` accepts the text."""
    return _is_accepted(parse_interval_ms, text)


def is_instant(text: str) -> bool:
    """Return whether `parse_instant_ms` accepts the text."""
    return _is_accepted(parse_instant_ms, text)


def _is_accepted(parse: Callable[[str], int], text: str) -> bool:
    try:
        parse(text)
    except (ValueError, OverflowError):
        return False
    return True
