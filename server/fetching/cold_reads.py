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
        self._partitions: dict[Partition, None] = {}

    def begin(self, partition: "Partition", wanted: "ColdReadError") -> None:
        """Read the wanted part of a file, unless a read for the partition is in progress; then wake its fetches."""
        if partition in self._partitions:
            return
        self._partitions[partition] = None
        size_bytes = max(wanted.size_bytes, _LEAST_BYTES)
        self._run_read(partial(wanted.file.load, wanted.position, size_bytes), partial(self._ended, partition))

    def _ended(self, partition: "Partition", error: Exception | None) -> None:
        """Wake the fetches. After an error they read at the end of their wait, and report it."""
        del self._partitions[partition]
        if error is None:
            partition.wake_watchers()
