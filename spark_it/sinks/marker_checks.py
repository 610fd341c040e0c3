"""Checks of the marker and the owners in a sink's target before a batch is written."""

from collections.abc import Set

from odradek.spark_it.interfaces.marker import get_batch, get_generation
from odradek.spark_it.interfaces.sink import SinkBatch, SinkError


def is_written(marker: int, batch: SinkBatch, what: str) -> bool:
    """Return whether the batch is the last one in the target; `marker` is the target's marker, and `what` names it.

    Raises SinkError if the target has a later batch, because it is unknown whether it contains this batch's rows.
    """
    if marker <= batch.marker:
        return marker == batch.marker
    if get_generation(marker) > batch.generation:
        raise SinkError(
            f"{what} has generation {get_generation(marker)}, but this state of the pipeline has {batch.generation}: "
            "it was reset since, or another copy of it writes there; use that one, or reset"
        )
    raise SinkError(
        f"{what} is batch {get_batch(marker)}, but this is batch {batch.id}: the checkpoint is older than "
        "the written rows; restore the newer checkpoint, or reset"
    )


def check_owners(owners: Set[str], batch: SinkBatch, what: str) -> None:
    """Raise SinkError if the sink's markers, named by `what`, belong to another state than the batch's."""
    if owners - {batch.state}:
        raise SinkError(
            f"{what} belongs to another copy of this pipeline, which was reset later than this one or replaced it; "
            "run that one, or stop it and reset this one"
        )
