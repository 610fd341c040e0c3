"""Declaration of the commands of a group.

    commands = Commands("topic", "Topics.")

    @commands.command("delete", is_destructive=True)
    def delete(session: Session, names: Annotated[list[str], typer.Argument(metavar="TOPIC")]) -> None:
        \"""Delete topics and their records.\"""

The decorator adds the options that all commands have: the connection, `--json`, for changes `--dry-run`, and for
destructive ones `--yes`. The function gets a Session in place of them. It returns None or an exit code.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from odradek.tools.cli.session import EXIT_USAGE, Session
from odradek.tools.cli.terminal.completions import complete_profiles
from odradek.tools.cli.terminal.output import Output
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

_CONNECTION: Final = {
    "bootstrap_server": Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="host:port,...", help="Addresses of brokers (127.0.0.1:9092)."
        ),
    ],
    "command_config": Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Client properties such as security.protocol, as for Kafka's tools."),
    ],
    "profile": Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=complete_profiles, help="Table of the profile file; see docs/cli.md."
        ),
    ],
}
_JSON: Final = {"json": Annotated[bool, typer.Option("--json", help="Write JSON.")]}
_DRY_RUN: Final = {
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
}
_YES: Final = {"yes": Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "bootstrap_server": None,
    "command_config": None,
    "profile": None,
    "json": False,
    "dry_run": False,
    "yes": False,
}

CommandFunction = Callable[..., int | None]


class SimilarUsageError(TyperException):
    """An invalid command line, with the names that may have been meant."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, context: Any, similar: Sequence[str]) -> None:
        super().__init__(message)
        self.ctx = context
        self.similar = similar


class Group(TyperGroup):
    """A group of commands, which reports the nearest names of an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the arguments name. Raises a usage error."""
        command = self.get_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            similar = find_similar(args[0], self.list_commands(ctx))
            raise SimilarUsageError(f"there is no command {args[0]}{format_suggestion(similar)}", ctx, similar)
        return super().resolve_command(ctx, args)


class Commands:
    """The commands of a group."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.app = typer.Typer(
            name=name,
            help=description,
            cls=Group,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["--help", "-h"]},
        )

    def command(
        self, name: str, *, is_change: bool = False, is_destructive: bool = False, aliases: Sequence[str] = ()
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Declare a command, which uses a cluster. Changes have `--dry-run`, destructive ones `--yes` as well.

        `aliases` are former names, which the help does not list.
        """
        options = {**_CONNECTION, **_JSON}
        if is_change or is_destructive:
            options |= _DRY_RUN
        if is_destructive:
            options |= _YES

        def declare(function: CommandFunction) -> CommandFunction:
            self._be_group()
            run = _with_session(function, options)
            self.app.command(name, short_help=_summary(function))(run)
            for alias in aliases:
                self.app.command(alias, hidden=True)(run)
            return function

        return declare

    def only_command(self, *, has_json: bool = False) -> Callable[[CommandFunction], CommandFunction]:
        """Declare the command that has the name of the group itself; it uses a cluster."""
        options = {**_CONNECTION, **_JSON} if has_json else _CONNECTION

        def declare(function: CommandFunction) -> CommandFunction:
            self.app.command(self.name, short_help=_summary(function))(_with_session(function, options))
            return function

        return declare

    def _be_group(self) -> None:
        """Make typer treat a group that has one command only as a group, too."""
        self.app.callback()(_without_options)

    def add_group(self, group: "Commands") -> None:
        """Add the commands of another group below this one."""
        self.app.add_typer(group.app, name=group.name)

    def plain_command(self, name: str) -> Callable[[CommandFunction], CommandFunction]:
        """Declare a command that uses no cluster; its function gets its own options only."""

        def declare(function: CommandFunction) -> CommandFunction:
            self._be_group()
            self.app.command(name, short_help=_summary(function))(function)
            return function

        return declare


def _without_options() -> None:
    pass


def _summary(function: CommandFunction) -> str:
    """Return the first line of the help, which typer would cut otherwise."""
    return (function.__doc__ or "").partition("\n")[0]


def _with_session(function: CommandFunction, options: Mapping[str, Any]) -> CommandFunction:
    """Return a function with the parameters of `function` and those options, without the session."""

    def run(**values: Any) -> int | None:
        common = {**_DEFAULTS, **{name: values.pop(name) for name in options}}
        with ExitStack() as stack:
            session = Session(
                Output(is_json=common["json"]),
                stack,
                bootstrap_server=common["bootstrap_server"],
                command_config=common["command_config"],
                profile=common["profile"],
                is_dry_run=common["dry_run"],
                is_confirmed=common["yes"],
            )
            return function(session, **values)

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=_DEFAULTS[name])
        for name, annotation in options.items()
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    return run


def split_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of an option that has the form `name=value` and may be repeated. Raises a usage error."""
    pairs = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{each} is not name=value", param_hint=option)
        pairs[name.strip()] = value.strip()
    return pairs
