"""Log directories of brokers: those that are offline, and moves of replicas between them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from odradek.log.storage.log_directory import FUTURE_SUFFIX, list_partitions
from odradek.simulation.history import Partition, name_of

if TYPE_CHECKING:
    from odradek.simulation.machine.broker_process import BrokerProcess


def has_lost_directory(process: "BrokerProcess") -> bool:
    """Return whether a log directory of a running broker is offline."""
    assert process.broker is not None
    return len(process.broker.services.logs.online_directories) < len(process.directories)


def find_move(brokers: Iterable["BrokerProcess"]) -> str:
    """Return the first move between log directories that has not ended, empty if there is none."""
    for process in brokers:
        assert process.broker is not None
        logs = process.broker.services.logs
        for key in logs.table.logs:
            if key in logs.table.future_logs or logs.moves.is_ending(key):
                return f"{process.name} still moves {name_of(key)}"
    return ""


def find_remains(brokers: Iterable["BrokerProcess"]) -> Iterator[str]:
    """Report replicas in two log directories of a broker, and copies without a move. All moves have ended."""
    for process in brokers:
        places: dict[Partition, str] = {}
        for directory in process.directories:
            for entry in list_partitions(process.disk, directory):
                path = f"{directory}/{entry.name}"
                if entry.suffix == FUTURE_SUFFIX:
                    yield f"{process.name} has the copy {path}, although no replica is moved"
                elif not entry.suffix:
                    other = places.setdefault((entry.topic, entry.partition), path)
                    if other != path:
                        yield f"{process.name} has both {other} and {path}"
