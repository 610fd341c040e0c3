"""The commands `odradek cluster start` and `odradek cluster status`.

`status` exits with 0 if the cluster is healthy, 1 if a partition is offline, under min ISR or under-replicated, 2 for
an invalid command line, 3 if no broker answers.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from odradek.server.event_log.setup import LEVELS

EXIT_UNHEALTHY: Final = 1
EXIT_NO_RESPONSE: Final = 3
EXIT_FAILED: Final = 1

_PER_BROKER: Final = frozenset(
    {"advertised.listeners", "broker.id", "listeners", "log.dir", "log.dirs", "node.id", "zookeeper.connect"}
)


class UsageError(Exception):
    """An invalid command line; each argument is one line."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `odradek cluster`."""
    commands = parser.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    start = commands.add_parser(
        "start",
        help="run a cluster on this machine",
        description="Run a cluster on this machine: broker processes, and a ZooKeeper server unless an address is "
        "given. It stops on Ctrl-C or SIGTERM. A later start continues with the same data, ids and ports.",
    )
    start.add_argument(
        "--brokers", type=_parse_size, metavar="N", help="number of brokers (those in the directory, or 3)"
    )
    start.add_argument("--directory", type=Path, default=Path("data-cluster"), metavar="DIR", help="./data-cluster")
    start.add_argument(
        "--zookeeper", metavar="host:port", help="zookeeper.connect of a ZooKeeper that is already running"
    )
    start.add_argument(
        "--port", type=_parse_port, metavar="N", help="port of the first broker (9092); the next has N+1; 0: any"
    )
    start.add_argument(
        "--override", action="append", default=[], metavar="name=value", help="set a property of all brokers"
    )
    start.add_argument("--log-level", choices=LEVELS, default="info", help="lowest level logged (info)")
    status = commands.add_parser(
        "status",
        help="show brokers, controller and partitions that need attention",
        description="Show brokers, controller, and partitions that are offline, under min ISR or under-replicated. "
        "Exit code: 0 without such partitions, 1 with any, 3 if no broker answers.",
    )
    status.add_argument("--bootstrap-server", required=True, metavar="host:port,...", help="addresses of brokers")
    status.add_argument(
        "--command-config", metavar="FILE", help="client properties, such as security.protocol, as for Kafka's tools"
    )
    status.add_argument("--json", action="store_true", help="write JSON, with all of these partitions")


def run_command(options: argparse.Namespace) -> int:
    """Run a command; return the exit code. Raises UsageError."""
    if options.cluster_command == "start":
        return _start(options)
    return _show_status(options.bootstrap_server, options.command_config, options.json)


def _show_status(servers: str, command_config: str | None, as_json: bool) -> int:
    from odradek.properties import PropertyError
    from odradek.server.cluster_tools.command_config import ClientSecurity, read_command_config
    from odradek.server.cluster_tools.status import fetch_status
    from odradek.server.cluster_tools.wire_client import NoResponseError, parse_addresses

    try:
        addresses = parse_addresses(servers)
    except ValueError as error:
        raise UsageError(f"--bootstrap-server {servers}: {error}") from None
    try:
        security = ClientSecurity() if command_config is None else read_command_config(command_config)
    except OSError as error:
        raise UsageError(f"--command-config {command_config}: {error.strerror}") from None
    except (PropertyError, ValueError) as error:
        raise UsageError(f"--command-config {command_config}: {error}") from None
    try:
        status = fetch_status(addresses, security)
    except NoResponseError as error:
        return _fail(str(error), EXIT_NO_RESPONSE)
    sys.stdout.write(status.as_json() if as_json else status.as_table())
    return 0 if status.is_healthy else EXIT_UNHEALTHY


def _start(options: argparse.Namespace) -> int:
    from odradek.server.cluster_tools.local_cluster import LocalCluster
    from odradek.server.cluster_tools.local_directory import DirectoryError, LocalDirectory
    from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServerError, find_class_path, find_java

    _check_overrides(options.override, options.directory)
    directory = LocalDirectory(options.directory)
    try:
        if options.zookeeper is None and (directory.has_zookeeper or not directory.read_brokers()):
            find_java()
            find_class_path()
        directory.lock()
        brokers = directory.set_up(options.brokers, options.port, options.zookeeper)
        log_format = _check_configs([str(broker.file) for broker in brokers], options.override)
        return LocalCluster(directory, brokers, options.override, options.log_level, log_format).run()
    except DirectoryError as error:
        raise UsageError(str(error)) from None
    except ZooKeeperServerError as error:
        return _fail(f"{error}; or give the address of a ZooKeeper with --zookeeper host:port", EXIT_FAILED)
    except OSError as error:
        return _fail(f"cannot use {options.directory}: {error}", EXIT_FAILED)


def _check_overrides(overrides: list[str], directory: Path) -> None:
    for override in overrides:
        name = override.partition("=")[0].strip()
        if name in _PER_BROKER:
            raise UsageError(f"{name} differs between brokers; set it in {directory}/broker-N/server.properties")


def _check_configs(files: list[str], overrides: list[str]) -> str:
    """Return log.format of the first broker. Raises UsageError for the first one with an invalid configuration."""
    from odradek.server.config import InvalidConfigError, load_config

    formats = []
    for file in files:
        try:
            formats.append(load_config(file, overrides).config.log_format)
        except InvalidConfigError as error:
            raise UsageError(*map(str, error.errors)) from None
        except ValueError as error:
            raise UsageError(str(error)) from None
    return formats[0]


def _parse_size(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 99:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 99")
    return int(text)


def _parse_port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return int(text)


def _fail(message: str, exit_code: int) -> int:
    sys.stderr.write(f"odradek: {' '.join(message.split())}\n")
    return exit_code
