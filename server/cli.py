"""The command `odradek start`. The other commands are those of `odradek.tools.cli`.

Exit codes: 0 after a clean stop, 2 for an invalid command line or configuration, with one line on standard error for
each error; otherwise the broker's.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from odradek.properties import nearest
from odradek.server.event_log.setup import LEVELS, configure_logging

logger = logging.getLogger(__name__)

EXIT_USAGE = 2
STARTED_S = time.monotonic()


_OPTIONS: Final = ("--override", "--log-level", "--help")


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line that refers to `--help`."""

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        similar = nearest(unknown, _OPTIONS) if unknown else None
        _fail(f"{message}{f'; did you mean {similar}?' if similar else ''} (see {self.prog} --help)")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `odradek start`."""
    parser = _Parser(prog="odradek", description="A Kafka broker in Python.")
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
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `odradek start`; return the exit code, or raise SystemExit with it."""
    options = make_parser().parse_args(arguments)
    return _start(options.file, options.override, options.log_level)


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


def _fail(*lines: str) -> NoReturn:
    sys.stderr.write("".join(f"odradek: {' '.join(line.split())}\n" for line in lines))
    raise SystemExit(EXIT_USAGE)
