"""Making a log durable, in three steps: decide and take note in the log's thread, sync between them in any."""

import errno
from collections.abc import Sequence
from threading import Lock

from odradek.log.producers.snapshots import SnapshotWrite
from odradek.log.segments.segment import Segment
from odradek.log.storage.filesystem import ExhaustedError, File, FileSystem, LogDirFailure


class SyncGate:
    """Lets one sync of a log run at a time, and none after one that failed.

    The operating system tells of a failed write once: what asks again, or at the same time, hears that all is well.
    """

    __slots__ = ("failure", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.failure: LogDirFailure | None = None


class FlushTask:
    """What has to be synced so that everything below `target_offset` survives a crash of the machine.

    `files` are held open and written to, `paths` go by name, so the log may go on appending, rolling and deleting
    meanwhile; `directories` are those with new names in them. `sealed_segments` are those that take no more appends and
    whose indexes are synced with it. `snapshots` are written first. A task that raises ExhaustedError had no descriptor
    to open what it is to sync: nothing failed, and the syncs can be made again.
    """

    __slots__ = (
        "_directories", "_files", "_fs", "_gate", "_log_directory", "paths",
        "sealed_segments", "snapshots", "target_offset",
    )  # fmt: skip

    def __init__(
        self,
        fs: FileSystem,
        log_directory: str,
        target_offset: int,
        *,
        files: list[File],
        paths: list[str],
        directories: list[str],
        sealed_segments: list[Segment],
        gate: SyncGate,
        snapshots: Sequence[SnapshotWrite] = (),
    ) -> None:
        self._fs = fs
        self._log_directory = log_directory
        self.target_offset = target_offset
        self._files = files
        self.paths = paths
        self._directories = directories
        self.sealed_segments = sealed_segments
        self._gate = gate
        self.snapshots = snapshots

    def run(self) -> None:
        """Sync. Blocks; raises LogDirFailure, ExhaustedError."""
        gate = self._gate
        with gate.lock:
            if gate.failure is not None:
                raise gate.failure
            try:
                self._sync()
            except OSError as error:
                # Memory may have run out within a sync, whose failure is reported once; a descriptor only before one.
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise ExhaustedError(self._log_directory, f"flush put off: {error}") from error
                gate.failure = LogDirFailure(self._log_directory, f"flush failed: {error}")
                raise gate.failure from error

    def raise_if_failed(self) -> None:
        """Wait for a sync of the log that is under way. Raises the LogDirFailure of the first that failed."""
        with self._gate.lock:
            if self._gate.failure is not None:
                raise self._gate.failure

    def _sync(self) -> None:
        for snapshot in self.snapshots:
            snapshot.run(self._fs, sync=True)
        for file in self._files:
            file.sync()
        for path in self.paths:
            self._fs.sync_path(path)
        for directory in self._directories:
            self._fs.sync_directory(directory)
