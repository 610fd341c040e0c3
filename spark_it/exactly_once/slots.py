"""Transactional slots and their sink transactions. A slot's marker shows whether a transaction is written.

The marker is a committed offset of a group, part of the same transaction as the records. `transactions` writes both.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.spark_it.interfaces.marker import BatchMarker, get_generation
from odradek.spark_it.interfaces.sink import SinkError


class MarkerError(SinkError):
    """An unexpected marker, which does not show whether the transaction is written."""


class TransactionalSlot(NamedTuple):
    """A sequence of sink transactions with one transactional id: of a source partition, or of one part of each batch.

    The marker is the committed offset of `group` for `topic` and `partition`.
    """

    transactional_id: str
    group: str
    topic: str
    partition: int


@dataclass(frozen=True)
class SinkTransaction:
    """One transaction of a batch. `end` is the marker that it commits.

    With `is_first` the previous marker may be missing. `resets` names the commands that correct an unexpected marker.
    `state` is the identity of the pipeline's state; a marker of another state is refused.
    """

    slot: TransactionalSlot
    end: int
    generation: int
    batch: int
    is_first: bool
    resets: str
    state: str = field(default="", kw_only=True)

    def is_written(self, marker: BatchMarker | None) -> bool:
        """Return whether an earlier attempt has written the transaction. Raises MarkerError."""
        raise NotImplementedError

    def _refuse_other_state(self, marker: BatchMarker) -> None:
        if marker.state and marker.state != self.state:
            raise self._make_error("belongs to another copy of the pipeline, which runs elsewhere or was reset later")

    def _make_error(self, problem: str) -> MarkerError:
        slot = self.slot
        return MarkerError(
            f"the offset of group {slot.group} for {slot.topic}-{slot.partition} {problem}; {self.resets}"
        )


@dataclass(frozen=True)
class OffsetTransaction(SinkTransaction):
    """Rows of the records `start` to `end` of a source partition; the marker is the group's offset.

    The marker is beyond this batch if an older copy of the checkpoint was restored.
    """

    start: int

    def is_written(self, marker: BatchMarker | None) -> bool:
        if marker is None:
            if self.is_first:
                return False
            raise self._make_error("is gone, expired or deleted, so it is not known whether the batch is written")
        self._refuse_other_state(marker)
        if marker.offset == self.start:
            return False
        is_ours = (
            (marker.state, marker.generation) == (self.state, self.generation)
            and marker.batch is not None
            and marker.batch >= self.batch
        )
        if is_ours and marker.offset >= self.end:
            return True
        mismatch = f"is {marker.offset}, but batch {self.batch} has offsets {self.start} to {self.end}"
        if is_ours and self.start < marker.offset:
            raise self._make_error(f"{mismatch}: the checkpoint is older than the written records")
        raise self._make_error(
            f"{mismatch}: another program has committed it, or an earlier state of the pipeline, or a copy that runs "
            "elsewhere"
        )


@dataclass(frozen=True)
class BatchTransaction(SinkTransaction):
    """A part of a batch; the marker is the batch's number (`make_marker_number`), as the offset of an empty topic."""

    def is_written(self, marker: BatchMarker | None) -> bool:
        if marker is not None:
            self._refuse_other_state(marker)
        if marker is not None and marker.offset == self.end:
            return True
        if marker is not None and marker.offset > self.end:
            raise self._make_error(
                "belongs to a later batch: the checkpoint is older than the written rows, or a copy of the pipeline "
                "runs elsewhere"
            )
        # The marker of an earlier generation is smaller, even if its batch number is larger.
        if self.is_first or (marker is not None and get_generation(marker.offset) == get_generation(self.end)):
            return False
        raise self._make_error("is gone, expired or deleted, so it is not known whether the batch is written")
