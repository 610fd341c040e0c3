"""The interface of a sink, and the types of its arguments and results."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.marker import make_marker_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class SinkError(Exception):
    """A sink failed; `str()` has the reason and the remedy.

    A batch that failed with `is_retriable` is retried after a pause; any other failure stops the pipeline.
    """

    def __init__(self, message: str, *, is_retriable: bool = False) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable


@dataclass(frozen=True)
class Range:
    """Records `start` up to but not including `end` of a partition."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class SinkBatch:
    """One batch to write. A repeated batch has the same number and the same content.

    With offset transactions, partition i of the rows (`spark_partition_id()`) is computed from `ranges[i]`. Dead
    letters may have a multiple of these partitions: partition p is computed from `ranges[p % len(ranges)]`.

    `spark` is the session of the frames; their temporary views do not exist in other sessions. `state` is the identity
    of the pipeline's state (`state.lock`): a target that another state has claimed refuses the batch.
    """

    id: int
    generation: int
    spark: "SparkSession"
    ranges: tuple[Range, ...] | None = None
    state: str = ""

    @property
    def marker(self) -> int:
        """The number that marks this batch and all before it as written; 0 marks no batch."""
        return make_marker_number(self.generation, self.id)


@dataclass(frozen=True)
class Claim:
    """The claim of a pipeline's state on the target: `state` becomes the owner of the markers of `replaced` states.

    `start_offsets` has the start offset of each source partition, if the state has no batch yet and the sink uses
    offset transactions.
    """

    state: str
    generation: int
    replaced: Set[str] = frozenset()
    is_new: bool = False
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    def check(self, owners: Set[str], what: str) -> None:
        """Raise SinkError if `what` is owned by a state that this claim does not replace."""
        self.confirm((owners - self.replaced) | {self.state}, what)

    def confirm(self, owners: Set[str], what: str) -> None:
        """Raise SinkError unless this state is the only owner of `what`."""
        if owners != {self.state}:
            raise SinkError(f"{what} was claimed at the same time by another copy of this pipeline; run only one")


@dataclass(frozen=True)
class WrittenCounts:
    """Numbers of rows and dead letters that a sink has written for a batch.

    Dead letters are those passed to the sink and rows that the target rejected. Rows that an earlier attempt wrote are
    included.
    """

    rows: int
    dead_letters: int = 0


class BatchSink(Protocol):
    """A sink of one run of a pipeline. Methods are called one at a time, on the driver.

    A sink with `takes_dead_letters` writes dead letters itself, in the transaction of the rows. For others the engine
    writes them before it calls `write`, with None in their place.
    """

    takes_dead_letters: bool

    def prepare(self, schema: "StructType") -> None:
        """Verify or create the target before the first batch of a run, for rows of this schema. Raises SinkError."""

    def read_marker(self) -> int:
        """Return the marker of the pipeline's newest batch in the target; 0 if there is none or the target stores no
        markers.

        Called after `prepare`. Raises SinkError.
        """

    def read_owners(self) -> Set[str]:
        """Return the identities of the states that own the pipeline's markers in the target.

        Called after `prepare`. Raises SinkError.
        """

    def claim(self, claim: Claim) -> None:
        """Make a state the owner of the target's markers, before its first batch of a run; do nothing if it is the
        owner.

        Raises SinkError, also if another state has claimed them since `read_owners` was called.
        """

    def write(self, rows: "DataFrame", dead: "DataFrame | None", batch: SinkBatch) -> WrittenCounts:
        """Write a batch. Rows of a batch that is already written are not written again.

        Raises SinkError, and `dead_letters.headers.BadRecordError` for a row that the target rejects if
        `errors.tolerance` is none.
        """

    def close(self) -> None:
        """Release all resources; `write` is not called afterwards."""
