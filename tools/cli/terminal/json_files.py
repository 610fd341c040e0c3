"""JSON files of Kafka's tools, as input of commands."""

import json
from pathlib import Path
from typing import Any

from odradek.tools.cli.session import EXIT_USAGE, CommandError


def read_json_list(file: Path, key: str) -> list[Any]:
    """Return the list with a key in a JSON file. Raises CommandError."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}", exit_code=EXIT_USAGE) from None
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", exit_code=EXIT_USAGE) from None
    if not isinstance(document, dict) or not isinstance(document.get(key), list):
        raise CommandError(f"{file} has no list {key}", exit_code=EXIT_USAGE)
    found: list[Any] = document[key]
    return found


def as_int(value: Any) -> int:
    """Return a number in a JSON file. Raises ValueError for anything but an integer."""
    if type(value) is not int:
        raise ValueError(f"{value!r} is no integer")
    return value


def as_text(value: Any) -> str:
    """Return a text in a JSON file. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
