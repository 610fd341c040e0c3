"""The command line: `odradek start`, `user`, `acl`, `tls`, `pipeline`, and `odradek --version`.

Exit codes: 0 after a clean stop, 2 for an invalid command line or configuration, with one line on standard error for
each error; otherwise the broker's. `pipeline` is another program, which replaces this one.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from odradek import __version__
from odradek.server.event_log.setup import LEVELS, configure_logging

logger = logging.getLogger(__name__)

EXIT_USAGE = 2
STARTED_S = time.monotonic()

_COMMAND_MODULES = {
    "user": (
        "odradek.server.store_tools.users",
        "add, list and remove users",
        "SCRAM users, with whose passwords clients connect.",
    ),
    "acl": (
        "odradek.server.store_tools.acls",
        "add, list, remove and test ACLs",
        "Access control lists: what clients may do.",
    ),
}
"""Commands whose modules are imported only for them: module, help and description."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line that refers to `--help`."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see {self.prog} --help)")


def _make_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser, with the options of _COMMAND_MODULES only for `command`."""
    parser = _Parser(prog="odradek", description="A Kafka broker in Python.")
    parser.add_argument("--version", action="version", version=f"odradek {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    start = commands.add_parser(
        "start",
        help="start a broker",
        description="Start a broker. Without listeners it listens on 127.0.0.1:9092; without log.dirs it stores its "
        "data in ./data.",
    )
    start.add_argument("file", nargs="?", metavar="server.properties", help="configuration in Kafka's syntax")
    start.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="name=value",
        help="set a property, which overrides the file; may be repeated",
    )
    start.add_argument("--log-level", choices=LEVELS, default="info", help="lowest level logged (info)")

    for name, (module_name, summary, description) in _COMMAND_MODULES.items():
        subparser = commands.add_parser(name, help=summary, description=description)
        if name == command:
            import_module(module_name).add_commands(subparser)
    tls = commands.add_parser("tls", help="make certificates for tests", description="Certificates for TLS.")
    tls_commands = tls.add_subparsers(dest="tls_command", required=True, metavar="COMMAND")
    make = tls_commands.add_parser(
        "make-test-certificates",
        help="make an authority, and certificates of a broker and a client",
        description="Write ca.pem, broker.pem and client.pem, valid for a year. The authority's key is not kept.",
    )
    make.add_argument("directory", metavar="DIR", help="directory of the files, created if it does not exist")
    commands.add_parser("pipeline", help="check, run and manage a pipeline on Spark", add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code, or raise SystemExit with it."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["pipeline"]:
        _exec_pipeline(given[1:])
    options = _make_parser(given[0] if given else "").parse_args(given)
    if options.command in _COMMAND_MODULES:
        return _run_command(options)
    if options.command == "tls":
        return _make_test_certificates(options.directory)
    return _start(options.file, options.override, options.log_level)


def _exec_pipeline(arguments: list[str]) -> NoReturn:
    """Replace this process by the pipelines' program, which the broker does not import."""
    os.execv(sys.executable, [sys.executable, "-m", "odradek.spark_it", *arguments])


def _run_command(options: argparse.Namespace) -> int:
    """Run a command that has a module of its own."""
    module = import_module(_COMMAND_MODULES[options.command][0])
    try:
        exit_code: int = module.run_command(options)
    except module.UsageError as error:
        _fail(*error.args)
    return exit_code


def _make_test_certificates(directory: str) -> int:
    from datetime import UTC, datetime
    from pathlib import Path

    from odradek.server.security.tls.certificates import write_test_certificates

    try:
        names = write_test_certificates(Path(directory), datetime.now(UTC))
    except OSError as error:
        _fail(f"cannot write to {directory}: {error.strerror}")
    absolute = os.path.abspath(directory)
    return _print(
        f"wrote {', '.join(names)} to {absolute}; a broker uses them with\n\n"
        f"    listeners=SSL://localhost:9093\n"
        f"    security.inter.broker.protocol=SSL\n"
        f"    ssl.keystore.type=PEM\n"
        f"    ssl.keystore.location={absolute}/broker.pem\n"
        f"    ssl.truststore.type=PEM\n"
        f"    ssl.truststore.location={absolute}/ca.pem\n\n"
        f"and clients with the same trust store, or ssl.ca.location={absolute}/ca.pem\n"
    )


def _start(path: str | None, overrides: list[str], log_level: str) -> int:
    from odradek.server.config import InvalidConfigError, load_config
    from odradek.server.config.listeners import find_open_listeners

    try:
        config, warnings = load_config(path, overrides, kafka_opts=os.environ.get("KAFKA_OPTS", ""))
    except OSError as error:
        _fail(f"cannot read {path}: {error.strerror}")
    except InvalidConfigError as error:
        _fail(*map(str, error.errors))
    except ValueError as error:
        _fail(str(error))
    configure_logging(log_level, sys.stdout, config.log_format)
    logger.info("starting listeners=%s log_dirs=%s", config.text("listeners"), ",".join(config.data_dirs))
    for warning in warnings:
        logger.warning(warning)
    for listener in find_open_listeners(config.endpoints):
        logger.warning(
            "other machines may be able to connect without TLS, and every client is %s listener=%s; bind it to "
            "127.0.0.1, or see docs/security.md",
            "User:ANONYMOUS" if config.authorizer_class_name else "allowed every operation",
            listener,
        )
    from odradek.log.storage import descriptors
    from odradek.server.broker import run

    descriptors.raise_limit()
    return run(config, STARTED_S)


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(*lines: str) -> NoReturn:
    sys.stderr.write("".join(f"odradek: {' '.join(line.split())}\n" for line in lines))
    raise SystemExit(EXIT_USAGE)
