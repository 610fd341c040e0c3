"""Values that users enter in forms."""

from collections.abc import Callable
from typing import Final

from flask import Blueprint, abort, request

from odradek.tools.console.console import get_console

MOST_OFFSET: Final = (1 << 63) - 1
MOST_PARTITION: Final = (1 << 31) - 1
MOST_REPLICAS: Final = (1 << 15) - 1
_MOST_DIGITS: Final = 18

CHECK: Final = "check"
"""The step of a form that shows what would be changed."""

APPLY: Final = "apply"
"""The step that changes it."""

DONE: Final = {
    "created": "The topic was created.",
    "deleted": "The topic was deleted.",
    "configured": "The configuration was changed.",
    "produced": "The record was produced.",
    "reset": "The offsets were set.",
}
"""Notices at the top of the page after a change, by the argument `done` of its address."""


class InputError(Exception):
    """The user has entered something invalid. The message is one line."""


def restrict_to_changes(blueprint: Blueprint) -> None:
    """Serve the pages of a blueprint only if the console permits changes."""

    def check() -> None:
        if not get_console().settings.allows_changes:
            abort(403, "This console is read-only. Start it with --allow-changes to change the cluster.")

    blueprint.before_request(check)


def read_text(name: str) -> str:
    """Return a field of the form. Browsers send the line ends of fields as CR LF."""
    return request.form.get(name, "").replace("\r\n", "\n")


def read_number(name: str, label: str, least: int = 0, most: int = MOST_OFFSET) -> int | None:
    """Return a number; None for an empty field. Raises InputError."""
    text = read_text(name).strip()
    if not text:
        return None
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise InputError(f"{label} {text[:40]} is not a number from {least} to {most}")
    return int(text)


def require_number(name: str, label: str, least: int = 0) -> int:
    """Return a number. Raises InputError."""
    number = read_number(name, label, least)
    if number is None:
        raise InputError(f"{label} is empty")
    return number


def read_pairs(name: str, separator: str) -> list[tuple[str, str]]:
    """Return the lines `name<separator>value` of a field. Raises InputError."""
    pairs = []
    for line in filter(None, map(str.strip, read_text(name).split("\n"))):
        left, found, right = line.partition(separator)
        if not found or not left.strip():
            raise InputError(f"{line[:80]} is not name{separator}value")
        pairs.append((left.strip(), right.strip()))
    return pairs


def read_bytes(name: str, label: str) -> bytes | None:
    """Return a field as the field `<name>_as` states: text, hex or null. Raises InputError."""
    text = read_text(name)
    decoders: dict[str, Callable[[], bytes | None]] = {
        "null": lambda: None,
        "hex": lambda: bytes.fromhex(text),
        "text": text.encode,
    }
    try:
        return decoders.get(request.form.get(f"{name}_as", "text"), text.encode)()
    except ValueError:
        raise InputError(f"{label} is not hexadecimal") from None
