"""Deletion of logs, and strays: partition directories that no topic of the cluster has.

A directory that is no longer served is renamed immediately. A deleted one is removed later, a stray is kept.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from odradek.log.background.tasks import Schedule
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.removals import Removals
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, storage_error
from odradek.log.storage.log_directory import (
    ALL_CHECKPOINTS,
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    marked_name,
    rename_or_remove,
)

logger = logging.getLogger(__name__)

_TIDY_INTERVAL_MS = 1_000
"""Minimum time between two cleanups of a log directory, while a topic of many partitions is deleted."""


class LogRetirement:
    """Renames the directories of logs, and removes deleted ones. `forget(key)` is called for each retired log."""

    def __init__(
        self,
        fs: FileSystem,
        table: LogTable,
        log_dirs: LogDirectories,
        checkpoints: OffsetCheckpoints,
        removals: Removals,
        schedule: Schedule,
        random_bytes: Callable[[int], bytes],
        forget: Callable[[Key], None],
    ) -> None:
        self._fs = fs
        self._table = table
        self._log_dirs = log_dirs
        self._checkpoints = checkpoints
        self._removals = removals
        self._schedule = schedule
        self._random_bytes = random_bytes
        self._forget = forget
        self._untidy: set[str] = set()
        self._tidied_ms: dict[str, int] = {}

    def delete(self, key: Key, delay_ms: int) -> None:
        """Stop serving a log and rename its directory, which is removed after `delay_ms`. Raises LogDirFailure.

        A log that is not served because its files are damaged is deleted as well. One in a directory that is offline
        is only dropped from the table; the start that finds it again recognizes it by its topic id.
        """
        self._retire(key, DELETE_SUFFIX, lambda path: self.remove_tree_later(path, delay_ms))

    def mark_stray(self, key: Key) -> None:
        """Stop serving a log that belongs to no topic of the cluster, and rename its directory, which is kept.

        Raises LogDirFailure; ShortageError, after which it is still served.
        """
        self._retire(key, STRAY_SUFFIX, lambda path: None)

    def _retire(self, key: Key, suffix: str, renamed: Callable[[str], None]) -> None:
        """Rename a log's directories: besides a served log, another log directory may contain a damaged one.

        `renamed` is called with each new path. The damaged log is renamed first: if there is no space for the longer
        name of a stray, nothing has changed, and the caller can try again.
        """
        table = self._table
        failure: LogDirFailure | ShortageError | None = None
        refused = table.offline.get(key)
        if refused is not None and self._log_dirs.by_path[refused.rpartition("/")[0]].failure is None:
            try:
                renamed(self.rename(refused, key, suffix))
                del table.offline[key]
            except LogDirFailure as error:
                failure = error
            except ShortageError as error:
                if suffix == STRAY_SUFFIX:
                    raise
                failure = error
        log = table.logs.get(key)
        if log is not None:
            try:
                path = self.rename(log.directory, key, suffix)
            except LogDirFailure as error:
                failure = error
            else:
                log.move(path)
                table.remove(key)
                renamed(path)
        if not isinstance(failure, ShortageError):
            # A log in an offline directory does not affect a later topic of that name. The failure here may have taken
            # the directory offline.
            table.forget(key)
            self._forget(key)
        if failure is not None:
            raise failure

    def discard(self, log: PartitionLog) -> None:
        """Rename the directory of a log that is not in the table; it is removed after file.delete.delay.ms.

        Raises LogDirFailure.
        """
        path = self.rename(log.directory, (log.topic, log.partition), DELETE_SUFFIX)
        log.move(path)
        self.remove_tree_later(path, log.config.file_delete_delay_ms)

    def rename_stray(self, path: str, key: Key) -> None:
        """Rename a directory as stray. A failure takes its log directory offline; after a shortage it is retried."""
        if self._log_dirs.by_path[path.rpartition("/")[0]].failure is None:
            with suppress(LogDirFailure, ShortageError):
                self.rename(path, key, STRAY_SUFFIX)

    def rename(self, path: str, key: Key, suffix: str) -> str:
        """Rename a partition's directory, so that it is not served, and return its new path.

        On a full disk files of a deleted directory are removed until it can be renamed. Raises LogDirFailure, with the
        log directory offline; ShortageError if there is no space for the name of a stray, or no descriptor or memory.
        """
        parent = path.rpartition("/")[0]
        target = f"{parent}/{marked_name(*key, self._random_bytes(16), suffix)}"
        try:
            if suffix == DELETE_SUFFIX:
                rename_or_remove(self._fs, path, target)
            else:
                self._fs.rename(path, target)
        except OSError as error:
            failure = storage_error(parent, f"renaming {path} failed: {error}", error)
            if isinstance(failure, LogDirFailure):
                self._log_dirs.fail(parent, failure)
            raise failure from error
        if suffix == STRAY_SUFFIX:
            logger.warning(
                "renamed a directory as stray: the cluster has no partition with its name and the topic id in its "
                "partition.metadata; it is kept, and may be removed directory=%s renamed=%s",
                path,
                target,
            )
        self._tidy_later(self._log_dirs.by_path[parent])
        return target

    def _tidy_later(self, directory: LogDirectory) -> None:
        """Sync a directory from which logs were removed, and drop them from its checkpoints: once for many of them."""
        if directory.path in self._untidy:
            return
        self._untidy.add(directory.path)
        since_ms = self._schedule.monotonic_ms() - self._tidied_ms.get(directory.path, -_TIDY_INTERVAL_MS)
        delay_ms = max(0, _TIDY_INTERVAL_MS - since_ms)

        def sync() -> None:
            self._untidy.discard(directory.path)
            self._tidied_ms[directory.path] = self._schedule.monotonic_ms()
            self._log_dirs.run(directory.path, lambda: self._fs.sync_directory(directory.path))

        self._schedule.once(delay_ms, sync)
        for file_name in ALL_CHECKPOINTS:
            self._schedule.once(delay_ms, partial(self._checkpoints.write, directory, file_name))

    def remove_tree_later(self, path: str, delay_ms: int) -> None:
        """Remove a renamed directory with its files after `delay_ms`."""

        def remove() -> None:
            try:
                self._fs.remove_tree(path)
            except FileNotFoundError:
                return
            logger.info("removed directory=%s", path)

        self._schedule.once(delay_ms, lambda: self._removals.add(path.rpartition("/")[0], remove))
