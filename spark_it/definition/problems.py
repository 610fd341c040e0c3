"""What is wrong with a pipeline's file: all of it at once, a line each."""

from collections.abc import Iterable
from typing import NamedTuple


class Problem(NamedTuple):
    """One mistake and its line, counted from 1."""

    line: int
    message: str


class PipelineError(ValueError):
    """A file that is no pipeline; `str()` has a line `file:line: message` for each problem."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        lines = (f"{file}:{line}: {' '.join(message.split())}" for line, message in self.problems)
        super().__init__("\n".join(lines))
