"""Progress of the current or last run, in a file next to the checkpoint, for `status`.

The runner writes it after each batch and at the end. In a stateless pipeline `read` is `written + dead_lettered +
dropped`. All counts start at 0 with each run.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from odradek.spark_it.state.files import write_atomically

FILE = "progress.json"


@dataclass(frozen=True)
class Progress:
    """Progress after batch `batch`, at `at_ms`: rows of this run, rows per second of the last batch, the last error."""

    batch: int
    at_ms: int
    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    rows_per_second: float = 0.0
    last_error: str | None = None
    last_error_at_ms: int | None = None


def write_progress(state_folder: Path, progress: Progress) -> None:
    """Replace the file. Raises OSError."""
    write_atomically(state_folder / FILE, json.dumps(asdict(progress)) + "\n")


def read_progress(state_folder: Path) -> Progress | None:
    """Read the file; None if there is none, or if it cannot be read."""
    try:
        read = json.loads((state_folder / FILE).read_text("utf-8"))
        known = {field.name for field in fields(Progress)}
        progress = Progress(**{key: value for key, value in read.items() if key in known})
        return progress if _is_valid(progress) else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_valid(progress: Progress) -> bool:
    counts = (progress.batch, progress.at_ms, progress.read, progress.written, progress.dead_lettered, progress.dropped)
    return (
        all(type(count) is int for count in counts)
        and isinstance(progress.rows_per_second, int | float)
        and math.isfinite(progress.rows_per_second)
        and isinstance(progress.last_error, str | None)
        and isinstance(progress.last_error_at_ms, int | None)
    )
