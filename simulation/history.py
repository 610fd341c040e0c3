"""What simulated clients attempted and what they learnt of it: the evidence that the checker judges.

Everything is in the order in which it happened, and nothing is taken back. An operation begins when a client sends its
request and ends when the client knows the outcome, which may be never. The idea is that of Jepsen's histories.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from odradek.simulation.lives import TopicHistory

Partition = tuple[str, int]
"""Topic and partition index."""
Headers = tuple[tuple[str, bytes | None], ...]

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

LATEST, EARLIEST, LARGEST = -1, -2, -3
"""Special positions of ListOffsets: the end, the first offset, and that of the largest timestamp."""


class Moment(NamedTuple):
    """A point of the history: its place in the order of everything, and the simulated time in ms."""

    order: int
    time_ms: int


class Outcome(Enum):
    """What the client knows. FAILED means that it certainly did not happen; UNKNOWN that it may have, or still may."""

    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Guarantee(Enum):
    """What a producer is promised of each record: PLAIN may be written again by each retry, the others may not."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class CrashKind(Enum):
    """PROCESS_KILL keeps what was written, synced or not; the others keep only what was synced."""

    PROCESS_KILL = "process kill"
    POWER_LOSS = "power loss"
    DISK_FAILURE = "disk failure"


class Isolation(Enum):
    """The isolation levels of Fetch and ListOffsets, by their codes on the wire."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class SentRecord(NamedTuple):
    """A record as it was sent. `value` is unique in the history; `timestamp` is in ms."""

    value: bytes
    key: bytes | None
    headers: Headers
    timestamp: int


class ReadRecord(NamedTuple):
    """A record as it was read."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int


@dataclass(slots=True, eq=False)
class Operation:
    """Something a client attempted."""

    client: str
    invoked: Moment
    finished: Moment | None = field(default=None, kw_only=True)
    outcome: Outcome = field(default=Outcome.PENDING, kw_only=True)
    error: str = field(default="", kw_only=True)


@dataclass(slots=True, eq=False)
class Transaction(Operation):
    """One transaction of one producer instance.

    The outcome is that of committing: OK means known to be committed, FAILED known never to be, UNKNOWN that a commit
    was requested and nobody knows. `commit_invoked` is when a commit was first requested.
    """

    transactional_id: str
    commit_invoked: Moment | None = None
    abort_invoked: Moment | None = None
    sends: list[Send] = field(default_factory=list)
    offsets: list[OffsetCommit] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Send(Operation):
    """One batch for one partition, with all its retries. `producer` names the instance whose records stay in order.

    With outcome OK, `base_offset` is where the broker said the first record lies (-1: it did not say). Only the last
    of `attempts` was answered.
    """

    partition: Partition
    producer: str
    guarantee: Guarantee
    records: tuple[SentRecord, ...]
    acks: int = -1
    transaction: Transaction | None = None
    attempts: list[Moment] = field(default_factory=list)
    base_offset: int = -1
    log_append_time: int = -1


@dataclass(slots=True, eq=False)
class Poll(Operation):
    """One answered fetch of one partition, as an application would see it.

    `fetch_offset` was asked for, `next_offset` is where the consumer goes on, `records` are what it was given of those
    between. Polls of the same `assignment` (a consumer that owns a partition without a break, and does not seek) follow
    each other.
    """

    partition: Partition
    isolation: Isolation
    assignment: str
    fetch_offset: int
    next_offset: int
    records: tuple[ReadRecord, ...]
    high_watermark: int
    last_stable_offset: int
    group: str | None = None


@dataclass(slots=True, eq=False)
class OffsetCommit(Operation):
    """A group's position in one partition, committed alone or (with `transaction`) as a part of a transaction.

    `lost` are attempts that were never answered: they may still take effect later. `retention_ms` is how long the
    position is kept, if the commit limits that.
    """

    group: str
    partition: Partition
    offset: int
    generation: int = -1
    transaction: Transaction | None = None
    lost: list[Moment] = field(default_factory=list)
    retention_ms: int = -1


@dataclass(slots=True, eq=False)
class GroupDeletion(Operation):
    """DeleteGroups of a group, which takes its positions."""

    group: str


@dataclass(slots=True, eq=False)
class OffsetFetch(Operation):
    """A group's committed position as the broker gave it; -1 is none. `stable` asked for no pending transaction."""

    group: str
    partition: Partition
    offset: int
    stable: bool


@dataclass(slots=True, eq=False)
class Assignment(Operation):
    """What a member of a group was assigned in one generation."""

    group: str
    generation: int
    member: str
    partitions: tuple[Partition, ...]


@dataclass(slots=True, eq=False)
class EndOffset(Operation):
    """The end of a partition as ListOffsets gave it, for an isolation level."""

    partition: Partition
    isolation: Isolation
    offset: int


@dataclass(slots=True, eq=False)
class Copy:
    """A read-process-write job: `group` reads `inputs` and writes for each record one copied_value to `outputs`."""

    group: str
    inputs: tuple[Partition, ...]
    outputs: tuple[Partition, ...]


@dataclass(slots=True)
class Crash:
    """A broker went down."""

    kind: CrashKind
    moment: Moment


@dataclass(slots=True)
class Settings:
    """What was promised: `flush_before_acks` for all topics, `overrides` by topic; `log_append_time` names topics whose
    timestamps are the broker's, `compacted` those of which compaction may remove records, `aged` those of which
    retention may, if they have no timestamp or one more than `retention_ms` ago."""

    flush_before_acks: bool = False
    overrides: Mapping[str, bool] = field(default_factory=dict)
    log_append_time: frozenset[str] = frozenset()
    compacted: frozenset[str] = frozenset()
    aged: frozenset[str] = frozenset()
    retention_ms: int = 0
    groups_expire: bool = False

    def is_durable(self, topic: str) -> bool:
        """Whether what is acknowledged there survives a power loss."""
        return self.overrides.get(topic.partition("#")[0], self.flush_before_acks)


@dataclass(slots=True)
class FinalLog:
    """All of one partition at the end, for one isolation level; `end_offset` is where the reader had to stop.

    `stamps` are offset and timestamp of every record, also of those that no application sees.
    """

    records: tuple[ReadRecord, ...]
    end_offset: int
    high_watermark: int
    start_offset: int = 0
    stamps: tuple[tuple[int, int], ...] = ()


class Lookup(NamedTuple):
    """An answer of ListOffsets for a timestamp, or for a special position; -1 and -1 is none."""

    partition: Partition
    wanted: int
    offset: int
    timestamp: int


@dataclass(slots=True)
class FinalState:
    """What was read when all was over."""

    logs: dict[tuple[Partition, Isolation], FinalLog] = field(default_factory=dict)
    offsets: dict[tuple[str, Partition], int] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)

    def partitions(self) -> list[Partition]:
        """Those that were read."""
        return list(dict.fromkeys(partition for partition, _ in self.logs))


def label_of(value: bytes) -> bytes:
    """The part of a value that makes it unique; `|` and whatever follow it."""
    return value.partition(b"|")[0]


def copied_value(label: bytes, source: Partition, offset: int, value: bytes) -> bytes:
    """What a copier writes for a record it read, under a `label` of its own."""
    return b"%s|copy|%s-%d@%d|%s|" % (label, source[0].encode(), source[1], offset, label_of(value))


def origin_of(value: bytes) -> tuple[Partition, int, bytes] | None:
    """Where the record lay of which this is a copy, and its label; None if it is not a copy."""
    parts = value.split(b"|", 4)
    if len(parts) < 4 or parts[1] != b"copy":
        return None
    place, _, offset = parts[2].decode().rpartition("@")
    topic, _, index = place.rpartition("-")
    return (topic, int(index)), int(offset), parts[3]


class History:
    """The record of a run. `now_ms` is the simulated clock; `trace` gets a line for whatever happens."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        settings: Settings | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.transactions: list[Transaction] = []
        self.commits: list[OffsetCommit] = []
        self.fetches: list[OffsetFetch] = []
        self.group_deletions: list[GroupDeletion] = []
        self.assignments: list[Assignment] = []
        self.end_offsets: list[EndOffset] = []
        self.copies: list[Copy] = []
        self.crashes: list[Crash] = []
        self.store_losses: list[Moment] = []
        self.has_unfinished_end = False
        """Whether a life of the broker ended after the disk had refused it something, which it tries again no more."""
        self.clock_steps: list[tuple[Moment, int]] = []
        """When the wall clock of the broker's machine was set, and by how much."""
        self.odd: list[tuple[Moment, str, str]] = []
        self._now_ms = now_ms
        self._order = 0
        self._trace = trace
        self.topics = _topic_history(self)

    @property
    def now_ms(self) -> int:
        """The time of the last moment there may be."""
        return self._now_ms()

    def moment(self) -> Moment:
        """Now; the next one is later."""
        self._order += 1
        return Moment(self._order, self._now_ms())

    def crash(self, kind: CrashKind) -> None:
        """The broker has gone down, at this moment."""
        self.crashes.append(Crash(kind, self.moment()))
        self._say("broker", f"crash {kind.value}")

    def set_clock(self, step_ms: int) -> None:
        """The wall clock of the broker's machine is set."""
        self.clock_steps.append((self.moment(), step_ms))
        self._say("broker", f"wall clock set by {step_ms} ms")

    def lose_store(self) -> None:
        """The metadata store is gone, and with it all configuration."""
        self.store_losses.append(self.moment())
        self._say("broker", "the metadata store is lost")

    def begin_send(
        self,
        client: str,
        partition: Partition,
        producer: str,
        guarantee: Guarantee,
        records: Iterable[SentRecord],
        acks: int = -1,
        transaction: Transaction | None = None,
    ) -> Send:
        """A batch that is about to be sent; each sending of it is told by attempt_send."""
        send = Send(client, self.moment(), partition, producer, guarantee, tuple(records), acks, transaction)
        self.sends.append(send)
        if transaction is not None:
            transaction.sends.append(send)
        return send

    def attempt_send(self, send: Send, detail: str = "") -> None:
        """The batch goes out (again)."""
        send.attempts.append(self.moment())
        first, last = label_text(send.records[0].value), label_text(send.records[-1].value)
        self._say(
            send.client, f"produce {name_of(send.partition)} {first}..{last} attempt {len(send.attempts)} {detail}"
        )

    def end_send(
        self, send: Send, outcome: Outcome, base_offset: int = -1, log_append_time: int = -1, error: str = ""
    ) -> None:
        """What came of the batch in the end."""
        send.base_offset, send.log_append_time = base_offset, log_append_time
        self._end(send, outcome, error)
        first = label_text(send.records[0].value)
        self._say(send.client, f"produced {name_of(send.partition)} {first} {outcome.value} at {base_offset} {error}")

    def begin_transaction(self, client: str, transactional_id: str) -> Transaction:
        """A producer starts a transaction of its own accord; the broker learns of it later."""
        transaction = Transaction(client, self.moment(), transactional_id)
        self.transactions.append(transaction)
        self._say(client, f"begin transaction of {transactional_id}")
        return transaction

    def ask_for_commit(self, transaction: Transaction) -> None:
        """A request to commit goes out (again)."""
        moment = self.moment()
        transaction.commit_invoked = transaction.commit_invoked or moment
        self._say(transaction.client, f"commit transaction of {transaction.transactional_id}")

    def ask_for_abort(self, transaction: Transaction) -> None:
        """A request to abort goes out (again)."""
        moment = self.moment()
        transaction.abort_invoked = transaction.abort_invoked or moment
        self._say(transaction.client, f"abort transaction of {transaction.transactional_id}")

    def end_transaction(self, transaction: Transaction, outcome: Outcome, error: str = "") -> None:
        """What the producer knows of its transaction in the end: see Transaction."""
        self._end(transaction, outcome, error)
        self._say(transaction.client, f"transaction of {transaction.transactional_id} commit {outcome.value} {error}")

    def polled(self, poll: Poll) -> None:
        """A fetch was answered with records, or moved the consumer past some it does not get."""
        self._end(poll, Outcome.OK)
        self.polls.append(poll)
        offsets = [record.offset for record in poll.records]
        span = f"{len(offsets)} records {offsets[0]}..{offsets[-1]}" if offsets else "no records"
        self._say(
            poll.client,
            f"polled {name_of(poll.partition)} {poll.isolation.name} from {poll.fetch_offset} to {poll.next_offset}:"
            f" {span} hw {poll.high_watermark} lso {poll.last_stable_offset}",
        )

    def begin_commit(
        self,
        client: str,
        group: str,
        partition: Partition,
        offset: int,
        generation: int = -1,
        transaction: Transaction | None = None,
        retention_ms: int = -1,
    ) -> OffsetCommit:
        """A position is about to be committed."""
        commit = OffsetCommit(client, self.moment(), group, partition, offset, generation, transaction)
        commit.retention_ms = retention_ms
        self.commits.append(commit)
        if transaction is not None:
            transaction.offsets.append(commit)
        self._say(client, f"commit {group} {name_of(partition)} at {offset} generation {generation}")
        return commit

    def lose_commit(self, commit: OffsetCommit) -> None:
        """An attempt at it will not be answered."""
        commit.lost.append(self.moment())

    def end_commit(self, commit: OffsetCommit, outcome: Outcome, error: str = "") -> None:
        """Whether the position was stored; within a transaction: stored to be decided with it."""
        self._end(commit, outcome, error)
        self._say(commit.client, f"committed {commit.group} {name_of(commit.partition)} {outcome.value} {error}")

    def begin_group_deletion(self, client: str, group: str) -> GroupDeletion:
        """A group is about to be deleted."""
        deletion = GroupDeletion(client, self.moment(), group)
        self.group_deletions.append(deletion)
        self._say(client, f"delete group {group}")
        return deletion

    def end_group_deletion(self, deletion: GroupDeletion, outcome: Outcome, error: str) -> None:
        """Return whether the group was deleted."""
        self._end(deletion, outcome, error)
        self._say(deletion.client, f"deleted group {deletion.group} {outcome.value} {error}")

    def fetched(
        self, client: str, invoked: Moment, group: str, partition: Partition, offset: int, *, stable: bool
    ) -> None:
        """A committed position was read."""
        fetch = OffsetFetch(client, invoked, group, partition, offset, stable)
        self._end(fetch, Outcome.OK)
        self.fetches.append(fetch)
        self._say(client, f"fetched {group} {name_of(partition)} committed {offset} stable {stable}")

    def assigned(
        self, client: str, group: str, generation: int, member: str, partitions: Iterable[Partition]
    ) -> None:
        """A member learnt what it owns."""
        assignment = Assignment(client, self.moment(), group, generation, member, tuple(partitions))
        self._end(assignment, Outcome.OK)
        self.assignments.append(assignment)
        names = " ".join(map(name_of, assignment.partitions))
        self._say(client, f"assigned {group} generation {generation} member {member}: {names}")

    def listed_end(
        self, client: str, invoked: Moment, partition: Partition, isolation: Isolation, offset: int
    ) -> None:
        """ListOffsets told the end of a partition."""
        end = EndOffset(client, invoked, partition, isolation, offset)
        self._end(end, Outcome.OK)
        self.end_offsets.append(end)
        self._say(client, f"end of {name_of(partition)} {isolation.name} {offset}")

    def note_odd(self, client: str, text: str) -> None:
        """A client got an answer that a broker must never give."""
        self.odd.append((self.moment(), client, text))
        self._say(client, f"ODD {text}")

    def say(self, client: str, text: str) -> None:
        """A line for the trace that proves nothing."""
        self._say(client, text)

    def has_lost_power_since(self, moment: Moment) -> bool:
        """Return whether what was not synced may be gone since then."""
        later = (crash for crash in self.crashes if crash.moment.order > moment.order)
        return any(crash.kind is not CrashKind.PROCESS_KILL for crash in later)

    def lossy_crashes(self, topic: str) -> LossyCrashes:
        """The crashes that may have taken acknowledged records of a topic."""
        if self.settings.is_durable(topic):
            return LossyCrashes([])
        return LossyCrashes(
            [crash.moment.order for crash in self.crashes if crash.kind is not CrashKind.PROCESS_KILL]
        )

    def _end(self, operation: Operation, outcome: Outcome, error: str = "") -> None:
        operation.finished = self.moment()
        operation.outcome = outcome
        operation.error = error

    def _say(self, client: str, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{client}: {text}")


def _topic_history(history: History) -> TopicHistory:
    from odradek.simulation.lives import TopicHistory

    return TopicHistory(history.moment, history.say)


class LossyCrashes:
    """Divides a history into eras, between whose ends a log may legitimately lose its tail."""

    __slots__ = ("_orders",)

    def __init__(self, orders: list[int]) -> None:
        self._orders = orders

    def __len__(self) -> int:
        return len(self._orders)

    def with_more(self, orders: Iterable[int]) -> LossyCrashes:
        """These, and other ends of eras."""
        return LossyCrashes(sorted([*self._orders, *orders]))

    @property
    def last_era(self) -> int:
        """The era of the end; eras count from 0."""
        return len(self._orders)

    def era(self, moment: Moment) -> int:
        """The era in which whatever was asked at this moment was answered, if it was answered."""
        return bisect_left(self._orders, moment.order)


def name_of(partition: Partition) -> str:
    """As Kafka names the directory of a partition."""
    return f"{partition[0]}-{partition[1]}"


def label_text(value: bytes | None) -> str:
    """A value as the trace and the violations name it."""
    return "null" if value is None else label_of(value[:64]).decode("latin-1")
