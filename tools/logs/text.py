"""Rows of a dump as lines for people: the format of Apache Kafka's `kafka-dump-log.sh`, with some more fields."""

import json
from collections.abc import Mapping
from typing import Final

from odradek.tools.logs.decoding import Row

_KAFKA_NAMES: Final = {"compression": "compresscodec", "is_valid": "isvalid", "value": "payload"}
_OMITTED: Final = frozenset({"type", "timestamp_type", "file"})


def format_json(row: Row) -> str:
    """Format a row as one JSON object in a line."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def format_row(row: Row) -> str:
    """Format a row as a line of `name: value` pairs; a record is indented by `| `."""
    kind = row["type"]
    if kind == "damage":
        return f"Found {row['size']} invalid bytes at position {row['position']}: {row['problem']}"
    if kind == "zeros":
        return f"Found {row['size']} zero bytes at position {row['position']}, up to the end of the file"
    if kind == "error":
        return f"Error: {row['problem']}"
    pairs = []
    for name, value in row.items():
        if name not in _OMITTED:
            pairs.append(f"{_kafka_name(name, row)}: {_format_value(name, value)}")
    line = " ".join(pairs)
    return f"| {line}" if kind == "record" else line


def _kafka_name(name: str, row: Row) -> str:
    if name in ("max_timestamp", "timestamp") and "timestamp_type" in row:
        return str(row["timestamp_type"])
    if name == "control_type" and "coordinator_epoch" in row:
        return "endTxnMarker"
    if name in _KAFKA_NAMES:
        return _KAFKA_NAMES[name]
    if "." in name:
        return name
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _format_value(name: str, value: object) -> str:
    if value is None:
        return "none" if name in ("delete_horizon_ms", "current_txn_first_offset") else "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return escape(value)
    if name == "headers" and isinstance(value, list):
        return f"[{','.join(_format_header(each) for each in value)}]"
    if isinstance(value, dict | list):
        return format_json(value) if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)
    return str(value)


def _format_header(header: Mapping[str, object]) -> str:
    key = header.get("key", header.get("key_base64"))
    value = header.get("value", header.get("value_base64"))
    return f"{escape(str(key))}={'null' if value is None else escape(str(value))}"


def escape(text: str) -> str:
    """Replace control characters, which could change the terminal, by escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
