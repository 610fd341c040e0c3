"""Making a log durable, in three steps: decide and take note in the log's thread, sync between them in any."""

from odradek.log.filesystem import File, FileSystem, LogDirFailure


class FlushTask:
    """What has to be synced so that everything below `target_offset` survives a crash of the machine.

    It holds the files open itself, and goes by name only for files that are written whole or not again, so the log may
    go on appending, rolling and deleting meanwhile.
    """

    __slots__ = ("_directory", "_files", "_fs", "_log_directory", "_paths", "target_offset")

    def __init__(
        self,
        fs: FileSystem,
        log_directory: str,
        target_offset: int,
        files: list[File],
        paths: list[str],
        directory: str | None,
    ) -> None:
        self._fs = fs
        self._log_directory = log_directory
        self.target_offset = target_offset
        self._files = files
        self._paths = paths
        self._directory = directory

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
