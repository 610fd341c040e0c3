"""Reasons for which parts of a result are missing."""

from typing import Self


class Problem(str):
    """A line with the reason for which a part of a result is missing.

    error: what caused it
    """

    error: Exception

    def __new__(cls, subject: str, error: Exception) -> Self:
        """Return the line of an error; `subject` is the missing part, if the error does not name it."""
        made = super().__new__(cls, f"{subject}: {error}" if subject else str(error))
        made.error = error
        return made


def report_problem(error: Exception, subject: str, problems: list[str] | None) -> None:
    """Add an error to the problems of a result, or raise it if there is no list of them."""
    if problems is None:
        raise error
    problems.append(Problem(subject, error))
