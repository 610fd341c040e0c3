"""Transactional slots, their sink transactions, and the decision from a slot's marker if one is written.

The marker is an offset of a group, committed in the same transaction as the records. `transactions` does the writing.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.spark_it.interfaces.marker import Marker, generation_of
from odradek.spark_it.interfaces.sink import SinkError


class MarkerError(SinkError):
    """A marker that shows neither that the transaction is written nor that it is not."""


class TransactionalSlot(NamedTuple):
    """A sequence of sink transactions under one transactional id: of a source partition, or of one part of each batch.

    The marker is the offset of `group` for `topic` and `partition`.
    """

    transactional_id: str
    group: str
    topic: str
    partition: int


@dataclass(frozen=True)
class SinkTransaction:
    """One transaction of a batch. `end` is the marker after it.

    With `is_first` the marker may be missing. `resets` is the remedy if the marker is none of those expected. `state`
    is the identity of the pipeline's state; the marker of another state is refused.
    """

    slot: TransactionalSlot
    end: int
    generation: int
    batch: int
    is_first: bool
    resets: str
    state: str = field(default="", kw_only=True)

    def is_written(self, marker: Marker | None) -> bool:
        """Return whether an earlier attempt has written the transaction. Raises MarkerError."""
        raise NotImplementedError

    def _refuse_another(self, marker: Marker) -> None:
        if marker.state and marker.state != self.state:
            raise self._wrong("belongs to another copy of the pipeline, which runs elsewhere or was reset later")

    def _wrong(self, what: str) -> MarkerError:
        slot = self.slot
        return MarkerError(f"the offset of group {slot.group} for {slot.topic}-{slot.partition} {what}; {self.resets}")


@dataclass(frozen=True)
class OffsetTransaction(SinkTransaction):
    """Rows made of the records `start` to `end` of a source partition; the marker is the group's offset.

    It is ahead of the checkpoint by more than this batch if an older copy of the checkpoint was restored.
    """

    start: int

    def is_written(self, marker: Marker | None) -> bool:
        if marker is None:
            if self.is_first:
                return False
            raise self._wrong("is gone, expired or deleted, so it is not known whether the batch is written")
        self._refuse_another(marker)
        if marker.offset == self.start:
            return False
        is_ours = (
            (marker.state, marker.generation) == (self.state, self.generation)
            and marker.batch is not None
            and marker.batch >= self.batch
        )
        if is_ours and marker.offset >= self.end:
            return True
        between = f"is {marker.offset}, and batch {self.batch} goes from {self.start} to {self.end}"
        if is_ours and self.start < marker.offset:
            raise self._wrong(f"{between}: the checkpoint is older than what is written")
        raise self._wrong(
            f"{between}: somebody else has moved it, or an earlier state of the pipeline, or a copy that runs elsewhere"
        )


@dataclass(frozen=True)
class BatchTransaction(SinkTransaction):
    """A part of a batch; the marker is the batch's number (`marker_number`), as the offset of an empty topic."""

    def is_written(self, marker: Marker | None) -> bool:
        if marker is not None:
            self._refuse_another(marker)
        if marker is not None and marker.offset == self.end:
            return True
        if marker is not None and marker.offset > self.end:
            raise self._wrong(
                "is of a later batch: the checkpoint is older than what is written, or a copy of the pipeline runs "
                "elsewhere"
            )
        # An earlier generation has larger numbers of batches, and smaller markers.
        if self.is_first or (marker is not None and generation_of(marker.offset) == generation_of(self.end)):
            return False
        raise self._wrong("is gone, expired or deleted, so it is not known whether the batch is written")
