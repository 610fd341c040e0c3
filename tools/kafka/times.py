"""Times and durations in command lines, in the syntax of Kafka's tools and in shorter forms."""

import re
from datetime import UTC, datetime
from typing import Final

_ISO_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d+))?S)?)?", re.IGNORECASE)
_SHORT_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_MAX_MS: Final = (1 << 63) - 1
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str) -> int:
    """Return the milliseconds since 1970 of an ISO 8601 time, in UTC without a zone, or of a number of them.

    Raises ValueError.
    """
    if re.fullmatch(r"[0-9]{11,19}", text) and int(text) <= _MAX_MS:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text} is not a time such as 2026-01-31T12:00:00, or milliseconds since 1970") from None
    # A negative number would be a special position in a request for offsets.
    return max(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000), 0)


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as 90m, 2h, 1d, or ISO 8601's P1DT2H. Raises ValueError."""
    if match := _SHORT_DURATION.fullmatch(text):
        return _check_duration(text, int(match[1]) * _UNITS_MS[match[2]])
    match = _ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text} is not a duration such as 90m, 2h, 1d or P1DT2H")
    days, hours, minutes, seconds, fraction = match.groups()
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    return _check_duration(text, whole * 1000 + int((fraction or "").ljust(3, "0")[:3]))


def _check_duration(text: str, duration_ms: int) -> int:
    if duration_ms > _MAX_MS:
        raise ValueError(f"{text} is too long")
    return duration_ms
