"""The commands `odradek user add`, `list` and `remove`: SCRAM users in the metadata store of a broker that is stopped.

With `zookeeper.connect` the brokers of the cluster may run. The first user can be added before the first start. Exit
codes: 0; 1 if the store cannot be used or has no such user; 2 for an invalid command line or configuration.
"""

import argparse
import sys
from getpass import getpass
from typing import Final

from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError
from odradek.server.environment import Environment
from odradek.server.security.sasl.scram_credentials import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    make_credential,
    make_salt,
)
from odradek.server.security.sasl.scram_users import describe_users, put_credential, user_path
from odradek.server.store_tools.store import UsageError, add_config_arguments, fail, load_given_config, run_with_store
from odradek.server.stores.sqlite_file import StoreLockedError

_NUMBERS: Final = {mechanism.number: name for name, mechanism in SCRAM_MECHANISMS.items()}


class _NoUserError(Exception):
    """The user has no such credential."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `odradek user`."""
    commands = parser.add_subparsers(dest="user_command", required=True, metavar="COMMAND")
    add = commands.add_parser(
        "add",
        help="add a user, or change its password",
        description="Add a user, or change its password, which is read from a prompt, or is the first line of standard "
        "input or of a file.",
    )
    add.add_argument("--password-file", metavar="FILE", help="file with the password; - is standard input")
    add.add_argument(
        "--iterations", type=int, default=DEFAULT_ITERATIONS, metavar="N", help=f"of the hash ({DEFAULT_ITERATIONS})"
    )
    listing = commands.add_parser("list", help="list the users", description="List the users and their mechanisms.")
    remove = commands.add_parser("remove", help="remove a user", description="Remove the credentials of a user.")
    for command in (add, remove):
        command.add_argument(
            "--mechanism", choices=SCRAM_MECHANISMS, help="only this mechanism; by default SCRAM-SHA-256 and -512"
        )
        command.add_argument("user", metavar="NAME")
    for command in (add, listing, remove):
        add_config_arguments(command)


def run_command(options: argparse.Namespace) -> int:
    """Run a command; return the exit code. Raises UsageError."""
    config = load_given_config(options)
    try:
        if options.user_command == "add":
            _check_user(options.user, options.iterations)
            password = _read_password(options.password_file)
            run_with_store(config, lambda store, environment: _add(store, environment, options, password))
        elif options.user_command == "remove":
            run_with_store(config, lambda store, environment: _remove(store, environment, options))
        else:
            sys.stdout.write(run_with_store(config, _list))
    except StoreLockedError:
        return fail("the broker is running, with its metadata store open: stop it, or use kafka-configs.sh")
    except (MetadataStoreError, StartError, _NoUserError) as error:
        return fail(str(error))
    return 0


def _check_user(user: str, iterations: int) -> None:
    if not user.isascii() or not user.isprintable() or not user:
        raise UsageError(f"user name {user!r}: SCRAM permits printable ASCII characters only")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise UsageError(f"--iterations {iterations}: must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}")


def _read_password(path: str | None) -> str:
    """Return the password from a prompt, standard input or a file. Other users can see a command line."""
    if path is None and sys.stdin.isatty():
        try:
            password = getpass("Password: ")
            if getpass("Repeat the password: ") != password:
                raise UsageError("the two passwords differ")
        except EOFError:
            raise UsageError("no password was entered") from None
    elif path in (None, "-"):
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        assert path is not None
        try:
            with open(path, encoding="utf-8") as file:
                password = file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--password-file {path}: {getattr(error, 'strerror', None) or error}") from None
    if not password:
        raise UsageError("the password is empty")
    return password


async def _add(store: MetadataStore, environment: Environment, options: argparse.Namespace, password: str) -> None:
    def change(configs: Configs) -> Configs:
        for name in (options.mechanism,) if options.mechanism else SCRAM_MECHANISMS:
            mechanism, salt = SCRAM_MECHANISMS[name], make_salt(environment.random_source.getrandbits)
            salted_password = mechanism.salt_password(password, salt, options.iterations)
            credential = make_credential(mechanism, salt, salted_password, options.iterations)
            configs = put_credential(configs, mechanism, credential)
        return configs

    await change_entity(store, user_path(options.user), change, environment.now_ms)


async def _remove(store: MetadataStore, environment: Environment, options: argparse.Namespace) -> None:
    names = {options.mechanism} if options.mechanism else SCRAM_MECHANISMS.keys()

    def change(configs: Configs) -> Configs:
        if not configs.keys() & names:
            raise _NoUserError(f"user {options.user} has no credential of {' or '.join(sorted(names))}")
        return {name: value for name, value in configs.items() if name not in names}

    await change_entity(store, user_path(options.user), change, environment.now_ms)


async def _list(store: MetadataStore, environment: Environment) -> str:
    entities = EntityConfigs(store, lambda description, work: None)
    await entities.start()
    lines = []
    for described in describe_users(entities.configs, []):
        mechanisms = [f"{_NUMBERS[number]} ({count} iterations)" for number, count in described.iterations.items()]
        lines.append(f"{described.user}  {', '.join(mechanisms) or described.error}\n")
    return "".join(lines)
