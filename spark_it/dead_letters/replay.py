"""The `replay-dlq` command, which sends dead letters back to their source topics after the cause was fixed.

A record is written with its key, value and original headers, and a new timestamp, to the partition of its key. Each
record is written once: the position in the dead-letter topic is the committed offset of group `<name>:replay`, part of
the transaction that writes the records, and is also stored by `replay_position`. Records that arrive during a replay
wait for the next one, so that a record that fails again is not replayed endlessly. If only one of several rows of a
record failed, a replay writes the others again; the user decides whether such records are replayed.
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
    RecordOrigin,
    find_origin,
    remove_error_headers,
)
from odradek.spark_it.dead_letters.replay_position import ReplayPositionError, read_position, write_position
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once import transactions
from odradek.spark_it.exactly_once.slots import OffsetTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, TopicRecords
from odradek.spark_it.interfaces.kafka_types import Header, Offsets
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.kafka.requests import ClusterRequests

RECORDS_PER_TRANSACTION = 10_000
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_EXAMPLES = 3


PartlyWritten = Literal["send", "leave"]
"""Treatment of records some of whose rows may be written already."""


class ReplayError(Exception):
    """Dead letters cannot be replayed; `str()` has the reason and the remedy."""


class DeadLetter(NamedTuple):
    """A record of the dead-letter topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]

    @property
    def connector_name(self) -> str | None:
        name = dict(self.headers).get(CONNECTOR_NAME)
        return None if name is None else name.decode("utf-8", "replace")

    @property
    def reason(self) -> str:
        """The reason of the failure."""
        return (dict(self.headers).get(EXCEPTION_MESSAGE) or b"").decode("utf-8", "replace")


@dataclass
class ReplayCounts:
    """Counts of a replay: `replayed` has the number of replayed records by topic, `skipped` that of others by reason.

    `skipped_examples` has some of the skipped records, by reason. `of_others` is the number of dead letters of other
    pipelines or connectors.
    """

    replayed: Counter[str] = field(default_factory=Counter)
    partly_written: int = 0
    of_others: int = 0
    duplicates: int = 0
    skipped_examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    skipped: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str, where: str) -> None:
        self.skipped[reason] += 1
        if len(self.skipped_examples[reason]) < _EXAMPLES:
            self.skipped_examples[reason].append(where)


class ReplaySelector:
    """Selection of the dead letters to replay. `partly_written` is None if the user did not specify it."""

    def __init__(self, pipeline: Pipeline, dead_letter_topic: str, partly_written: PartlyWritten | None) -> None:
        self._name = pipeline.name
        self._partly_written = partly_written
        self._topic = dead_letter_topic
        self._sources = [one for one in pipeline.sources.values() if isinstance(one, TopicSource)]
        self._seen: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.counts = ReplayCounts()

    def select_origin(self, letter: DeadLetter, partition: int) -> RecordOrigin | None:
        """Return the origin of a record that is to be replayed; None if the record is skipped. Both are counted."""
        if letter.connector_name != self._name:
            self.counts.of_others += 1
            return None
        origin = find_origin(letter.headers)
        where = f"{self._topic}-{partition} at offset {letter.offset}: {letter.reason}"
        if origin is None:
            self.counts.skip("were not read from a topic", where)
            return None
        readers = sum(_reads_topic(one, origin.topic) for one in self._sources)
        if not readers:
            self.counts.skip(f"were read from topic {origin.topic}, which the pipeline does not read", where)
            return None
        if LEFT_OUT in dict(letter.headers):
            self.counts.skip(
                "were too large for the dead-letter topic and lack key and value", f"{where}, from {origin}"
            )
            return None
        seen = self._seen[origin.topic, origin.partition]
        if origin.offset in seen:
            # A sink without transactions may have written the dead letter twice.
            self.counts.duplicates += 1
            return None
        seen.add(origin.offset)
        if PART_WRITTEN in dict(letter.headers) or readers > 1:
            self.counts.partly_written += 1
            if self._partly_written == "leave":
                self.counts.skip("have other rows, which the sink may contain", f"{where}, from {origin}")
            if self._partly_written != "send":
                return None
        self.counts.replayed[origin.topic] += 1
        return origin


def _reads_topic(source: TopicSource, topic: str) -> bool:
    if source.topics_regex is not None:
        return re.fullmatch(source.topics_regex, topic) is not None
    return topic in source.topics


def replay(
    pipeline: Pipeline,
    cluster: ClusterRequests,
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
        raise ReplayError(f"{key} is false, so dead letters have no headers with their origin")
    group = pipeline.replay_group
    topic_id = cluster.fetch_topic_ids([topic]).get(topic, "")
    try:
        ranges = _find_unreplayed_ranges(cluster, topic, group, read_position(pipeline.state_folder, topic, topic_id))
    except ReplayPositionError as error:
        raise ReplayError(str(error)) from None
    clients = _make_clients(pipeline)
    try:
        consumer = clients.make_consumer(group)
    except KafkaException as error:
        raise ReplayError(f"admin.override: {_describe_error(error)}") from None

    def process(choice: PartlyWritten | None, *, writes: bool) -> ReplayCounts:
        sorter = ReplaySelector(pipeline, topic, choice)
        for unreplayed in ranges:
            for chunk in _read_chunks(consumer, unreplayed, records_per_transaction):
                records = _select_records(chunk, sorter)
                if writes:
                    _write_chunk(pipeline, chunk, records, clients, group, topic_id)
        return sorter.counts

    try:
        if execute and partly_written is None and (count := process(None, writes=False).partly_written):
            raise ReplayError(f"nothing was written: {_describe_undecided(count)}")
        counts = process(partly_written, writes=execute)
    except KafkaException as error:
        raise ReplayError(f"cannot read {topic}: {_describe_error(error)}") from None
    finally:
        consumer.close()
    yield from _describe_counts(counts, topic, partly_written, is_done=execute)
    if not execute and (counts.replayed or counts.partly_written):
        yield "nothing was written; repeat with --execute to replay"


def _make_clients(pipeline: Pipeline) -> Clients:
    settings = pipeline.settings
    reading = {
        **settings.passed["admin.override."],
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "enable.auto.offset.store": "false",
    }
    servers = ",".join(settings.bootstrap_servers)
    return Clients(servers, settings.passed["producer.override."], reading, timeout_s=_TIMEOUT_S)


class ReplayChunk(NamedTuple):
    """Dead letters of a partition that are replayed in one transaction; offsets `start` to `end` of the topic.

    `is_first` is true if the group has no offset yet.
    """

    topic: str
    partition: int
    start: int
    end: int
    is_first: bool
    letters: list[DeadLetter]


class UnreplayedRange(NamedTuple):
    """The offsets of a partition that are not replayed yet: `start` to `end`. With `is_first` the group has no offset
    yet.
    """

    topic: str
    partition: int
    start: int
    beginning: int
    end: int
    is_first: bool


def _find_unreplayed_ranges(
    cluster: ClusterRequests, topic: str, group: str, replayed: Offsets
) -> list[UnreplayedRange]:
    partitions = cluster.list_partitions(TopicSource({"topics": topic}))
    beginnings, ends = cluster.fetch_earliest(partitions), cluster.fetch_latest(partitions)
    # A killed replay may have left a transaction open. This request does not wait for its offsets: the first
    # transaction of this replay fences it and reads the marker again.
    committed = cluster.fetch_committed(group, partitions)
    # On a cluster without topic ids the stored position may belong to an earlier topic of the same name.
    positions = {at: offset for at, offset in replayed.items() if offset <= ends.get(at, 0)} | committed
    return [
        UnreplayedRange(*at, positions.get(at, beginnings[at]), beginnings[at], ends[at], at not in committed)
        for at in partitions
    ]


def _read_chunks(consumer: Consumer, at: UnreplayedRange, size: int) -> Iterator[ReplayChunk]:
    """Read the dead letters of a range, in chunks of at most `size`."""
    start, end, is_first = at.start, at.end, at.is_first
    position = max(start, at.beginning)
    if position >= end:
        return
    consumer.assign([TopicPartition(at.topic, at.partition, position)])
    letters: list[DeadLetter] = []
    is_at_end = False
    give_up_at = time.monotonic() + _TIMEOUT_S
    while not is_at_end:
        # `consume` waits for this number of messages or the timeout, so the timeout is short.
        messages = consumer.consume(min(size, 1000), timeout=_POLL_S)
        if messages:
            give_up_at = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > give_up_at:
            raise ReplayError(f"cannot read {at.topic}-{at.partition}: no response")
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset = message.offset()
            assert offset is not None
            if error is not None or offset >= end:
                # The rest of the range has no committed records.
                position, is_at_end = min(offset, end), True
                break
            letters.append(_make_letter(message, offset))
            position = offset + 1
            if len(letters) >= size:
                yield ReplayChunk(at.topic, at.partition, start, position, is_first, letters)
                letters, start, is_first = [], position, False
        is_at_end = is_at_end or position >= end
    consumer.unassign()
    if position > start:
        yield ReplayChunk(at.topic, at.partition, start, position, is_first, letters)


def _make_letter(message: Message, offset: int) -> DeadLetter:
    named: Any = message.headers() or ()
    headers = [(name, _to_bytes(value)) for name, value in named]
    return DeadLetter(offset, _to_bytes(message.key()), _to_bytes(message.value()), headers)


def _to_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _select_records(chunk: ReplayChunk, sorter: ReplaySelector) -> list[TopicRecords]:
    """Return the records to replay, in the order of the dead-letter topic."""
    by_topic: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in chunk.letters:
        origin = sorter.select_origin(letter, chunk.partition)
        if origin is not None:
            by_topic[origin.topic].append(letter)
    return [
        TopicRecords(
            topic,
            [letter.key for letter in letters],
            [letter.value for letter in letters],
            [remove_error_headers(letter.headers) or None for letter in letters],
        )
        for topic, letters in by_topic.items()
    ]


def _write_chunk(
    pipeline: Pipeline, chunk: ReplayChunk, records: list[TopicRecords], clients: Clients, group: str, topic_id: str
) -> None:
    transaction = OffsetTransaction(
        slot=TransactionalSlot(f"{group}:{chunk.topic}-{chunk.partition}", group, chunk.topic, chunk.partition),
        start=chunk.start,
        end=chunk.end,
        generation=0,
        batch=0,
        is_first=chunk.is_first,
        resets="another replay may be running; run replay-dlq without --execute to see what is left",
    )
    try:
        outcome = transactions.write_transaction(transaction, records, clients)
    except SinkError as error:
        raise ReplayError(f"stopped at {chunk.topic}-{chunk.partition} offset {chunk.start}: {error}") from None
    if not outcome.is_new:
        raise ReplayError(f"another replay of {pipeline.name} is running")
    write_position(pipeline.state_folder, (chunk.topic, chunk.partition), topic_id, chunk.end)


def _describe_undecided(count: int) -> str:
    return (
        f"the sink may contain other rows of {_format_count(count)}, which a replay would write again: choose "
        "--partly-written send or --partly-written leave"
    )


def _describe_counts(
    counts: ReplayCounts, topic: str, partly_written: PartlyWritten | None, *, is_done: bool
) -> Iterator[str]:
    is_undecided = counts.partly_written and partly_written is None
    if not counts.replayed and not is_undecided:
        yield f"{topic} has no records to replay"
    for target, count in sorted(counts.replayed.items()):
        yield f"{_format_count(count)} {'sent' if is_done else 'would be sent'} back to topic {target}"
    if is_undecided:
        yield _describe_undecided(counts.partly_written)
    elif counts.partly_written and partly_written == "send":
        yield f"  of {_format_count(counts.partly_written)} of these the sink may contain other rows, now written again"
    if counts.duplicates:
        yield f"{_format_count(counts.duplicates)} of {topic} skipped: they are duplicates"
    if counts.of_others:
        yield f"{_format_count(counts.of_others)} of {topic} skipped: other pipelines or connectors wrote them"
    for reason, count in counts.skipped.items():
        yield f"{_format_count(count)} {'left' if is_done else 'would be left'} in {topic}: they {reason}"
        yield from (f"  {where}" for where in counts.skipped_examples[reason])
        if count > len(counts.skipped_examples[reason]):
            yield f"  and {count - len(counts.skipped_examples[reason]):,} more"


def _format_count(count: int) -> str:
    return f"{count:,} {_inflect_records(count)}"


def _inflect_records(count: int) -> str:
    return "record" if count == 1 else "records"


def _describe_error(error: KafkaException) -> str:
    kafka_error = error.args[0] if error.args else error
    return kafka_error.str() if isinstance(kafka_error, KafkaError) else str(kafka_error)
