"""Reads from the disk in threads, for fetches that have to find records there.

Index entries and batch headers of records that were written long ago are on the disk only. A fetch treats such a
partition as one without records, and is woken when a thread has read them.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from odradek.log.background.tasks import Done

if TYPE_CHECKING:
    from odradek.log.storage.filesystem import ColdReadError
    from odradek.replication.replicas.partition import Partition

_LEAST_BYTES: Final = 131_072
"""Bytes that are read at least: the records that follow are fetched next."""


class ColdReads:
    """The reads in progress, one for a partition at a time.

    run_read: calls the first function in a thread, later the second one (`Environment.run_read`)
    """

    def __init__(self, run_read: Callable[[Callable[[], None], Done], None]) -> None:
        self._run_read = run_read
        self._partitions: set[Partition] = set()
        # Path and position of the part whose read has failed.
        self._failed: dict[Partition, tuple[str, int]] = {}

    def begin(self, partition: "Partition", wanted: "ColdReadError") -> bool:
        """Begin to read the wanted part of a file, unless a read for the partition is in progress.

        The end of either wakes the partition's fetches, which call again if they need another part. False if the last
        read was of this part and failed: then the caller reads it itself, and reports the error.
        """
        if partition in self._partitions:
            return True
        part = wanted.file.path, wanted.position
        if self._failed.pop(partition, None) == part:
            return False
        self._partitions.add(partition)
        self._run_read(
            partial(wanted.file.load, wanted.position, max(wanted.size_bytes, _LEAST_BYTES)),
            partial(self._ended, partition, part),
        )
        return True

    def _ended(self, partition: "Partition", part: tuple[str, int], error: Exception | None) -> None:
        """Wake the fetches, also after an error: others may wait for other parts."""
        self._partitions.remove(partition)
        if error is not None:
            self._failed[partition] = part
        partition.wake_watchers()
