"""Topics that are deleted and created again under the same name: evidence of each of their lives.

A life is a topic of its own to the checker, under a name such as `mine#2`. So whatever its successor shows of it is out
of place: a record, an offset of a group, a log start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.simulation.history import FinalLog, Isolation, Moment, Operation, Outcome, Partition, name_of


@dataclass(slots=True, eq=False)
class TopicLife:
    """A topic from its creation to its deletion.

    `deletion` is when the latter was first asked for, `deleted` when it was certain. `readings` are the last
    reads of its partitions, of which nothing has changed since.
    """

    topic: str
    number: int
    topic_id: bytes
    partitions: int
    created: Moment
    deletion: Moment | None = None
    deleted: Moment | None = None
    readings: dict[tuple[Partition, Isolation], FinalLog] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name under which the history has it."""
        return f"{self.topic}#{self.number}"

    def partition(self, index: int) -> Partition:
        """One of its partitions."""
        return self.name, index


@dataclass(slots=True, eq=False)
class RecordDeletion(Operation):
    """DeleteRecords before an offset; `low_watermark` is the answer."""

    partition: Partition
    offset: int
    low_watermark: int = -1


@dataclass(slots=True, eq=False)
class Listing(Operation):
    """The id of a topic as Metadata gave it, None if there was no such topic."""

    topic: str
    topic_id: bytes | None


class TopicHistory:
    """The lives of all owned topics, and what was asked and answered about them."""

    def __init__(self, moment: Callable[[], Moment], trace: Callable[[str, str], None]) -> None:
        self.lives: list[TopicLife] = []
        self.record_deletions: list[RecordDeletion] = []
        self.listings: list[Listing] = []
        self._moment = moment
        self._trace = trace

    def begin(self, client: str, topic: str, topic_id: bytes, partitions: int) -> TopicLife:
        """A topic was created."""
        number = sum(life.topic == topic for life in self.lives) + 1
        life = TopicLife(topic, number, topic_id, partitions, self._moment())
        self.lives.append(life)
        self._trace(client, f"created {life.name} id {topic_id.hex()} with {partitions} partitions")
        return life

    def ask_for_deletion(self, client: str, life: TopicLife) -> None:
        """A request to delete it goes out (again)."""
        life.deletion = life.deletion or self._moment()
        self._trace(client, f"delete {life.name}")

    def end(self, client: str, life: TopicLife) -> None:
        """It is deleted for certain."""
        life.deleted = self._moment()
        self._trace(client, f"deleted {life.name}")

    def listed(self, client: str, invoked: Moment, topic: str, topic_id: bytes | None) -> None:
        """Metadata described a topic."""
        listing = Listing(client, invoked, topic, topic_id, finished=self._moment(), outcome=Outcome.OK)
        self.listings.append(listing)
        self._trace(client, f"listed {topic}: {'none' if topic_id is None else topic_id.hex()}")

    def begin_deletion(self, client: str, partition: Partition, offset: int) -> RecordDeletion:
        """The records before an offset are about to be deleted."""
        deletion = RecordDeletion(client, self._moment(), partition, offset)
        self.record_deletions.append(deletion)
        self._trace(client, f"delete records of {name_of(partition)} before {offset}")
        return deletion

    def end_deletion(self, deletion: RecordDeletion, low_watermark: int) -> None:
        """They are deleted."""
        deletion.finished = self._moment()
        deletion.outcome = Outcome.OK
        deletion.low_watermark = low_watermark
        self._trace(deletion.client, f"{name_of(deletion.partition)} begins at {low_watermark}")

    def living(self) -> list[TopicLife]:
        """The lives whose deletion nobody has asked for."""
        return [life for life in self.lives if life.deletion is None]

    def current_name(self, topic: str) -> str:
        """The name of a topic's present life; its own if it has none."""
        return next((life.name for life in self.living() if life.topic == topic), topic)
