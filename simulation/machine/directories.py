"""An operator's changes of the log directories while the broker is down, and the next start.

The order of log.dirs changes, an empty directory is added as the first, a directory that is no partition is added
beside the logs, or the metadata store is lost or restored from a copy. After the loss the operator starts the broker
with adoption of the found topics.
"""

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from odradek.log.storage.filesystem import write_whole
from odradek.replication.metadata import znodes
from odradek.replication.metadata.memory_store import MemoryNodeTable
from odradek.server.config import BrokerConfig
from odradek.simulation.history import History

if TYPE_CHECKING:
    from odradek.simulation.world import World

_ADOPT: Final = "log.dirs.adopt"
_MOST_DIRECTORIES: Final = 4
_FOREIGN: Final = ("notes-7", "backup-20", "photos-2024-3")
_TEXT: Final = b"not a partition"


class Directories:
    """The log directories of a machine. Changes take effect at the next start."""

    def __init__(self, world: "World", history: History, random: Random) -> None:
        self._world = world
        self._history = history
        self._random = random
        self._foreign: dict[str, None] = {}
        self._backup: Mapping[str, MemoryNodeTable] = {}
        self._added = 0

    def reorder(self) -> None:
        """Change the order of log.dirs."""
        directories = self._world.broker.directories
        self._random.shuffle(directories)
        self._set(directories)

    def put_first(self) -> None:
        """Add a new, empty directory as the first."""
        directories = self._world.broker.directories
        if len(directories) < _MOST_DIRECTORIES:
            self._added += 1
            self._set([f"/new{self._added}", *directories])

    def add_foreign(self) -> None:
        """Add a directory that is no partition but is named like one."""
        fs = self._world.broker.disk
        path = f"{self._random.choice(self._world.broker.directories)}/{self._random.choice(_FOREIGN)}"
        fs.is_down = False
        fs.make_directory(path)
        write_whole(fs, f"{path}/readme.txt", _TEXT, sync=True)
        fs.sync_directory(path)
        fs.sync_directory(path.rpartition("/")[0])
        fs.is_down = True
        self._foreign[path] = None

    def lose_store(self) -> None:
        """Delete the metadata store; the next start adopts the topics, as it does for directories of Apache Kafka."""
        self._world.metadata.lose()
        self._history.lose_store()
        if _ADOPT in BrokerConfig.declared():
            self._world.broker.properties[_ADOPT] = "true"

    def back_up_store(self) -> None:
        """Copy the metadata store."""
        self._backup = self._world.metadata.copy()

    def restore_store(self) -> None:
        """Replace the metadata store by the copy if both have the same topics.

        Records of a topic that the copy lacks would be lost.
        """
        metadata = self._world.metadata
        if _topics_of(metadata.copy()) == _topics_of(self._backup):
            metadata.restore(self._backup)
            self._world.trace("the metadata store is restored")

    def started(self) -> None:
        """Called when the broker has started, and has adopted the topics if it had to."""
        self._world.broker.properties.pop(_ADOPT, None)

    def check(self) -> None:
        """Fail the run if a directory that is no partition was changed."""
        fs = self._world.broker.disk
        for path in self._foreign:
            if not fs.exists(f"{path}/readme.txt") or fs.read_bytes(f"{path}/readme.txt") != _TEXT:
                self._world.fail(f"{path}, which is no partition, has been changed")

    def _set(self, directories: list[str]) -> None:
        self._world.broker.properties["log.dirs"] = ",".join(directories)
        self._world.trace(f"log.dirs={','.join(directories)}")


def _topics_of(stores: Mapping[str, MemoryNodeTable]) -> dict[str, list[str]]:
    return {directory: table.children(znodes.TOPICS) for directory, table in stores.items()}
