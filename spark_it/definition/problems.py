"""Problems in a pipeline file, all reported at once, one line each."""

from collections.abc import Iterable
from typing import NamedTuple


class Problem(NamedTuple):
    """One mistake and its line, counted from 1."""

    line: int
    message: str


class PipelineError(ValueError):
    """A file has mistakes; `str()` has a line `file:line: message` for each."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        lines = (f"{file}:{line}: {' '.join(message.split())}" for line, message in self.problems)
        super().__init__("\n".join(lines))
