"""Topics that are deleted and created again under the same name: the history of each incarnation ("life").

For the checker each life is a separate topic with a name such as `mine#2`. Data of a life that appears in its successor
(a record, a group's offset, a log start) is therefore a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.simulation.history import FinalLog, Isolation, Moment, Operation, Outcome, Partition, name_of


@dataclass(slots=True, eq=False)
class TopicLife:
    """A topic from its creation to its deletion.

    `deletion` is the time of the first deletion request, `deleted` the time when the deletion was certain. `readings`
    are the last reads of its partitions, without changes since.
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
        """The name in the history."""
        return f"{self.topic}#{self.number}"

    def partition(self, index: int) -> Partition:
        """Return one of its partitions."""
        return self.name, index


@dataclass(slots=True, eq=False)
class RecordDeletion(Operation):
    """DeleteRecords up to an offset; `low_watermark` is from the response."""

    partition: Partition
    offset: int
    low_watermark: int = -1


@dataclass(slots=True, eq=False)
class Listing(Operation):
    """The id of a topic in a Metadata response; None if the topic does not exist."""

    topic: str
    topic_id: bytes | None


class TopicHistory:
    """The lives of all owned topics, and the operations on them."""

    def __init__(self, moment: Callable[[], Moment], trace: Callable[[str, str], None]) -> None:
        self.lives: list[TopicLife] = []
        self.record_deletions: list[RecordDeletion] = []
        self.listings: list[Listing] = []
        self._moment = moment
        self._trace = trace

    def begin(self, client: str, topic: str, topic_id: bytes, partitions: int) -> TopicLife:
        """Record the creation of a topic."""
        number = sum(life.topic == topic for life in self.lives) + 1
        life = TopicLife(topic, number, topic_id, partitions, self._moment())
        self.lives.append(life)
        self._trace(client, f"created {life.name} id {topic_id.hex()} with {partitions} partitions")
        return life

    def request_deletion(self, client: str, life: TopicLife) -> None:
        """Record an attempt to delete a topic."""
        life.deletion = life.deletion or self._moment()
        self._trace(client, f"delete {life.name}")

    def end(self, client: str, life: TopicLife) -> None:
        """Record that the deletion is certain."""
        life.deleted = self._moment()
        self._trace(client, f"deleted {life.name}")

    def listed(self, client: str, invoked: Moment, topic: str, topic_id: bytes | None) -> None:
        """Record a topic in a Metadata response."""
        listing = Listing(client, invoked, topic, topic_id, finished=self._moment(), outcome=Outcome.OK)
        self.listings.append(listing)
        self._trace(client, f"listed {topic}: {'none' if topic_id is None else topic_id.hex()}")

    def begin_deletion(self, client: str, partition: Partition, offset: int) -> RecordDeletion:
        """Record a DeleteRecords request before it is sent."""
        deletion = RecordDeletion(client, self._moment(), partition, offset)
        self.record_deletions.append(deletion)
        self._trace(client, f"delete records of {name_of(partition)} before {offset}")
        return deletion

    def end_deletion(self, deletion: RecordDeletion, low_watermark: int) -> None:
        """Record a successful DeleteRecords response."""
        deletion.finished = self._moment()
        deletion.outcome = Outcome.OK
        deletion.low_watermark = low_watermark
        self._trace(deletion.client, f"{name_of(deletion.partition)} begins at {low_watermark}")

    def living(self) -> list[TopicLife]:
        """Return the lives without a deletion request."""
        return [life for life in self.lives if life.deletion is None]

    def current_name(self, topic: str) -> str:
        """Return the name of a topic's current life, or the topic's name if it has none."""
        return next((life.name for life in self.living() if life.topic == topic), topic)
