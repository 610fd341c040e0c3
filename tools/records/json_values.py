"""JSON of keys and values, strictly: no NaN, which other programs refuse."""

import json
import math
from typing import Any

from odradek.tools.records.errors import UndecodableError, UnencodableError


def load_json(data: bytes) -> Any:
    """Parse JSON in UTF-8. Raises UndecodableError."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_parse_float)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"this is no JSON: {error}") from None


def dump_json(value: Any) -> bytes:
    """Return compact JSON in UTF-8. Raises UnencodableError."""
    try:
        return dump_line(value)
    except (ValueError, RecursionError) as error:
        raise UnencodableError(f"this is no JSON: {error}") from None


def dump_line(value: Any) -> bytes:
    """Return compact JSON in UTF-8, of a value that JSON can have."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # A string has half of a surrogate pair, which only an escape can express.
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number
