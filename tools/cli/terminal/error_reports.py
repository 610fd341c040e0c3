"""Reports of errors on standard error: lines for people, with `--json` one object for each error.

    {"error": {"code": "UNKNOWN_TOPIC_OR_PARTITION", "message": "topic a does not exist; ...", "similar": ["a1"]}}

`code` is Kafka's name of the error, USAGE for an invalid command line or configuration, NO_RESPONSE if no broker
answers, and FAILED otherwise.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from odradek.tools.cli.terminal.output import JsonValue, format_json, make_printable

PROGRAM: Final = "odradek"
USAGE: Final = "USAGE"
NO_RESPONSE: Final = "NO_RESPONSE"
FAILED: Final = "FAILED"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_RESPONSE: Final = 3
_CODES: Final = {EXIT_USAGE: USAGE, EXIT_NO_RESPONSE: NO_RESPONSE}
_UNSUPPORTED: Final = "UNSUPPORTED_VERSION"


class ErrorReport(NamedTuple):
    """An error as it is reported.

    lines: the message
    details: further fields in JSON
    """

    code: str
    lines: Sequence[str]
    exit_code: int
    details: Mapping[str, JsonValue] = {}


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line, which may be invalid, has the option `--json`."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def make_report(error: Exception) -> ErrorReport | None:
    """Return the report of an error that a command raised; None if it is a fault of the program."""
    # Imported here because commands that use no cluster do not need them.
    from odradek.tools.cli.session import CommandError
    from odradek.tools.kafka.cluster import RequestError
    from odradek.tools.kafka.connection.connection_errors import (
        InvalidRequestError,
        NoResponseError,
        UnsupportedRequestError,
    )
    from odradek.tools.kafka.connection.profile import ProfileError

    lines = [str(error)]
    if type(error).__module__ == "odradek.server.store_tools.errors":
        # Such errors are raised only by commands that have imported the module.
        exit_code = EXIT_USAGE if type(error).__name__ == "UsageError" else EXIT_FAILED
        return ErrorReport(_CODES.get(exit_code, FAILED), [str(each) for each in error.args], exit_code)
    if isinstance(error, CommandError):
        code = error.code or _CODES.get(error.exit_code, FAILED)
        return ErrorReport(code, [str(each) for each in error.args], error.exit_code, _list_similar(error))
    if isinstance(error, RequestError):
        return ErrorReport(error.code, lines, EXIT_FAILED, _list_similar(error))
    if isinstance(error, ProfileError | InvalidRequestError):
        return ErrorReport(USAGE, lines, EXIT_USAGE, _list_similar(error))
    if isinstance(error, UnsupportedRequestError):
        return ErrorReport(_UNSUPPORTED, lines, EXIT_FAILED)
    if isinstance(error, NoResponseError):
        return ErrorReport(NO_RESPONSE, lines, EXIT_NO_RESPONSE, _find_step(error))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and error.strerror:
        line = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return ErrorReport(FAILED, [line], EXIT_FAILED)
    return None


def make_usage_report(error: Any) -> ErrorReport:
    """Return the report of an error that typer raised for an invalid command line."""
    text = error.format_message()
    text = text[:1].lower() + text[1:].rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    similar = getattr(error, "similar", None) or getattr(error, "possibilities", None)
    details = {"similar": list(similar)} if similar else {}
    return ErrorReport(USAGE, [f"{text} (see {path} --help)"], error.exit_code, details)


def _list_similar(error: Any) -> dict[str, JsonValue]:
    similar = getattr(error, "similar", ())
    return {"similar": list(similar)} if similar else {}


def _find_step(error: Exception) -> dict[str, JsonValue]:
    """Return the address and the failed step of a connection; of several addresses the first one's."""
    first, *_ = getattr(error, "failures", (error,))
    return {name: getattr(first, name) for name in ("address", "step") if hasattr(first, name)}


def write_report(report: ErrorReport, *, is_json: bool) -> None:
    """Write a report to standard error."""
    if is_json:
        message = "; ".join(" ".join(line.split()) for line in report.lines)
        write_json("error", {"code": report.code, "message": message, **report.details})
    else:
        write_lines(*report.lines)


def write_json(kind: str, fields: Mapping[str, JsonValue]) -> None:
    """Write an object to standard error, as one line."""
    sys.stderr.write(f"{format_json({kind: fields})}\n")


def write_lines(*lines: str) -> None:
    """Write lines to standard error. They may contain names of other clients' groups, with any characters."""
    sys.stderr.write("".join(f"{PROGRAM}: {make_printable(' '.join(line.split()))}\n" for line in lines))
