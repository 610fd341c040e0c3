"""The environment of one command: its cluster, its output, and confirmation by the user."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Final, NamedTuple

from odradek.tools.cli.terminal.error_reports import (
    EXIT_FAILED,
    EXIT_NO_RESPONSE,
    EXIT_USAGE,
    FAILED,
    ErrorReport,
    make_report,
    write_json,
    write_lines,
    write_report,
)
from odradek.tools.cli.terminal.output import JsonValue, Output, Table, count, make_printable
from odradek.tools.kafka.cluster import Cluster, RequestError, name_error
from odradek.tools.kafka.connection.profile import Connection, find_connection, find_misspelt
from odradek.tools.kafka.problems import Problem

__all__ = [
    "EXIT_FAILED",
    "EXIT_NO_RESPONSE",
    "EXIT_USAGE",
    "CommandError",
    "Outcome",
    "Session",
    "make_outcome",
]

_MOST_PROBLEMS: Final = 5


class CommandError(Exception):
    """A command failed. Each argument is one line.

    exit_code: that of the process
    code: Kafka's name of the error; empty if it has none
    similar: the nearest names
    """

    def __init__(self, *lines: str, exit_code: int = EXIT_FAILED, code: str = "", similar: Sequence[str] = ()) -> None:
        super().__init__(*lines)
        self.exit_code = exit_code
        self.code = code
        self.similar = similar


class Outcome(NamedTuple):
    """The result of a change of one resource: an error, or none."""

    name: str
    error: RequestError | None = None


def make_outcome(name: str, code: int, message: str | None = None) -> Outcome:
    """Return the result of a resource in a response."""
    if not code:
        return Outcome(name)
    text = " ".join((message or "").split())
    return Outcome(name, RequestError(name_error(code), f"{name_error(code)}{': ' if text else ''}{text}"))


class Session:
    """The output, connections and options of one run of a command."""

    def __init__(
        self,
        output: Output,
        stack: ExitStack,
        *,
        bootstrap_server: str | None = None,
        command_config: str | None = None,
        profile: str | None = None,
        is_dry_run: bool = False,
        is_confirmed: bool = False,
    ) -> None:
        self.output = output
        self.is_dry_run = is_dry_run
        self._preview: Table | None = None
        self._stack = stack
        self._options = (bootstrap_server, command_config, profile)
        self._is_confirmed = is_confirmed

    @cached_property
    def connection(self) -> Connection:
        """The connection that the options, the environment and the profile file select. Raises ProfileError."""
        connection = find_connection(*self._options, os.environ)
        for name, similar in find_misspelt(connection.properties):
            self.warn(f"the property {name} is unknown and ignored; did you mean {similar}?", [similar])
        return connection

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster, closed after the command. Raises ProfileError."""
        return self._stack.enter_context(Cluster(self.connection))

    def confirm(self, question: str) -> None:
        """Ask whether to proceed, unless `--yes` or `--dry-run` was given. Raises CommandError if not."""
        if self._is_confirmed or self.is_dry_run:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{question} Repeat the command with --yes", exit_code=EXIT_USAGE)
        sys.stderr.write(f"{make_printable(question)} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was changed")

    def preview(self, table: Table) -> None:
        """Show what a change changes: now as a table, or in the JSON of `finish`."""
        if self.output.is_json:
            self._preview = table
        else:
            self.output.write_table(table)

    def finish(
        self, kind: str, verb: str, outcomes: Sequence[Outcome], details: Mapping[str, str] | None = None
    ) -> int:
        """Report the results of a change of several resources; return the exit code.

        `verb` is the past participle, such as `created`; `details` has a text after the name of some resources.
        """
        if self.output.is_json:
            rows: list[JsonValue] = [
                {
                    kind: each.name,
                    "error": None if each.error is None else {"code": each.error.code, "message": str(each.error)},
                }
                for each in outcomes
            ]
            changes: dict[str, JsonValue] = {} if self._preview is None else {"changes": self._preview.as_json()}
            self.output.write_json({"action": verb, "dry_run": self.is_dry_run, "results": rows, **changes})
        action = f"would be {verb}" if self.is_dry_run else verb
        for each in outcomes:
            if each.error is not None:
                self.write_error(f"{kind} {each.name}: {each.error}", each.error)
            elif not self.output.is_json:
                detail = (details or {}).get(each.name, "")
                self.output.write_line(f"{kind} {each.name} {action}{f' {detail}' if detail else ''}")
        return EXIT_FAILED if any(each.error for each in outcomes) else 0

    def report_problems(self, problems: Sequence[str]) -> int:
        """Report why parts of a result are missing; return the exit code. In JSON none of them is left out."""
        shown = problems if self.output.is_json else problems[:_MOST_PROBLEMS]
        for problem in shown:
            self.write_error(problem, problem.error if isinstance(problem, Problem) else None)
        if len(problems) > len(shown):
            self.write_error(f"{count(len(problems) - len(shown), 'further error')}")
        return EXIT_FAILED if problems else 0

    def write_error(self, message: str, error: Exception | None = None) -> None:
        """Write an error to standard error, after which the command continues; `error` caused it."""
        report = None if error is None else make_report(error)
        code, details = (FAILED, {}) if report is None else (report.code, report.details)
        write_report(ErrorReport(code, [message], EXIT_FAILED, details), is_json=self.output.is_json)

    def warn(self, message: str, similar: Sequence[str] = ()) -> None:
        """Write a warning to standard error."""
        if self.output.is_json:
            write_json("warning", {"message": message, **({"similar": list(similar)} if similar else {})})
        else:
            write_lines(message)
