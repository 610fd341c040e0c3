"""What a sink's own record of the last batch says of the batch that is to be written."""

from collections.abc import Set

from odradek.spark_it.interfaces.marker import batch_of, generation_of
from odradek.spark_it.interfaces.sink import Batch, SinkError


def is_written(recorded: int, batch: Batch, what: str) -> bool:
    """Whether the batch is the last that the sink has, by the marker it has; `what` names that.

    Raises SinkError if it has a later one: what this batch holds may not be what that one held.
    """
    if recorded <= batch.marker:
        return recorded == batch.marker
    if generation_of(recorded) > batch.generation:
        raise SinkError(
            f"{what} is of generation {generation_of(recorded)}, and this state of the pipeline of {batch.generation}: "
            "it was reset since, or another copy of it writes there; use that one, or reset"
        )
    raise SinkError(
        f"{what} is batch {batch_of(recorded)}, and this is batch {batch.id}: the checkpoint is older than "
        "what is written; put back the newer one, or reset"
    )


def check_owners(owners: Set[str], batch: Batch, what: str) -> None:
    """Raises SinkError if the sink's markers, named by `what`, belong to a state that is not the batch's."""
    if owners - {batch.state}:
        raise SinkError(
            f"{what} belongs to another copy of this pipeline, which was reset later than this one or took its place; "
            "run that one, or stop it and reset this one"
        )
