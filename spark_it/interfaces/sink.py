"""The interface of a sink, and the values that it takes and returns."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.marker import marker_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class SinkError(Exception):
    """What keeps a sink from writing; `str()` says what, and what to do.

    A batch that failed with `is_retriable` is written again after a while; anything else stops the pipeline.
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
class Batch:
    """What is written at once. It has the same number and the same content when it is repeated.

    With offset units `ranges[i]` is what partition i of the rows (`spark_partition_id()`) is made of. Dead letters may
    have several times as many partitions: partition p is made of `ranges[p % len(ranges)]`.
    `spark` is the session that the frames belong to; a statement of another one does not see them. `state` is the
    identity of the pipeline's state (`lock`): a target that was claimed by another one refuses the batch.
    """

    id: int
    generation: int
    spark: "SparkSession"
    ranges: tuple[Range, ...] | None = None
    state: str = ""

    @property
    def marker(self) -> int:
        """The number that says this batch and all before it are written; 0 says that none is."""
        return marker_number(self.generation, self.id)


@dataclass(frozen=True)
class Claim:
    """The claim of a pipeline's state to write the target: markers of `replaced` states become its own.

    `begins` says where each source partition begins, if the state has not begun a batch and offset units are written.
    """

    state: str
    generation: int
    replaced: Set[str] = frozenset()
    is_new: bool = False
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)

    def check(self, owners: Set[str], what: str) -> None:
        """Raises SinkError if `what` is owned by a state that is not to be replaced."""
        self.confirm((owners - self.replaced) | {self.state}, what)

    def confirm(self, owners: Set[str], what: str) -> None:
        """Raises SinkError if `what` is owned by any state but this one."""
        if owners != {self.state}:
            raise SinkError(f"{what} was claimed at the same time by another copy of this pipeline; run only one")


@dataclass(frozen=True)
class Written:
    """Rows that the batch has put into the sink, and dead letters that the sink has written: those it was given, and
    those that it made of rows which the target refused. What was there before, since the batch is repeated, counts."""

    rows: int
    dead_letters: int = 0


class BatchSink(Protocol):
    """A sink of one run of a pipeline. Methods are called one at a time, on the driver.

    With `takes_dead_letters` it writes dead letters itself, in the transaction of the rows. Otherwise they are in the
    topic before `write` is called, which gets None for them.
    """

    takes_dead_letters: bool

    def prepare(self, schema: "StructType") -> None:
        """Makes sure, before the first batch of a run, that the target is there and takes such rows.

        Raises SinkError.
        """

    def recorded(self) -> int:
        """The marker of the newest batch of the pipeline that the target says it has; 0 if there is none, or if it does
        not keep one. Called after `prepare`. Raises SinkError.
        """

    def owners(self) -> Set[str]:
        """The identities of the states that the target's markers of the pipeline belong to. Called after `prepare`.
        Raises SinkError.
        """

    def claim(self, claim: Claim) -> None:
        """Makes the target's markers those of a state, before its first batch of a run; nothing if they are.

        Raises SinkError, also if another state has claimed them since `owners` was called.
        """

    def write(self, rows: "DataFrame", dead: "DataFrame | None", batch: Batch) -> Written:
        """Writes a batch; called with one that is written already, it writes nothing twice.

        Raises SinkError, and deadletter.BadRecordError for a row that the target refuses where none may be bad.
        """

    def close(self) -> None:
        """Lets go of what the sink holds; nothing is written after it."""
