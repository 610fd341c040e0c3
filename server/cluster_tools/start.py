"""The command `odradek cluster start`: checks of its options, and the start."""

from pathlib import Path
from typing import Final

_PER_BROKER: Final = frozenset(
    {"advertised.listeners", "broker.id", "listeners", "log.dir", "log.dirs", "node.id", "zookeeper.connect"}
)


class InvalidStartError(Exception):
    """The options, or the files in the directory, are invalid; each argument is one line."""


class StartFailedError(Exception):
    """The cluster cannot be started. The message is one line."""


def start_cluster(
    brokers: int | None,
    directory: Path,
    zookeeper: str | None,
    port: int | None,
    overrides: list[str],
    log_level: str,
) -> int:
    """Run a cluster until it is stopped; return the exit code. Raises InvalidStartError, StartFailedError."""
    from odradek.server.cluster_tools.local_cluster import LocalCluster
    from odradek.server.cluster_tools.local_directory import DirectoryError, LocalDirectory
    from odradek.server.cluster_tools.zookeeper_server import ZooKeeperServerError, find_class_path, find_java

    _check_overrides(overrides, directory)
    local = LocalDirectory(directory)
    try:
        if zookeeper is None and (local.has_zookeeper or not local.read_brokers()):
            find_java()
            find_class_path()
        local.lock()
        members = local.set_up(brokers, port, zookeeper)
        log_format = _check_configs([str(broker.file) for broker in members], overrides)
        return LocalCluster(local, members, overrides, log_level, log_format).run()
    except DirectoryError as error:
        raise InvalidStartError(str(error)) from None
    except ZooKeeperServerError as error:
        raise StartFailedError(f"{error}; or give the address of a ZooKeeper with --zookeeper host:port") from None
    except OSError as error:
        raise StartFailedError(f"cannot use {directory}: {error}") from None


def _check_overrides(overrides: list[str], directory: Path) -> None:
    for override in overrides:
        name = override.partition("=")[0].strip()
        if name in _PER_BROKER:
            raise InvalidStartError(f"{name} differs between brokers; set it in {directory}/broker-N/server.properties")


def _check_configs(files: list[str], overrides: list[str]) -> str:
    """Return log.format of the first broker. Raises InvalidStartError for the first invalid configuration."""
    from odradek.server.config import InvalidConfigError, load_config

    formats = []
    for file in files:
        try:
            formats.append(load_config(file, overrides).config.log_format)
        except InvalidConfigError as error:
            raise InvalidStartError(*map(str, error.errors)) from None
        except ValueError as error:
            raise InvalidStartError(str(error)) from None
    return formats[0]
