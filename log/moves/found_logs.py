"""Future logs that a start finds: each is opened, so that its move resumes, or removed, or left unchanged.

A future log is a copy. What follows its recovery point is copied again, so that a stop need not sync it. All of it is
copied again if the current log may have been compacted since, while the copy was offline: the copy may have records of
deleted keys whose tombstones are missing in the current log now.

A crash during the deletion of a partition can leave the copy without the log, in another log directory. It is renamed
as stray then. The copy of a partition that this broker has is left unchanged, also without the log: if the disk of that
was lost, the copy is all that is left.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from odradek.log.config import LogConfig
from odradek.log.management.checkpoint_task import OffsetCheckpoints
from odradek.log.management.loading import FoundFutureLog
from odradek.log.management.log_directories import LogDirectories
from odradek.log.management.log_table import Key, LogTable
from odradek.log.management.retirement import LogRetirement
from odradek.log.partition_log import PartitionLog
from odradek.log.recovery import DamagedLogError, open_partition_log
from odradek.log.storage.checkpoints import MalformedFileError
from odradek.log.storage.filesystem import FileSystem, LogDirFailure, ShortageError, storage_error
from odradek.log.storage.found_directories import KnownPartitions
from odradek.log.storage.log_directory import DELETE_SUFFIX, read_topic_id
from odradek.properties import INT64_MAX
from odradek.protocol.batches.streaming import run_steps

logger = logging.getLogger(__name__)


class FutureLogLoader(NamedTuple):
    """Opens future logs, after all other logs. `cleaned` are the offsets up to which those are compacted."""

    fs: FileSystem
    known: KnownPartitions
    table: LogTable
    log_dirs: LogDirectories
    retirement: LogRetirement
    checkpoints: OffsetCheckpoints
    cleaned: Mapping[Key, int]
    now_ms: int
    monotonic_ms: int
    producer_expiration_ms: int

    def load(self, found: FoundFutureLog, config: LogConfig) -> None:
        """Open a future log if its partition is served from another directory; then its move can be resumed.

        It is removed if it is not a copy of that log. Without that log, it is renamed as stray if the cluster does not
        have the partition on this broker, and left unchanged otherwise.
        """
        current = self.table.logs.get(found.key)
        directory = self.log_dirs.by_path[found.path.rpartition("/")[0]]
        if directory.failure is not None:
            return
        if current is None:
            if self._is_stray(found.key):
                self.retirement.rename_stray(found.path, found.key)
            else:
                logger.warning("not serving the copy of a partition that is not served directory=%s", found.path)
            return
        try:
            topic_id = read_topic_id(self.fs, found.path, is_clean=False)
            is_copy = topic_id == self.table.topic_ids.get(found.key) and current.log_directory != directory.path
            if is_copy and found.key not in self.table.future_logs:
                self.table.future_logs[found.key] = self._open(found, config)
            else:
                self._remove(found, "it belongs to no move")
        except (DamagedLogError, MalformedFileError) as error:
            self._remove(found, str(error))
        except (LogDirFailure, ShortageError) as error:
            self.log_dirs.fail(directory.path, error)
        except OSError as error:
            failure = storage_error(directory.path, f"loading {found.path} failed: {error}", error)
            self.log_dirs.fail(directory.path, failure)

    def _is_stray(self, key: Key) -> bool:
        return self.known.are_complete and self.known.topic_id(*key) is None and key not in self.table.offline

    def _open(self, found: FoundFutureLog, config: LogConfig) -> PartitionLog:
        log = open_partition_log(
            self.fs,
            found.path,
            *found.key,
            config,
            now_ms=self.now_ms,
            monotonic_ms=self.monotonic_ms,
            is_clean=False,
            log_start_offset=found.log_start_offset,
            recovery_point=found.recovery_point,
            cleaned_to=INT64_MAX,
            producer_expiration_ms=self.producer_expiration_ms,
        )
        if found.cleaned_to != self.cleaned.get(found.key):
            # The truncated log is not in the table yet, so that the checkpoints have no entries of it.
            write_checkpoints = partial(self.checkpoints.write_truncated_now, log.log_directory)
            self._truncate(log, log.log_start_offset, write_checkpoints)
        elif log.log_end_offset > found.recovery_point:
            # The checkpoints have this end already.
            self._truncate(log, found.recovery_point, lambda: None)
        log.mark_name_unsynced()
        return log

    def _truncate(self, log: PartitionLog, offset: int, write_checkpoints: Callable[[], None]) -> None:
        log.remove_deleted(run_steps(log.truncate_in_steps(offset, self.now_ms, write_checkpoints)))
        log.complete_truncation()

    def _remove(self, found: FoundFutureLog, reason: str) -> None:
        logger.warning("removing a future log directory=%s reason=%s", found.path, reason)
        path = self.retirement.rename(found.path, found.key, DELETE_SUFFIX)
        self.retirement.remove_tree_later(path, 0)
