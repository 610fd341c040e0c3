"""The commands `odradek user`: SCRAM users of a cluster, or of the metadata store of a broker that is stopped."""

import sys
from collections.abc import Mapping, Sequence
from getpass import getpass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from odradek.server.security.sasl.scram_credentials import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
)
from odradek.tools.cli.groups import Commands
from odradek.tools.cli.security.store_options import StoreFile, StoreOverrides, find_store
from odradek.tools.cli.session import EXIT_USAGE, CommandError, Outcome, Session
from odradek.tools.cli.terminal.completions import complete_users
from odradek.tools.cli.terminal.output import Table
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

if TYPE_CHECKING:
    from odradek.server.config import BrokerConfig

_KEYS: Final = ("user", "iterations")
_PREVIEW_KEYS: Final = ("user", "mechanism", "iterations", "new_iterations")

commands = Commands("user", "SCRAM users, with whose passwords clients connect.")

User = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_users, help="Name of the user.")]
Mechanism = Annotated[
    Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
    typer.Option("--mechanism", help="Only this mechanism; both without it."),
]
Iterations = Annotated[int, typer.Option("--iterations", metavar="N", help="Iterations of the hash.")]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", metavar="FILE", help="File whose first line is the password; - is standard input."),
]


@commands.command("list")
def list_users(session: Session, store: StoreFile = None, override: StoreOverrides = None) -> None:
    """List the users, with the iterations of each mechanism."""
    session.output.show(Table(_KEYS, list(_fetch(session, find_store(store, override)).items())))


@commands.command("describe")
def describe(session: Session, name: User, store: StoreFile = None, override: StoreOverrides = None) -> None:
    """Show the mechanisms of a user."""
    users = _fetch(session, find_store(store, override))
    if name not in users:
        raise _unknown_user(name, users)
    session.output.show(Table(_KEYS, [(name, users[name])]))


@commands.command("create", is_change=True, aliases=("add",))
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    mechanism: Mechanism = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    password_file: PasswordFile = None,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> int:
    """Create a user, or change the password. It is read from a prompt, standard input or a file."""
    _check_user(name, iterations)
    config = find_store(store, override)
    password = read_password(password_file)
    if session.is_dry_run:
        before = _fetch(session, config).get(name, {})
        _preview(session, name, before, dict.fromkeys(_select(mechanism), iterations))
    else:
        _put(session, config, name, password, _select(mechanism), iterations)
    return session.finish("user", "created", [Outcome(name)])


@commands.command("alter", is_change=True)
def alter(
    session: Session,
    name: User,
    mechanism: Mechanism = None,
    iterations: Iterations = DEFAULT_ITERATIONS,
    password_file: PasswordFile = None,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> int:
    """Change the password of a user, for the mechanisms that the user has."""
    _check_user(name, iterations)
    config = find_store(store, override)
    if config is not None and not session.is_dry_run:
        from odradek.server.store_tools.users import put_user as put_into_store

        password = read_password(password_file)
        put_into_store(config, name, password, _select(mechanism), iterations, must_exist=True)
        return session.finish("user", "altered", [Outcome(name)])
    before = _find_credentials(session, config, name, mechanism)
    password = read_password(password_file)
    if session.is_dry_run:
        _preview(session, name, before, dict.fromkeys(before, iterations))
    else:
        from odradek.tools.kafka.security.scram_users import put_user

        put_user(session.cluster, name, password, list(before), iterations)
    return session.finish("user", "altered", [Outcome(name)])


@commands.command("delete", is_destructive=True, aliases=("remove",))
def delete(
    session: Session,
    name: User,
    mechanism: Mechanism = None,
    store: StoreFile = None,
    override: StoreOverrides = None,
) -> int:
    """Delete the credentials of a user."""
    config = find_store(store, override)
    if session.is_dry_run:
        before = _find_credentials(session, config, name, mechanism)
        _preview(session, name, before, dict.fromkeys(before))
        return session.finish("user", "deleted", [Outcome(name)])
    # The store itself refuses the deletion of what it has not.
    found = _select(mechanism) if config is not None else _find_credentials(session, None, name, mechanism)
    mechanisms = list(found)
    session.confirm(f"Delete the credentials of {name} ({', '.join(mechanisms)})?")
    if config is None:
        from odradek.tools.kafka.security.scram_users import remove_user

        remove_user(session.cluster, name, mechanisms)
    else:
        from odradek.server.store_tools.users import remove_user as remove_from_store

        remove_from_store(config, name, mechanisms)
    return session.finish("user", "deleted", [Outcome(name)])


def _preview(session: Session, name: str, before: Mapping[str, int], after: Mapping[str, int | None]) -> None:
    rows = [(name, each, before.get(each), iterations) for each, iterations in after.items()]
    session.preview(Table(_PREVIEW_KEYS, rows))


def _find_credentials(
    session: Session, config: "BrokerConfig | None", name: str, mechanism: str | None
) -> dict[str, int]:
    """Return the mechanisms of a user that a command selects, with iterations. Raises CommandError without any."""
    users = _fetch(session, config)
    if name not in users:
        raise _unknown_user(name, users)
    found = {each: users[name][each] for each in _select(mechanism) if each in users[name]}
    if not found:
        raise CommandError(f"user {name} has no credential of {mechanism}")
    return found


def _fetch(session: Session, config: "BrokerConfig | None") -> dict[str, dict[str, int]]:
    if config is None:
        from odradek.tools.kafka.security.scram_users import fetch_users

        return fetch_users(session.cluster)
    from odradek.server.store_tools.users import list_users as list_in_store

    return list_in_store(config)


def _put(
    session: Session,
    config: "BrokerConfig | None",
    name: str,
    password: str,
    mechanisms: Sequence[str],
    iterations: int,
) -> None:
    if config is None:
        from odradek.tools.kafka.security.scram_users import put_user

        put_user(session.cluster, name, password, mechanisms, iterations)
    else:
        from odradek.server.store_tools.users import put_user as put_into_store

        put_into_store(config, name, password, mechanisms, iterations)


def _select(mechanism: str | None) -> list[str]:
    return [mechanism] if mechanism else list(SCRAM_MECHANISMS)


def _unknown_user(name: str, users: dict[str, dict[str, int]]) -> CommandError:
    similar = find_similar(name, users)
    message = f"user {name} does not exist{format_suggestion(similar)}"
    return CommandError(message, code="RESOURCE_NOT_FOUND", similar=similar)


def _check_user(user: str, iterations: int) -> None:
    if not user.isascii() or not user.isprintable() or not user:
        message = f"user name {user!r}: SCRAM permits printable ASCII characters only"
        raise CommandError(message, exit_code=EXIT_USAGE)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        message = f"--iterations {iterations}: must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}"
        raise CommandError(message, exit_code=EXIT_USAGE)


def read_password(path: str | None) -> str:
    """Return the password from a prompt, standard input or a file. Other users can see a command line."""
    if path is None and sys.stdin.isatty():
        try:
            password = getpass("Password: ")
            if getpass("Repeat the password: ") != password:
                raise CommandError("the two passwords differ", exit_code=EXIT_USAGE)
        except EOFError:
            raise CommandError("no password was entered", exit_code=EXIT_USAGE) from None
    elif path in (None, "-"):
        try:
            password = sys.stdin.readline().rstrip("\r\n")
            password.encode()
        except UnicodeError:
            # The error has the password.
            raise CommandError("the password is not UTF-8", exit_code=EXIT_USAGE) from None
    else:
        assert path is not None
        try:
            with open(path, encoding="utf-8") as file:
                password = file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CommandError(f"--password-file {path}: {reason}", exit_code=EXIT_USAGE) from None
    if not password:
        raise CommandError("the password is empty", exit_code=EXIT_USAGE)
    return password
