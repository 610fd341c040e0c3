"""One entry of log.dirs: its lock, identity, checkpoints, and the partitions in it.

Source: Kafka documentation ("Log", "Log directories"); KIP-631 and KIP-858 for meta.properties.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoint_file import OffsetCheckpointFile, Offsets
from odradek.log.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    HIGH_WATERMARKS_FILE,
    LOCK_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MalformedFileError,
    MetaProperties,
    encode_uuid,
)
from odradek.log.storage.file_lock import LockedError
from odradek.log.storage.filesystem import (
    ExhaustedError,
    FileLock,
    FileSystem,
    LogDirFailure,
    ShortageError,
    is_disk_full,
    is_exhausted,
    remove_if_exists,
    storage_error,
)

logger = logging.getLogger(__name__)

ALL_CHECKPOINTS = (RECOVERY_POINTS_FILE, LOG_START_OFFSETS_FILE, HIGH_WATERMARKS_FILE, CLEANER_OFFSETS_FILE)
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
_METADATA_LOG = "__cluster_metadata"
MAX_NAME_LENGTH = 255
_HEX_DIGITS = frozenset("0123456789abcdef")

META_VERSION = 1
"""Version of meta.properties in a new directory. Apache Kafka's brokers with ZooKeeper accept version 0 only."""


class InconsistentMetaError(Exception):
    """meta.properties of a log directory belongs to another cluster or broker; str is one readable line."""


class PartitionDirectory(NamedTuple):
    """Parsed name of a directory in a log directory. `suffix` is empty for a partition that is served."""

    name: str
    topic: str
    partition: int
    suffix: str


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def marked_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """Return `topic-partition.<32 hex digits><suffix>`, with the topic truncated to the limit of file names."""
    tail = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: MAX_NAME_LENGTH - len(tail)] + tail


def parse_directory_name(name: str) -> PartitionDirectory | None:
    """Parse a directory's name; return None for one that is not a partition's, and for Kafka's metadata log."""
    suffix = ""
    stem = name
    for candidate in (DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX):
        if name.endswith(candidate):
            stem, _, unique = name.removesuffix(candidate).rpartition(".")
            if len(unique) == 32 and _HEX_DIGITS.issuperset(unique):
                suffix = candidate
                break
            stem = name
    topic, dash, digits = stem.rpartition("-")
    if not topic or not dash or not (digits.isascii() and digits.isdigit()) or topic == _METADATA_LOG:
        return None
    if digits != "0" and digits.startswith("0"):
        # Two names must not denote the same partition.
        return None
    return PartitionDirectory(name, topic, int(digits), suffix)


def list_partitions(fs: FileSystem, path: str) -> list[PartitionDirectory]:
    """Return the directories in a log directory that have the name of a partition. Raises OSError."""
    found = []
    for name in fs.list_names(path):
        parsed = parse_directory_name(name)
        if parsed is not None and fs.is_directory(f"{path}/{name}"):
            found.append(parsed)
    return found


class LogDirectory:
    """A log directory. `failure` is set once it is offline, `is_full` while writes are refused.

    `is_new`: no broker had used it, since it had no meta.properties. `may_lack_logs`: it has been new since logs are
    missing. `was_clean`, `previous_broker_epoch`, `may_lack_logs` and `next_producer_id` are set by `begin_load`.

    Methods that access the disk raise LogDirFailure and ExhaustedError; those that write checkpoints, producer ids and
    the mark of a clean stop also DiskFullError.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        self.directory_id: bytes | None = None
        self.is_new = False
        self.was_clean = False
        self.previous_broker_epoch = -1
        self.may_lack_logs = False
        self.next_producer_id = 0
        self.failure: Exception | None = None
        self.is_full = False
        self._lock: FileLock | None = None
        self._checkpoints = {name: OffsetCheckpointFile(fs, f"{path}/{name}") for name in ALL_CHECKPOINTS}

    # Open

    def lock(self) -> None:
        """Create the directory if it is missing, and take its lock. Raises LockedError, with one readable line."""
        try:
            self.fs.make_directory(self.path)
            self._lock = self.fs.lock(f"{self.path}/{LOCK_FILE}")
        except LockedError:
            raise LockedError(
                f"log directory {self.path} is in use by another process; stop it, or change log.dirs"
            ) from None
        except OSError as error:
            raise self.failed("opening", error) from error

    def unlock(self) -> None:
        """Release the lock. Checkpoint writes that are still queued do nothing."""
        for checkpoint in self._checkpoints.values():
            checkpoint.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def sync_file_system(self) -> bool:
        """Make everything in the directory durable at once, if the system supports it. Blocks (`sync_file_system`)."""
        return self._lock is not None and self._lock.sync_file_system()

    def read_meta(self) -> MetaProperties | None:
        """Return the content of meta.properties; None if there is none. Raises LogDirFailure, ExhaustedError."""
        try:
            return checkpoints.read_meta_properties(self.fs, self.path)
        except OSError as error:
            raise self.failed("reading meta.properties", error) from error
        except MalformedFileError as error:
            raise LogDirFailure(self.path, f"{error}; correct the file, or remove {self.path} from log.dirs") from error

    def complete_meta(
        self,
        meta: MetaProperties | None,
        cluster_id: str,
        node_id: int,
        random_uuid: Callable[[], bytes],
        *,
        version: int = META_VERSION,
        may_lack_logs: bool = False,
    ) -> None:
        """Write the missing entries of meta.properties, or a missing file with `version`.

        `may_lack_logs`: partitions may have been assigned to the broker before the directory was new. A mark of that is
        written before the file, without which the directory is new again at the next start. Raises
        InconsistentMetaError if it belongs to another broker.
        """
        self.is_new = meta is None
        if meta is None:
            meta = MetaProperties(version, None, None, None, {})
        for what, found, expected, remedy in (
            ("cluster id", meta.cluster_id, cluster_id, "correct log.dirs"),
            ("node id", meta.node_id, node_id, "correct log.dirs or the broker's id"),
        ):
            if found is not None and found != expected:
                path = f"{self.path}/{checkpoints.META_PROPERTIES_FILE}"
                raise InconsistentMetaError(f"{path} has {what} {found}, but this broker's is {expected}; {remedy}")
        complete = meta._replace(
            cluster_id=cluster_id, node_id=node_id, directory_id=meta.directory_id or random_uuid()
        )
        self.directory_id = complete.directory_id
        if complete != meta:
            try:
                if self.is_new and may_lack_logs:
                    checkpoints.mark_missing_logs(self.fs, self.path)
                checkpoints.write_meta_properties(self.fs, self.path, complete)
            except OSError as error:
                raise self.failed("writing meta.properties", error) from error

    def begin_load(self) -> list[PartitionDirectory]:
        """Return the partitions in the directory. From here on a crash is an unclean stop."""
        try:
            broker_epoch = checkpoints.read_clean_shutdown(self.fs, self.path)
            self.was_clean = broker_epoch is not None
            self.previous_broker_epoch = -1 if broker_epoch is None else broker_epoch
            self.may_lack_logs = self.fs.exists(f"{self.path}/{checkpoints.MISSING_LOGS_FILE}")
            self.next_producer_id = checkpoints.read_next_producer_id(self.fs, self.path)
            checkpoints.remove_clean_shutdown(self.fs, self.path)
            return list_partitions(self.fs, self.path)
        except (OSError, MalformedFileError) as error:
            raise self.failed("opening", error) from error

    def read_offsets(self, file_name: str) -> Offsets:
        """Read a checkpoint. A malformed one takes the directory offline, but the cleaner's is ignored."""
        try:
            return self._checkpoints[file_name].read()
        except MalformedFileError as error:
            if file_name != CLEANER_OFFSETS_FILE:
                raise self.failed("reading a checkpoint", error) from error
            logger.warning("ignoring the cleaner checkpoint, compaction starts over: %s", error)
            return {}
        except OSError as error:
            raise self.failed("reading a checkpoint", error) from error

    # Checkpoints

    def prepare_checkpoint(self, file_name: str, offsets: Offsets) -> Callable[[], None] | None:
        """Record a checkpoint's content; return the write that saves it, for any thread. None if the file has it.

        The write saves the content that is recorded when it runs, or nothing if another write did.
        """
        is_outdated = self._checkpoints[file_name].record(offsets)
        return (lambda: self._write(file_name)) if is_outdated else None

    def recorded_offsets(self, file_name: str) -> Offsets:
        """Return the content last read from a checkpoint, or prepared for it. Each preparation is another object."""
        return self._checkpoints[file_name].recorded

    def recorded_offset(self, file_name: str, key: tuple[str, int]) -> int | None:
        """Return the entry of a partition in `recorded_offsets`."""
        return self.recorded_offsets(file_name).get(key)

    def write_checkpoint(self, file_name: str, offsets: Offsets) -> None:
        write = self.prepare_checkpoint(file_name, offsets)
        if write is not None:
            write()

    def may_have_checkpoint_of(self, key: tuple[str, int]) -> bool:
        """Return whether a checkpoint file has an entry for this partition, or a prepared write might add one."""
        # Called for each new log. `any` would take half as long again.
        for checkpoint in self._checkpoints.values():  # noqa: SIM110
            if checkpoint.may_hold(key):
                return True
        return False

    def _write(self, file_name: str) -> None:
        if self.failure is not None:
            return
        self._write_file(file_name, self._checkpoints[file_name].write)

    def write_next_producer_id(self, next_id: int) -> None:
        """Record that all producer ids below `next_id` are reserved. For any thread."""
        file_name = checkpoints.PRODUCER_IDS_FILE
        self._write_file(file_name, lambda: checkpoints.write_next_producer_id(self.fs, self.path, next_id))

    def mark_clean(self, broker_epoch: int) -> None:
        """Record a clean stop, just before the lock is released: the next start need not recover."""
        file_name = checkpoints.CLEAN_SHUTDOWN_FILE
        self._write_file(file_name, lambda: checkpoints.write_clean_shutdown(self.fs, self.path, broker_epoch))

    def forget_missing_logs(self) -> None:
        """Let no start after this one regard logs as lost."""
        if self.may_lack_logs:
            self._write_file(
                checkpoints.MISSING_LOGS_FILE, lambda: checkpoints.remove_missing_logs_mark(self.fs, self.path)
            )
            self.may_lack_logs = False

    def _write_file(self, file_name: str, write: Callable[[], None]) -> None:
        """Call `write`. Raises LogDirFailure or ShortageError in place of OSError."""
        try:
            write()
        except OSError as error:
            raise storage_error(self.path, f"writing {file_name} failed in {self.path}: {error}", error) from error

    def failed(self, what: str, error: Exception) -> LogDirFailure | ShortageError:
        """Return the error of an operation without which the directory cannot be used, also if the disk is full."""
        kind = ExhaustedError if is_exhausted(error) else LogDirFailure
        return kind(self.path, f"{what} failed in {self.path}: {error}")


def read_topic_id(fs: FileSystem, directory: str, *, is_clean: bool) -> bytes | None:
    """Read the topic id in partition.metadata; return None if there is none.

    The file is not synced before a new log is used, so after a crash of the machine a damaged one counts as missing,
    and is rewritten when the partition's topic is known. Raises MalformedFileError for one after a clean stop.
    """
    try:
        return checkpoints.read_partition_metadata(fs, directory)
    except MalformedFileError as error:
        if is_clean:
            raise
        logger.warning("the topic id is lost: %s", error)
        return None


def rename_or_remove(fs: FileSystem, directory: str, target: str) -> None:
    """Rename a partition's directory that is to be deleted, or remove it if there is no space for the longer name.

    On a full disk the files of the partition are removed, in the order of their names, until the rename succeeds,
    usually after the first. Raises OSError.
    """
    if _has_renamed(fs, directory, target):
        return
    for name in fs.list_names(directory):
        remove_if_exists(fs, f"{directory}/{name}")
        if _has_renamed(fs, directory, target):
            return
    fs.remove_tree(directory)


def _has_renamed(fs: FileSystem, directory: str, target: str) -> bool:
    """Rename a directory if there is space for its new name."""
    try:
        fs.rename(directory, target)
    except OSError as error:
        if not is_disk_full(error):
            raise
        return False
    return True


def random_cluster_id(random_uuid: Callable[[], bytes]) -> str:
    """Return a cluster id that does not begin with a dash, for use in command lines."""
    while (text := encode_uuid(random_uuid())).startswith("-"):
        pass
    return text
