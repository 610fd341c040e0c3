"""What is written in one transaction, and what says whether it is: a unit, its lane, and the lane's marker.

The marker is an offset of a group, committed in the same transaction as the records. No Kafka here: `units` writes.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.spark_it.interfaces.marker import Marker, generation_of
from odradek.spark_it.interfaces.sink import SinkError


class MarkerError(SinkError):
    """A marker that says neither that the unit is written nor that it is not."""


class Lane(NamedTuple):
    """What has units one after the other, a source partition or a part of each batch. `topic` and `partition` are
    where `group` has the marker."""

    transactional_id: str
    group: str
    topic: str
    partition: int


@dataclass(frozen=True)
class Unit:
    """One unit of a batch. `end` is what the marker is afterwards.

    With `is_first` there may be no marker yet. `resets` says what helps if the marker is none of those expected.
    `state` is the identity of the pipeline's state; a marker of another one is never taken for its own.
    """

    lane: Lane
    end: int
    generation: int
    batch: int
    is_first: bool
    resets: str
    state: str = field(default="", kw_only=True)

    def is_written(self, marker: Marker | None) -> bool:
        """Whether an earlier attempt has written the unit. Raises MarkerError."""
        raise NotImplementedError

    def _refuse_another(self, marker: Marker) -> None:
        if marker.state and marker.state != self.state:
            raise self._wrong("belongs to another copy of the pipeline, which runs elsewhere or was reset later")

    def _wrong(self, what: str) -> MarkerError:
        lane = self.lane
        return MarkerError(f"the offset of group {lane.group} for {lane.topic}-{lane.partition} {what}; {self.resets}")


@dataclass(frozen=True)
class OffsetUnit(Unit):
    """Rows that come of the records `start` to `end` of a source partition; the marker is how far the group has read.

    It is ahead of the checkpoint by more than this batch when an older copy of the checkpoint was put in place.
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
class BatchUnit(Unit):
    """A part of a batch; the marker is the batch's number (`lock.marker`), as the offset of an empty topic."""

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
