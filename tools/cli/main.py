"""The entry of the command line: finding the command, errors, exit codes.

Exit codes: 0 done; 1 the operation failed, with Kafka's error in one line on standard error; 2 invalid command line or
configuration; 3 no broker answers. `error_reports` has their text.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from odradek import __version__
from odradek.tools.cli.groups import Group
from odradek.tools.cli.registry import COMMANDS, CommandModule
from odradek.tools.cli.terminal.error_reports import PROGRAM, make_report, make_usage_report, wants_json, write_report

EXIT_INTERRUPTED: Final = 130


class _RootGroup(Group):
    """All commands; the module of a command is imported when the command is run or completed."""

    is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        for command in COMMANDS:
            if command.name == cmd_name:
                return _make_stub(command) if self.is_listing or command.is_program else _load(command)
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without an import of the commands' modules."""
        self.is_listing = True
        super().format_help(ctx, formatter)


def _make_stub(command: CommandModule) -> TyperCommand:
    return TyperCommand(command.name, short_help=command.help, rich_markup_mode=None)


def _load(command: CommandModule) -> Any:
    return typer.main.get_command(import_module(command.module).commands.app)


def _show_version(*, value: bool) -> None:
    if value:
        sys.stdout.write(f"odradek {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """A Kafka broker in Python, and tools for Kafka clusters of any kind."""


def make_application() -> typer.Typer:
    """Return the application with all commands."""
    application = typer.Typer(
        cls=_RootGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    application.callback()(_root)
    return application


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for command in COMMANDS:
        if command.is_program and given[:1] == [command.name]:
            exit_code: int = import_module(command.module).main(given)
            return exit_code
    # A service may start a command with closed files; a connection must not get their numbers.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, TextIOWrapper):
        # Names of groups have characters that the encoding of a terminal may lack. In JSON the escapes are valid.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as error:
        # Typer has caught the error and made standard output ignore it at exit.
        if isinstance(error.__context__, BrokenPipeError):
            return 0
        raise
    return code


def _run(given: list[str]) -> int:
    try:
        returned = typer.main.get_command(make_application()).main(given, PROGRAM, standalone_mode=False)
    except TyperException as error:
        return _report_usage(error, is_json=wants_json(given))
    except typer.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report(error, is_json=wants_json(given))
    return returned if isinstance(returned, int) else 0


def _report_usage(error: TyperException, *, is_json: bool) -> int:
    """Report an invalid command line in one line, or show the help of a group without a command."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message().rstrip()}\n")
        return error.exit_code
    write_report(make_usage_report(error), is_json=is_json)
    return error.exit_code


def _report(error: Exception, *, is_json: bool) -> int:
    """Report an error that a command raised; raise it again if it is a fault of the program."""
    report = make_report(error)
    if report is None:
        raise error
    write_report(report, is_json=is_json)
    return report.exit_code
