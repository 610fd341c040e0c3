"""Texts of numbers, sizes and times in pages."""

from datetime import UTC, datetime
from typing import Final

NOTHING: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_number(value: int | None) -> str:
    """Return 1234567 as 1,234,567."""
    return NOTHING if value is None else f"{value:,}"


def format_count(value: int, noun: str) -> str:
    """Return a number with a noun: 1 topic, 2,000 topics."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def format_bytes(value: int | None) -> str:
    """Return a size with a unit and three digits."""
    if value is None:
        return NOTHING
    size, unit = float(value), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    if unit == 0:
        return f"{value} B"
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {_UNITS[unit]}"


def format_time(timestamp_ms: int | None) -> str:
    """Return a time in UTC with milliseconds."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NOTHING
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{time:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"


def format_duration(duration_ms: int | None) -> str:
    """Return a duration in its two largest units."""
    if duration_ms is None or duration_ms < 0:
        return NOTHING
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    rest, parts = duration_ms // 1000, []
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if rest >= seconds:
            parts.append(f"{rest // seconds} {unit}")
            rest %= seconds
    return " ".join(parts[:2])


def escape(text: str) -> str:
    """Return text with characters that are not printed as escapes, such as those that change the direction."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t\r" else f"\\u{ord(one):04x}" for one in text)
