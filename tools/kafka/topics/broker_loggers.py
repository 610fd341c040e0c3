"""Loggers of a broker: which of them have a level of their own, and their further names.

A broker returns the level that applies to each logger, also if it is that of a logger above.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from odradek.tools.kafka.topics.configs import ConfigValue

ROOT: Final = "root"
_PACKAGE: Final = "odradek"
"""Logger above those of Odradek, whose names lack this word; only Odradek's brokers have it."""


def mark_own_levels(values: Sequence["ConfigValue"]) -> list["ConfigValue"]:
    """Return loggers as changed if their level is not that of the nearest logger above, which is the default."""
    find_path = _make_path_finder(value.name for value in values)
    levels = {find_path(value.name): value.value for value in values}
    marked = []
    for value in values:
        default = _find_level_above(find_path(value.name), levels) if value.name != ROOT else None
        marked.append(value._replace(default=default, is_changed=value.value != default))
    return marked


def find_aliases(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of each logger of Odradek that has Kafka's names, too, by its own or its first name."""
    find_path = _make_path_finder(names)
    by_path: dict[str, list[str]] = {}
    for name in names:
        by_path.setdefault(find_path(name), []).append(name)
    aliases = {}
    for path, found in by_path.items():
        own = path.removeprefix(f"{_PACKAGE}.")
        first = own if own in found else found[0]
        aliases[first] = [name for name in found if name != first]
    return aliases


def _make_path_finder(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that returns the path of a logger, which is the same for all of its names."""
    if _PACKAGE not in names:
        return str
    # Imported here because it is necessary only for loggers of Odradek.
    from odradek.replication.controller.admin.broker_loggers import KAFKA_LOGGERS

    packages = {path.split(".")[1] for path in KAFKA_LOGGERS.values() if path.startswith(f"{_PACKAGE}.")}

    def find_path(name: str) -> str:
        if name in KAFKA_LOGGERS:
            return KAFKA_LOGGERS[name]
        return f"{_PACKAGE}.{name}" if name.partition(".")[0] in packages else name

    return find_path


def _find_level_above(path: str, levels: Mapping[str, str | None]) -> str | None:
    while (path := path.rpartition(".")[0]) and path not in levels:
        pass
    return levels.get(path or ROOT)
