"""The history of a run: the operations of simulated clients and their outcomes, as input of the checker.

Events are appended in the order in which they happen, and never removed. An operation begins when a client sends its
request and ends when the client has the outcome, which may never happen. Modelled on Jepsen's histories.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from odradek.simulation.topic_lives import TopicHistory
    from odradek.simulation.unclean_elections import UncleanElection

Partition = tuple[str, int]
"""Topic and partition index."""
Headers = tuple[tuple[str, bytes | None], ...]

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

LATEST, EARLIEST, LARGEST = -1, -2, -3
"""Special positions of ListOffsets: log end, log start, and the record with the largest timestamp."""


class Moment(NamedTuple):
    """A point of the history: its position in the order of all events, and the simulated time in ms."""

    order: int
    time_ms: int


class Outcome(Enum):
    """Outcome of an operation. FAILED: it certainly had no effect. UNKNOWN: it may have had one, or still may."""

    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Guarantee(Enum):
    """Guarantee of a producer: each retry of PLAIN may write a duplicate, retries of the others may not."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class CrashKind(Enum):
    """Kind of a crash. PROCESS_KILL keeps all written data, the others keep synced data only."""

    PROCESS_KILL = "process kill"
    POWER_LOSS = "power loss"
    DISK_FAILURE = "disk failure"


class Isolation(Enum):
    """The isolation levels of Fetch and ListOffsets, by their codes on the wire."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class SentRecord(NamedTuple):
    """A sent record. `value` is unique in the history; `timestamp` is in ms."""

    value: bytes
    key: bytes | None
    headers: Headers
    timestamp: int


class ReadRecord(NamedTuple):
    """A record that was read. `leader_epoch` is that of its batch, -1 if it was not noted."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int
    leader_epoch: int = -1


@dataclass(slots=True, eq=False)
class Operation:
    """An operation of a client."""

    client: str
    invoked: Moment
    finished: Moment | None = field(default=None, kw_only=True)
    outcome: Outcome = field(default=Outcome.PENDING, kw_only=True)
    error: str = field(default="", kw_only=True)


@dataclass(slots=True, eq=False)
class Transaction(Operation):
    """A transaction of a producer instance.

    The outcome is that of the commit. OK: the transaction is committed. FAILED: it certainly is not. UNKNOWN: a commit
    was requested and its result is unknown. `commit_invoked` is the time of the first commit request.
    """

    transactional_id: str
    commit_invoked: Moment | None = None
    abort_invoked: Moment | None = None
    sends: list[Send] = field(default_factory=list)
    offsets: list[OffsetCommit] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Send(Operation):
    """A batch for a partition, with all its retries. `producer` is the instance whose records stay in order.

    With outcome OK, `base_offset` is the offset of the first record in the broker's response (-1: none). Only the last
    of `attempts` got a response.
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
    """A successful fetch of a partition, as an application sees it.

    `fetch_offset` is the requested offset, `next_offset` the consumer's position after the fetch, and `records` the
    returned records between them. Polls of the same `assignment` (a consumer that owns a partition without interruption
    and does not seek) are consecutive.
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
    """A commit of a group's offset for a partition, alone or (with `transaction`) as a part of a transaction.

    `lost` are attempts without a response, which may still take effect later. `retention_ms` is the retention that the
    commit request sets, if any.
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
    """DeleteGroups of a group, which also deletes its offsets."""

    group: str


@dataclass(slots=True, eq=False)
class OffsetFetch(Operation):
    """A committed offset in an OffsetFetch response; -1 is none. `stable` is the request's require_stable."""

    group: str
    partition: Partition
    offset: int
    stable: bool


@dataclass(slots=True, eq=False)
class Assignment(Operation):
    """The partitions assigned to a member in a generation."""

    group: str
    generation: int
    member: str
    partitions: tuple[Partition, ...]


@dataclass(slots=True, eq=False)
class EndOffset(Operation):
    """The end offset of a partition in a ListOffsets response, for an isolation level.

    leader_epoch: of the leader that returned it; -1 if it is unknown
    is_fetched: it is from a Fetch response
    """

    partition: Partition
    isolation: Isolation
    offset: int
    leader_epoch: int = -1
    is_fetched: bool = False


@dataclass(slots=True, eq=False)
class Copy:
    """A read-process-write job: `group` reads `inputs` and writes one `copied_value` per record to `outputs`."""

    group: str
    inputs: tuple[Partition, ...]
    outputs: tuple[Partition, ...]


@dataclass(slots=True)
class Crash:
    """A crash of the broker."""

    kind: CrashKind
    moment: Moment


@dataclass(slots=True)
class TopicSettings:
    """Settings of topics that determine their guarantees.

    flush_before_acks: for all topics without an entry in `overrides`
    log_append_time: topics with timestamps of the broker
    compacted: topics from which compaction may remove records
    is_cluster: acknowledged records with acks=all survive, because not all replicas lose unsynced data; others may be
        lost when another broker is elected
    unclean: topics with unclean leader elections
    aged: topics from which retention may remove records without a timestamp, or older than `retention_ms`
    """

    flush_before_acks: bool = False
    overrides: Mapping[str, bool] = field(default_factory=dict)
    log_append_time: frozenset[str] = frozenset()
    compacted: frozenset[str] = frozenset()
    aged: frozenset[str] = frozenset()
    retention_ms: int = 0
    groups_expire: bool = False
    is_cluster: bool = False
    unclean: frozenset[str] = frozenset()

    def is_durable(self, topic: str) -> bool:
        """Return whether acknowledged records of the topic survive a power loss."""
        return self.is_cluster or self.overrides.get(topic.partition("#")[0], self.flush_before_acks)


@dataclass(slots=True)
class FinalLog:
    """A final read of a partition for an isolation level; `end_offset` is the offset at which the read ended.

    `stamps` are offset and timestamp of every record, including those that are not returned to applications.
    """

    records: tuple[ReadRecord, ...]
    end_offset: int
    high_watermark: int
    start_offset: int = 0
    stamps: tuple[tuple[int, int], ...] = ()


class Lookup(NamedTuple):
    """A ListOffsets response for a timestamp or a special position; -1 and -1 is none."""

    partition: Partition
    wanted: int
    offset: int
    timestamp: int


@dataclass(slots=True)
class FinalState:
    """The final reads of a run."""

    logs: dict[tuple[Partition, Isolation], FinalLog] = field(default_factory=dict)
    offsets: dict[tuple[str, Partition], int] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)

    def partitions(self) -> list[Partition]:
        """Return the partitions that were read."""
        return list(dict.fromkeys(partition for partition, _ in self.logs))


def label_of(value: bytes) -> bytes:
    """Return the unique part of a value; `|` and arbitrary bytes follow it."""
    return value.partition(b"|")[0]


def copied_value(label: bytes, source: Partition, offset: int, value: bytes) -> bytes:
    """Return the value that a copier writes for a record it has read, with a new `label`."""
    return b"%s|copy|%s-%d@%d|%s|" % (label, source[0].encode(), source[1], offset, label_of(value))


def origin_of(value: bytes) -> tuple[Partition, int, bytes] | None:
    """Return partition, offset and label of the record that `value` is a copy of; None if it is no copy."""
    parts = value.split(b"|", 4)
    if len(parts) < 4 or parts[1] != b"copy":
        return None
    place, _, offset = parts[2].decode().rpartition("@")
    topic, _, index = place.rpartition("-")
    return (topic, int(index)), int(offset), parts[3]


class History:
    """The history of a run. `now_ms` is the simulated clock; `trace` is called with a line for each event."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        settings: TopicSettings | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or TopicSettings()
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
        self.unclean_elections: list[UncleanElection] = []
        self.settlements: list[Moment] = []
        """Times, after the faults, at which all brokers of a cluster have the same state."""
        self.has_unfinished_end = False
        """True if a process of the broker ended after a disk operation had failed, which is then never retried."""
        self.clock_steps: list[tuple[Moment, int]] = []
        """Steps of the broker's wall clock: time and size."""
        self.odd: list[tuple[Moment, str, str]] = []
        self.producer_ids: list[tuple[int, str]] = []
        self._now_ms = now_ms
        self._order = 0
        self._trace = trace
        self.topics = _topic_history(self)

    @property
    def now_ms(self) -> int:
        """Return the simulated time."""
        return self._now_ms()

    def moment(self) -> Moment:
        """Return the current moment; each later one is greater."""
        self._order += 1
        return Moment(self._order, self._now_ms())

    def crash(self, kind: CrashKind) -> None:
        """Record a crash of the broker."""
        self.crashes.append(Crash(kind, self.moment()))
        self._note("broker", f"crash {kind.value}")

    def set_clock(self, step_ms: int) -> None:
        """Record a step of the broker's wall clock."""
        self.clock_steps.append((self.moment(), step_ms))
        self._note("broker", f"wall clock set by {step_ms} ms")

    def lose_store(self) -> None:
        """Record the loss of the metadata store and of all configuration in it."""
        self.store_losses.append(self.moment())
        self._note("broker", "the metadata store is lost")

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
        """Record a batch before it is sent; `attempt_send` records each attempt."""
        send = Send(client, self.moment(), partition, producer, guarantee, tuple(records), acks, transaction)
        self.sends.append(send)
        if transaction is not None:
            transaction.sends.append(send)
        return send

    def attempt_send(self, send: Send, detail: str = "") -> None:
        """Record an attempt to send a batch."""
        send.attempts.append(self.moment())
        first, last = label_text(send.records[0].value), label_text(send.records[-1].value)
        self._note(
            send.client, f"produce {name_of(send.partition)} {first}..{last} attempt {len(send.attempts)} {detail}"
        )

    def end_send(
        self, send: Send, outcome: Outcome, base_offset: int = -1, log_append_time: int = -1, error: str = ""
    ) -> None:
        """Record the outcome of a batch.

        In a cluster only an acknowledgement of all replicas in sync is certain.
        """
        if self.settings.is_cluster and outcome is Outcome.OK and send.acks != -1:
            outcome, base_offset = Outcome.UNKNOWN, -1
        send.base_offset, send.log_append_time = base_offset, log_append_time
        self._end(send, outcome, error)
        first = label_text(send.records[0].value)
        self._note(send.client, f"produced {name_of(send.partition)} {first} {outcome.value} at {base_offset} {error}")

    def begin_transaction(self, client: str, transactional_id: str) -> Transaction:
        """Record the beginning of a transaction in the client; the broker is not involved yet."""
        transaction = Transaction(client, self.moment(), transactional_id)
        self.transactions.append(transaction)
        self._note(client, f"begin transaction of {transactional_id}")
        return transaction

    def request_commit(self, transaction: Transaction) -> None:
        """Record an attempt to commit."""
        moment = self.moment()
        transaction.commit_invoked = transaction.commit_invoked or moment
        self._note(transaction.client, f"commit transaction of {transaction.transactional_id}")

    def request_abort(self, transaction: Transaction) -> None:
        """Record an attempt to abort."""
        moment = self.moment()
        transaction.abort_invoked = transaction.abort_invoked or moment
        self._note(transaction.client, f"abort transaction of {transaction.transactional_id}")

    def end_transaction(self, transaction: Transaction, outcome: Outcome, error: str = "") -> None:
        """Record the outcome of a transaction: see `Transaction`."""
        self._end(transaction, outcome, error)
        self._note(transaction.client, f"transaction of {transaction.transactional_id} commit {outcome.value} {error}")

    def record_poll(self, poll: Poll) -> None:
        """Record a fetch that returned records or moved the consumer past records that are not returned."""
        self._end(poll, Outcome.OK)
        self.polls.append(poll)
        offsets = [record.offset for record in poll.records]
        span = f"{len(offsets)} records {offsets[0]}..{offsets[-1]}" if offsets else "no records"
        self._note(
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
        """Record an offset before it is committed."""
        commit = OffsetCommit(client, self.moment(), group, partition, offset, generation, transaction)
        commit.retention_ms = retention_ms
        self.commits.append(commit)
        if transaction is not None:
            transaction.offsets.append(commit)
        self._note(client, f"commit {group} {name_of(partition)} at {offset} generation {generation}")
        return commit

    def lose_commit(self, commit: OffsetCommit) -> None:
        """Record an attempt that will not get a response."""
        commit.lost.append(self.moment())

    def end_commit(self, commit: OffsetCommit, outcome: Outcome, error: str = "") -> None:
        """Record the outcome of a commit; within a transaction, OK means pending."""
        self._end(commit, outcome, error)
        self._note(commit.client, f"committed {commit.group} {name_of(commit.partition)} {outcome.value} {error}")

    def begin_group_deletion(self, client: str, group: str) -> GroupDeletion:
        """Record a group before it is deleted."""
        deletion = GroupDeletion(client, self.moment(), group)
        self.group_deletions.append(deletion)
        self._note(client, f"delete group {group}")
        return deletion

    def end_group_deletion(self, deletion: GroupDeletion, outcome: Outcome, error: str) -> None:
        """Record the outcome of a group's deletion."""
        self._end(deletion, outcome, error)
        self._note(deletion.client, f"deleted group {deletion.group} {outcome.value} {error}")

    def record_fetch(
        self, client: str, invoked: Moment, group: str, partition: Partition, offset: int, *, stable: bool
    ) -> None:
        """Record a committed offset that was read."""
        fetch = OffsetFetch(client, invoked, group, partition, offset, stable)
        self._end(fetch, Outcome.OK)
        self.fetches.append(fetch)
        self._note(client, f"fetched {group} {name_of(partition)} committed {offset} stable {stable}")

    def record_assignment(
        self, client: str, invoked: Moment, group: str, generation: int, member: str, partitions: Iterable[Partition]
    ) -> None:
        """Record the assignment of a member, which a request at `invoked` returned."""
        assignment = Assignment(client, invoked, group, generation, member, tuple(partitions))
        self._end(assignment, Outcome.OK)
        self.assignments.append(assignment)
        names = " ".join(map(name_of, assignment.partitions))
        self._note(client, f"assigned {group} generation {generation} member {member}: {names}")

    def record_end_offset(
        self,
        client: str,
        invoked: Moment,
        partition: Partition,
        isolation: Isolation,
        offset: int,
        leader_epoch: int = -1,
    ) -> None:
        """Record the end of a partition in a ListOffsets response."""
        end = EndOffset(client, invoked, partition, isolation, offset, leader_epoch)
        self._end(end, Outcome.OK)
        self.end_offsets.append(end)
        self._note(client, f"end of {name_of(partition)} {isolation.name} {offset}")

    def record_fetched_end(
        self, client: str, invoked: Moment, partition: Partition, isolation: Isolation, offset: int, leader_epoch: int
    ) -> None:
        """Record the end of a partition in a response to a fetch in a leader epoch."""
        end = EndOffset(client, invoked, partition, isolation, offset, leader_epoch, is_fetched=True)
        self._end(end, Outcome.OK)
        self.end_offsets.append(end)

    def note_odd(self, client: str, text: str) -> None:
        """Record a response that a broker must never send."""
        self.odd.append((self.moment(), client, text))
        self._note(client, f"ODD {text}")

    def note_producer_id(self, client: str, producer_id: int, epoch: int, owner: str) -> None:
        """Record that `owner`, a transactional id or a producer without one, has got a producer id."""
        self.producer_ids.append((producer_id, owner))
        self._note(client, f"is producer {producer_id} epoch {epoch}")

    def note(self, client: str, text: str) -> None:
        """Add a line to the trace that is not used by the checker."""
        self._note(client, text)

    def has_crashed_since(self, moment: Moment) -> bool:
        """Return whether the broker ended without a clean stop since then."""
        return any(crash.moment.order > moment.order for crash in self.crashes)

    def lossy_crashes(self, topic: str) -> LossyCrashes:
        """Return the crashes, or unclean elections, that may have lost acknowledged records of a topic."""
        if topic in self.settings.unclean:
            elections = (one for one in self.unclean_elections if one.partition[0] == topic)
            return LossyCrashes([election.elected.order for election in elections])
        if self.settings.is_durable(topic):
            return LossyCrashes([])
        return LossyCrashes(
            [crash.moment.order for crash in self.crashes if crash.kind is not CrashKind.PROCESS_KILL]
        )

    def _end(self, operation: Operation, outcome: Outcome, error: str = "") -> None:
        operation.finished = self.moment()
        operation.outcome = outcome
        operation.error = error

    def _note(self, client: str, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{client}: {text}")


def _topic_history(history: History) -> TopicHistory:
    from odradek.simulation.topic_lives import TopicHistory

    return TopicHistory(history.moment, history.note)


class LossyCrashes:
    """The crashes at which a log may lose its tail; they divide a history into eras."""

    __slots__ = ("_orders",)

    def __init__(self, orders: list[int]) -> None:
        self._orders = orders

    def __len__(self) -> int:
        return len(self._orders)

    def with_more(self, orders: Iterable[int]) -> LossyCrashes:
        """Return these crashes and others."""
        return LossyCrashes(sorted([*self._orders, *orders]))

    @property
    def last_era(self) -> int:
        """The last era; eras are numbered from 0."""
        return len(self._orders)

    def era(self, moment: Moment) -> int:
        """Return the era in which a request sent at this moment was processed, if it was processed."""
        return bisect_left(self._orders, moment.order)


def name_of(partition: Partition) -> str:
    """Return topic and index as in the name of a partition's directory."""
    return f"{partition[0]}-{partition[1]}"


def label_text(value: bytes | None) -> str:
    """Return the text for a value in the trace and in violations."""
    return "null" if value is None else label_of(value[:64]).decode("latin-1")
