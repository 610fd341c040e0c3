"""Removal of a partition's directory under its own name, where the disk has no room for another one.

A deleted log is renamed first, so that a start knows it for deleted. A longer name may need a block in the directory
above, which a full disk does not have. Removing needs none.
"""

from collections.abc import Callable

from odradek.log.checkpoints import PARTITION_METADATA_FILE
from odradek.log.filesystem import DiskFullError, FileSystem, remove_if_exists

RunInDirectory = Callable[[str, Callable[[], None], Callable[[], None]], None]


class InPlaceRemoval:
    """The directories being removed under their own names. `run(directory, work, done)` gives work to a thread."""

    def __init__(self, fs: FileSystem, run: RunInDirectory) -> None:
        self._fs = fs
        self._run = run
        self._paths: set[str] = set()

    def start(self, path: str) -> None:
        """Remove a partition's directory; one that cannot be removed takes its log directory offline."""
        self._paths.add(path)
        self._run(path.rpartition("/")[0], lambda: _remove(self._fs, path), lambda: self._paths.discard(path))

    def check_free(self, path: str) -> None:
        """Raises DiskFullError, which is tried again, while a directory of that name is being removed."""
        if path in self._paths:
            raise DiskFullError(path.rpartition("/")[0], f"the deleted log in {path} is still being removed")


def _remove(fs: FileSystem, path: str) -> None:
    """The topic id goes last: after a crash in between, what is left belongs to no topic. Raises OSError."""
    for name in fs.list_names(path):
        if name != PARTITION_METADATA_FILE:
            remove_if_exists(fs, f"{path}/{name}")
    fs.remove_tree(path)
    fs.sync_directory(path.rpartition("/")[0])
