"""Settings of the console."""

from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
ROWS_PER_PAGE: Final = 50


class SchemaFile(NamedTuple):
    """A schema of the keys or the values of a topic.

    message: the message type in a descriptor set; None for its first
    """

    topic: str
    is_of_keys: bool
    file: Path
    message: str | None = None


class ConsoleSettings(NamedTuple):
    """Options of `odradek console`.

    password: required of users; None without a login
    allows_changes: the pages that change the cluster are served
    host_names: names besides IP addresses and localhost by which browsers may reach the console
    cookie_suffix: distinguishes the cookies of several consoles on one host, which browsers share between ports
    metrics_urls: metrics of the brokers, for the lag of readers; empty for those that the brokers report
    pipelines: files of pipelines, or folders of such files, whose states are shown
    schema_files: schemas of topics, which are preferred to those of a registry
    """

    password: str | None = None
    allows_changes: bool = False
    host_names: frozenset[str] = frozenset()
    cookie_suffix: str = ""
    metrics_urls: tuple[str, ...] = ()
    pipelines: tuple[Path, ...] = ()
    schema_files: tuple[SchemaFile, ...] = ()
