"""Leader epochs of a partition and the offsets that each wrote (KIP-101, KIP-279).

Kept in memory as (epoch, start offset), both ascending, and in leader-epoch-checkpoint. Followers and consumers
look up the end of an epoch, to find the offset at which their history and the leader's diverge.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """The epochs of one partition. Changes set `dirty`; the owner writes the checkpoint.

    `latest_epoch` is -1 while there is none.
    """

    __slots__ = ("_epochs", "_starts", "dirty", "latest_epoch")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest_epoch = UNDEFINED_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`; return whether that changed anything.

        Entries that contradict it (same or later epoch, same or later start) are removed. A negative epoch or offset is
        ignored.
        """
        if epoch < 0 or start_offset < 0:
            return False
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._changed()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch <= `epoch` and its end offset; (-1, -1) for -1 and for an epoch above all.

        An epoch below all known ones is returned with the offset where the first of them begins.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 if it is before the first entry."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else UNDEFINED_EPOCH

    def earliest(self) -> tuple[int, int] | None:
        return (self._epochs[0], self._starts[0]) if self._epochs else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`; the one that contains it starts there afterwards."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering > 0 or (covering == 0 and self._starts[0] < start_offset):
            del self._epochs[:covering], self._starts[:covering]
            self._starts[0] = start_offset
            self._changed()

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def _changed(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        self.dirty = True
