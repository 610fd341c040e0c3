"""Sends dead letters of a pipeline back to the topics that they come from, after the cause of the failure is removed.

A record is written with its key, value and original headers, with a new timestamp, to the partition of its key. Each is
written once: the position in the dead-letter topic is an offset of group `<name>:replay`, committed in the transaction
that writes the records, and kept in `replay_position` as well. Records that arrive during a replay are left to the next
one, so that a record that fails again is not replayed for ever. If other rows of a record were written when one failed,
a replay writes them again: the user decides whether such records are replayed.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from odradek.spark_it.dead_letters.headers import (
    CONNECTOR_NAME,
    EXCEPTION_MESSAGE,
    LEFT_OUT,
    PART_WRITTEN,
    Origin,
    origin_of,
    without_errors,
)
from odradek.spark_it.dead_letters.replay_position import ReplayPositionError, read_position, write_position
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once import transactions
from odradek.spark_it.exactly_once.slots import OffsetTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, Records
from odradek.spark_it.interfaces.kafka_types import Header, Offsets
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.group import Group

RECORDS_PER_TRANSACTION = 10_000
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_EXAMPLES = 3


PartlyWritten = Literal["send", "leave"]
"""What happens to records of which other rows were written."""


class ReplayError(Exception):
    """The reason why dead letters cannot be replayed; `str()` has the remedy."""


class DeadLetter(NamedTuple):
    """A record of the dead-letter topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def connector_name(self) -> str | None:
        said = dict(self.headers).get(CONNECTOR_NAME)
        return None if said is None else said.decode("utf-8", "replace")

    @property
    def reason(self) -> str:
        """The reason of the failure."""
        return (dict(self.headers).get(EXCEPTION_MESSAGE) or b"").decode("utf-8", "replace")


@dataclass
class Found:
    """The result of a search: numbers of replayed records by topic, and of skipped ones by reason."""

    again: Counter[str] = field(default_factory=Counter)
    partly_written: int = 0
    of_others: int = 0
    copies: int = 0
    left: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    left_count: Counter[str] = field(default_factory=Counter)

    def leave(self, why: str, where: str) -> None:
        self.left_count[why] += 1
        if len(self.left[why]) < _EXAMPLES:
            self.left[why].append(where)


class Sorter:
    """Decides which dead letters are replayed, and to which topic. `partly_written` is None if that is undecided."""

    def __init__(self, pipeline: Pipeline, dead_letter_topic: str, partly_written: PartlyWritten | None) -> None:
        self._name = pipeline.name
        self._partly_written = partly_written
        self._topic = dead_letter_topic
        self._sources = [one for one in pipeline.sources.values() if isinstance(one, TopicSource)]
        self._seen: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.found = Found()

    def origin(self, letter: DeadLetter, partition: int) -> Origin | None:
        """Return the origin to which a record is written; None if it is skipped, which is counted."""
        if letter.connector_name != self._name:
            self.found.of_others += 1
            return None
        origin = origin_of(letter.headers)
        where = f"{self._topic}-{partition} at offset {letter.offset}: {letter.reason}"
        if origin is None:
            self.found.leave("come from no topic", where)
            return None
        readers = sum(_reads(one, origin.topic) for one in self._sources)
        if not readers:
            self.found.leave(f"come from topic {origin.topic}, which the pipeline does not read", where)
            return None
        if LEFT_OUT in dict(letter.headers):
            self.found.leave("were too large for it, which has them without key and value", f"{where}, from {origin}")
            return None
        seen = self._seen[origin.topic, origin.partition]
        if origin.offset in seen:
            # A sink without transactions may have written a dead letter twice.
            self.found.copies += 1
            return None
        seen.add(origin.offset)
        if PART_WRITTEN in dict(letter.headers) or readers > 1:
            self.found.partly_written += 1
            if self._partly_written == "leave":
                self.found.leave("have other rows, which the sink may have", f"{where}, from {origin}")
            if self._partly_written != "send":
                return None
        self.found.again[origin.topic] += 1
        return origin


def _reads(source: TopicSource, topic: str) -> bool:
    if source.topics_regex is not None:
        return re.fullmatch(source.topics_regex, topic) is not None
    return topic in source.topics


def replay(
    pipeline: Pipeline,
    cluster: Group,
    *,
    execute: bool,
    partly_written: PartlyWritten | None = None,
    records_per_transaction: int = RECORDS_PER_TRANSACTION,
) -> Iterator[str]:
    """Replay dead letters, or with `execute` false only report them; yield lines. Raises ReplayError, ClusterError,
    OSError.
    """
    topic = pipeline.errors.deadletterqueue_topic_name
    if topic is None:
        raise ReplayError("the pipeline has no errors.deadletterqueue.topic.name")
    if not pipeline.errors.deadletterqueue_context_headers_enable:
        key = "errors.deadletterqueue.context.headers.enable"
        raise ReplayError(f"{key} is false: no dead letter says where it is from")
    group = pipeline.replay_group
    topic_id = cluster.topic_ids([topic]).get(topic, "")
    try:
        stretches = _stretches(cluster, topic, group, read_position(pipeline.state_folder, topic, topic_id))
    except ReplayPositionError as error:
        raise ReplayError(str(error)) from None
    clients = _clients(pipeline)
    try:
        consumer = clients.consumer(group)
    except KafkaException as error:
        raise ReplayError(f"admin.override: {_reason(error)}") from None

    def sorted_out(choice: PartlyWritten | None, *, writes: bool) -> Found:
        sorter = Sorter(pipeline, topic, choice)
        for stretch in stretches:
            for chunk in _chunks(consumer, stretch, records_per_transaction):
                records = _records(chunk, sorter)
                if writes:
                    _write(pipeline, chunk, records, clients, group, topic_id)
        return sorter.found

    try:
        if execute and partly_written is None and (count := sorted_out(None, writes=False).partly_written):
            raise ReplayError(f"nothing is written: {_undecided(count)}")
        found = sorted_out(partly_written, writes=execute)
    except KafkaException as error:
        raise ReplayError(f"cannot read {topic}: {_reason(error)}") from None
    finally:
        consumer.close()
    yield from _sentences(found, topic, partly_written, is_done=execute)
    if not execute and (found.again or found.partly_written):
        yield "nothing is written yet; --execute does it"


def _clients(pipeline: Pipeline) -> Clients:
    settings = pipeline.settings
    reading = {
        **settings.passed["admin.override."],
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "enable.auto.offset.store": "false",
    }
    servers = ",".join(settings.bootstrap_servers)
    return Clients(servers, settings.passed["producer.override."], reading, timeout_s=_TIMEOUT_S)


class Chunk(NamedTuple):
    """Dead letters of a partition that are replayed in one transaction; offsets `start` to `end` of the topic.

    `is_first` if the group has no offset yet.
    """

    topic: str
    partition: int
    start: int
    end: int
    is_first: bool
    letters: list[DeadLetter]


class Stretch(NamedTuple):
    """The offsets of a partition that are not replayed yet: `start` to `end`. With `is_first` the group has no
    offset.
    """

    topic: str
    partition: int
    start: int
    beginning: int
    end: int
    is_first: bool


def _stretches(cluster: Group, topic: str, group: str, replayed: Offsets) -> list[Stretch]:
    wanted = cluster.partitions(TopicSource({"topics": topic}))
    beginnings, ends = cluster.earliest(wanted), cluster.latest(wanted)
    # Without what a replay has open that was killed: the transaction ends that before it looks again.
    committed = cluster.committed(group, wanted)
    # An offset of an earlier topic of the name, on a cluster without topic ids, may be beyond the end of this one.
    known = {at: offset for at, offset in replayed.items() if offset <= ends.get(at, 0)} | committed
    return [Stretch(*at, known.get(at, beginnings[at]), beginnings[at], ends[at], at not in committed) for at in wanted]


def _chunks(consumer: Consumer, at: Stretch, size: int) -> Iterator[Chunk]:
    """The dead letters of a stretch."""
    start, end, is_first = at.start, at.end, at.is_first
    position = max(start, at.beginning)
    if position >= end:
        return
    consumer.assign([TopicPartition(at.topic, at.partition, position)])
    letters: list[DeadLetter] = []
    is_at_end = False
    give_up_at = time.monotonic() + _TIMEOUT_S
    while not is_at_end:
        # It waits for as many, although there may be no more of them.
        read = consumer.consume(min(size, 1000), timeout=_POLL_S)
        if read:
            give_up_at = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > give_up_at:
            raise ReplayError(f"cannot read {at.topic}-{at.partition}: no answer")
        for message in read:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset = message.offset()
            assert offset is not None
            if error is not None or offset >= end:
                # Up to here there are no more records that are committed.
                position, is_at_end = min(offset, end), True
                break
            letters.append(_letter(message, offset))
            position = offset + 1
            if len(letters) >= size:
                yield Chunk(at.topic, at.partition, start, position, is_first, letters)
                letters, start, is_first = [], position, False
        is_at_end = is_at_end or position >= end
    consumer.unassign()
    if position > start:
        yield Chunk(at.topic, at.partition, start, position, is_first, letters)


def _letter(message: Message, offset: int) -> DeadLetter:
    named: Any = message.headers() or ()
    headers = [(name, _bytes(value)) for name, value in named]
    return DeadLetter(offset, _bytes(message.key()), _bytes(message.value()), headers)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _records(chunk: Chunk, sorter: Sorter) -> list[Records]:
    """What goes back, in the order of the dead-letter topic."""
    by_topic: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in chunk.letters:
        origin = sorter.origin(letter, chunk.partition)
        if origin is not None:
            by_topic[origin.topic].append(letter)
    return [
        Records(
            topic,
            [letter.key for letter in letters],
            [letter.value for letter in letters],
            [without_errors(letter.headers) or None for letter in letters],
        )
        for topic, letters in by_topic.items()
    ]


def _write(
    pipeline: Pipeline, chunk: Chunk, records: list[Records], clients: Clients, group: str, topic_id: str
) -> None:
    transaction = OffsetTransaction(
        slot=TransactionalSlot(f"{group}:{chunk.topic}-{chunk.partition}", group, chunk.topic, chunk.partition),
        start=chunk.start,
        end=chunk.end,
        generation=0,
        batch=0,
        is_first=chunk.is_first,
        resets="another replay may be under way; look what is left by a replay without --execute",
    )
    try:
        outcome = transactions.write(transaction, records, clients)
    except SinkError as error:
        raise ReplayError(f"stopped at {chunk.topic}-{chunk.partition} offset {chunk.start}: {error}") from None
    if not outcome.is_new:
        raise ReplayError(f"another replay of {pipeline.name} is under way")
    write_position(pipeline.state_folder, (chunk.topic, chunk.partition), topic_id, chunk.end)


def _undecided(count: int) -> str:
    return (
        f"the sink may have other rows of {_records_of(count)}, and gets them again if the {_noun(count)} "
        f"{'goes' if count == 1 else 'go'} back: --partly-written send or --partly-written leave decides it"
    )


def _sentences(found: Found, topic: str, partly_written: PartlyWritten | None, *, is_done: bool) -> Iterator[str]:
    is_undecided = found.partly_written and partly_written is None
    if not found.again and not is_undecided:
        yield f"there is nothing in {topic} to replay"
    for target, count in sorted(found.again.items()):
        yield f"{_records_of(count)} {'went' if is_done else 'would go'} back to topic {target}"
    if is_undecided:
        yield _undecided(found.partly_written)
    elif found.partly_written and partly_written == "send":
        yield f"  the sink may have other rows of {_records_of(found.partly_written)} of these, and gets them again"
    if found.copies:
        yield f"{_records_of(found.copies)} of {topic} passed over: they are there twice"
    if found.of_others:
        yield f"{_records_of(found.of_others)} of {topic} passed over: other pipelines or connectors wrote them"
    for why, count in found.left_count.items():
        yield f"{_records_of(count)} {'stayed' if is_done else 'would stay'} in {topic}: they {why}"
        yield from (f"  {where}" for where in found.left[why])
        if count > len(found.left[why]):
            yield f"  and {count - len(found.left[why]):,} more"


def _records_of(count: int) -> str:
    return f"{count:,} {_noun(count)}"


def _noun(count: int) -> str:
    return "record" if count == 1 else "records"


def _reason(error: KafkaException) -> str:
    said = error.args[0] if error.args else error
    return said.str() if isinstance(said, KafkaError) else str(said)
