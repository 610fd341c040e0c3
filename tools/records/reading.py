"""Batches of records from partitions, or as a member of a group.

A reader returns what confluent-kafka has fetched in lists, because the cost of each record decides the throughput.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError
from odradek.tools.records.positions import Range

MOST_RECORDS: Final = 500
_FIRST_RECORDS: Final = 16
_BATCH_BYTES: Final = 8 << 20
_WAIT_S: Final = 0.05
"""A call returns after this time, or when it has the number of records asked for. It ignores Ctrl-C meanwhile."""
_GIVE_UP_S: Final = 30.0
_REPORT_S: Final = 2.0
_FOREVER: Final = sys.maxsize
_QUIET: Final[Mapping[str, Any]] = {
    "log_level": 0,
    "enable.auto.offset.store": False,
    # Enough for a response of each broker while records are written; a longer queue leaves the processor's cache.
    "queued.max.messages.kbytes": 16 << 10,
    "queued.min.messages": 1_000_000,
    "receive.message.max.bytes": 1 << 30,
    # The end of a partition is noticed when a request has waited for records in vain.
    "fetch.wait.max.ms": 100,
    # The queue is full most of the time; by default librdkafka waits a second before it looks again.
    "fetch.queue.backoff.ms": 1,
}

MakeConsumer = Callable[[dict[str, Any]], Consumer]


class Availability(NamedTuple):
    """The check of the cluster while no records arrive, and the report of its result.

    probe: sends a request on a new connection; raises NoResponseError
    warn: reports to a reader without an end that no broker answers
    """

    probe: Callable[[], object]
    warn: Callable[[str], object]


class Reader(Protocol):
    """Reads batches of records."""

    def read(self) -> Sequence[Message] | None:
        """Return the next records, possibly none; None at the end. Raises RequestError and NoResponseError."""
        ...

    def adapt(self, count: int, size_bytes: int) -> None:
        """Choose the size of batches by the last one: many small records, or few large ones."""
        ...

    def processed(self, messages: Sequence[Message]) -> None:
        """Remember that records were written."""
        ...

    def close(self) -> None:
        """Close the connections; commit."""
        ...


class _Fetching:
    """The client, the size of batches, and errors, for both readers."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        make_consumer: MakeConsumer,
        availability: Availability,
        *,
        is_endless: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._is_endless = is_endless
        self._monotonic = monotonic
        self._availability = availability
        self._count = _FIRST_RECORDS
        self._was_down = False
        self._is_reported = False
        self._idle_since: float | None = None
        self.consumer = make_consumer({**_QUIET, **settings, "error_cb": self._note_error})

    def fetch(self) -> list[Message]:
        try:
            messages = self.consumer.consume(self._count, _WAIT_S)
        except SystemError:
            # confluent-kafka loses a KeyboardInterrupt that Ctrl-C raises inside error_cb.
            raise KeyboardInterrupt from None
        if messages:
            self._idle_since = None
            self._is_reported = False
        elif self._was_down:
            self._check_availability()
        return messages

    def adapt(self, count: int, size_bytes: int) -> None:
        if count:
            fitting = _BATCH_BYTES // max(size_bytes // count, 1)
            self._count = max(1, min(fitting, MOST_RECORDS, self._count * 4))

    def find_outage(self) -> NoResponseError | None:
        """Return the error of the cluster if it was down and still does not answer."""
        if self._was_down or self._is_reported:
            try:
                self._availability.probe()
            except NoResponseError as error:
                return error
        return None

    def warn(self, message: str) -> None:
        self._availability.warn(message)

    def _check_availability(self) -> None:
        """Probe the cluster after a time without records. Raises NoResponseError unless the reader is endless."""
        now = self._monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since <= (_REPORT_S if self._is_endless else _GIVE_UP_S):
            return
        self._idle_since = None
        try:
            self._availability.probe()
        except NoResponseError as error:
            if not self._is_endless:
                raise
            if not self._is_reported:
                self._availability.warn(f"{error}; reading continues when a broker answers")
            self._is_reported = True
        else:
            self._is_reported = False
        if self._is_endless:
            self._was_down = False  # until librdkafka reports it again

    def _note_error(self, error: KafkaError) -> None:
        # Records that librdkafka has fetched may still be in its queue, and it may report an outage once only.
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._was_down = True


def _raise_error(error: KafkaError, message: Message) -> None:
    """Raise RequestError for an error in place of a record."""
    partition = message.partition()
    where = message.topic() or ""
    if where and partition is not None and partition >= 0:
        where = f"{where}-{partition}"
    name = error.name().lstrip("_")
    raise RequestError(name, f"{where}{': ' if where else ''}{name}: {error.str()}")


class PartitionReader:
    """Reads ranges of partitions; without an end with `is_endless`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        ranges: Mapping[tuple[str, int], Range],
        availability: Availability,
        *,
        is_endless: bool,
        monotonic: Callable[[], float] = time.monotonic,
        make_consumer: MakeConsumer = Consumer,
    ) -> None:
        own = {"group.id": "odradek", "enable.auto.commit": False, "enable.partition.eof": not is_endless}
        self._fetching = _Fetching(
            {**settings, **own, "auto.offset.reset": "earliest"},
            make_consumer,
            availability,
            is_endless=is_endless,
            monotonic=monotonic,
        )
        self._ends = {
            key: _FOREVER if is_endless else one.end for key, one in ranges.items() if is_endless or one.start < one.end
        }
        self._has_one = len(self._ends) == 1
        self._has_ended = False
        self._has_one_topic = len({topic for topic, _ in self._ends}) == 1
        self._open_partitions: set[int | None] = set()
        self._first_end = min(self._ends.values(), default=0)
        self.adapt = self._fetching.adapt
        self._fetching.consumer.assign([TopicPartition(*key, ranges[key].start) for key in self._ends])

    def read(self) -> Sequence[Message] | None:
        """Return the next records in the ranges."""
        if not self._ends:
            return None
        messages = self._fetching.fetch()
        if not messages:
            return messages
        return messages if self._are_inside(messages) else self._select(messages)

    def processed(self, messages: Sequence[Message]) -> None:
        """Do nothing: there is nothing to commit."""

    def close(self) -> None:
        """Close the connections."""
        self._fetching.consumer.close()

    def _are_inside(self, messages: Sequence[Message]) -> bool:
        """True if messages are records before all ends; false if they may not be."""
        # Passes in C are several times as fast as one in Python.
        if any(map(Message.error, messages)):
            return False
        last = messages[-1].offset() if self._has_one else max(map(Message.offset, messages))  # type: ignore[type-var]
        if last + 1 >= self._first_end:  # type: ignore[operator]
            return False
        # A partition that has ended may have been fetched before it was paused.
        return not self._has_ended or self._open_partitions.issuperset(map(Message.partition, messages))

    def _select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the records of a batch that are in the ranges; stop reading partitions that are at their end."""
        selected = []
        for message in messages:
            key = (message.topic() or "", message.partition() or 0)
            end = self._ends.get(key)
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._finish(key)
                elif end is not None:
                    _raise_error(error, message)
            elif end is not None:
                offset = message.offset() or 0
                if offset < end:
                    selected.append(message)
                if offset + 1 >= end:
                    self._finish(key)
        return selected

    def _finish(self, key: tuple[str, int]) -> None:
        if self._ends.pop(key, None) is not None:
            self._first_end = min(self._ends.values(), default=0)
            self._has_ended = True
            self._open_partitions = {partition for _, partition in self._ends} if self._has_one_topic else set()
            with contextlib.suppress(KafkaException):
                self._fetching.consumer.pause([TopicPartition(*key)])


class GroupReader:
    """Reads the partitions that a group assigns to this member; until their ends unless `is_endless`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        availability: Availability,
        *,
        is_endless: bool,
        commits: bool,
        monotonic: Callable[[], float] = time.monotonic,
        make_consumer: MakeConsumer = Consumer,
    ) -> None:
        own = {"enable.auto.commit": commits, "enable.partition.eof": True}
        self._fetching = _Fetching(
            {**settings, **own}, make_consumer, availability, is_endless=is_endless, monotonic=monotonic
        )
        self._is_endless = is_endless
        self._commits = commits
        self._unfinished: set[tuple[str, int]] | None = None
        # The last record before the end of a partition in the last batch, and the end.
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        self.adapt = self._fetching.adapt
        self._fetching.consumer.subscribe(
            list(topics), on_assign=self._add, on_revoke=self._remove, on_lost=self._remove
        )

    def read(self) -> Sequence[Message] | None:
        """Return the next records of the partitions that are assigned."""
        if self._unfinished is not None and not self._unfinished and not self._is_endless:
            return None
        messages = self._fetching.fetch()
        if not any(map(Message.error, messages)):
            return messages
        last: dict[tuple[str, int], int] = {}
        selected = []
        for message in messages:
            key = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is None:
                selected.append(message)
                last[key] = message.offset() or 0
            elif error.code() == KafkaError._PARTITION_EOF:
                self._end(key, last.get(key), message.offset() or 0)
            else:
                _raise_error(error, message)
        return selected

    def _end(self, key: tuple[str, int], last: int | None, end: int) -> None:
        """Handle the end of a partition, which may be after transaction markers and aborted records."""
        if self._unfinished is not None:
            self._unfinished.discard(key)
        if last is not None:
            self._ends[key] = last, end
        elif self._commits:
            self._store({key: end})

    def processed(self, messages: Sequence[Message]) -> None:
        """Commit the offsets after records, now and then and at the end."""
        ends, self._ends = self._ends, {}
        if not self._commits or not messages:
            return
        lasts = {(message.topic(), message.partition()): message.offset() for message in messages}
        positions = {
            (topic or "", partition or 0): (offset or 0) + 1 for (topic, partition), offset in lasts.items()
        }
        for key, (last, end) in ends.items():
            if positions.get(key) == last + 1:
                positions[key] = end
        self._store(positions)

    def _store(self, positions: Mapping[tuple[str, int], int]) -> None:
        # A partition may have been revoked since.
        with contextlib.suppress(KafkaException):
            self._fetching.consumer.store_offsets(
                offsets=[TopicPartition(*key, offset) for key, offset in positions.items()]
            )

    def close(self) -> None:
        """Commit and leave the group, unless no broker answers: librdkafka would wait for one."""
        outage = self._fetching.find_outage()
        if outage is None:
            self._fetching.consumer.close()
        elif self._commits:
            self._fetching.warn(f"{outage}; the last offsets may not be committed")

    def _add(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        added = {(one.topic, one.partition) for one in partitions}
        self._unfinished = added if self._unfinished is None else self._unfinished | added

    def _remove(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        if self._unfinished is not None:
            self._unfinished -= {(one.topic, one.partition) for one in partitions}
