"""Making a log durable, in three steps: decide and take note in the log's thread, sync between them in any."""

from odradek.log.filesystem import File, FileSystem, LogDirFailure
from odradek.log.segment import Segment


class FlushTask:
    """What has to be synced so that everything below `target_offset` survives a crash of the machine.

    `sealed_segments` are those that take no more appends and whose indexes are synced with it. Files that are still
    written are held open, the others go by name, so the log may go on appending, rolling and deleting meanwhile.
    """

    __slots__ = ("_directory", "_files", "_fs", "_log_directory", "_paths", "sealed_segments", "target_offset")

    def __init__(
        self,
        fs: FileSystem,
        log_directory: str,
        target_offset: int,
        files: list[File],
        paths: list[str],
        directory: str | None,
        sealed_segments: list[Segment],
    ) -> None:
        self._fs = fs
        self._log_directory = log_directory
        self.target_offset = target_offset
        self._files = files
        self._paths = paths
        self._directory = directory
        self.sealed_segments = sealed_segments

    def run(self) -> None:
        """Sync. Blocks; raises LogDirFailure."""
        try:
            for file in self._files:
                file.sync()
            for path in self._paths:
                self._fs.sync_path(path)
            if self._directory is not None:
                self._fs.sync_directory(self._directory)
        except OSError as error:
            raise LogDirFailure(self._log_directory, f"flush failed: {error}") from error
