"""Fetches as in Kafka's consumer: positions, fetch sessions (KIP-227), aborted transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from odradek.protocol.batches.compression import CompressionError
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
)
from odradek.protocol.records import (
    ControlType,
    InvalidRecordError,
    crc_is_valid,
    iter_batches,
    iter_records,
    parse_control_record,
    read_header,
)
from odradek.simulation.api import ConnectionLost
from odradek.simulation.clients.link import RETRIABLE, Link
from odradek.simulation.clients.producers.produce import NEVER_EXPECTED
from odradek.simulation.history import History, Isolation, Moment, Partition, Poll, ReadRecord, name_of

_NOWHERE: Final = -1
"""Position in a session that forces the partition into the next request."""
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class OutOfRange(Exception):  # noqa: N818 - an event, not a programming error
    """A position outside of the log."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(name_of(partition))
        self.partition = partition


class Fetcher:
    """Reads partitions from its positions. Polls between two calls of `assign` are one assignment."""

    def __init__(
        self,
        link: Link,
        history: History,
        random: Random,
        isolation: Isolation,
        group: str | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self.isolation = isolation
        self.positions: dict[Partition, int] = {}
        self.high_watermarks: dict[Partition, int] = {}
        self.epochs: dict[Partition, int] = {}
        """Leader epochs of the batches before the positions."""
        self._assignments = 0
        self._link = link
        self._history = history
        self._random = random
        self._group = group
        self._uses_sessions = random.random() < 0.6
        self._session_id = 0
        self._session_epoch = 0
        self._in_session: dict[Partition, int] = {}
        self._most_bytes = most_bytes or random.choice((1, 300, 3_000, 1_000_000))

    def assign(self, positions: dict[Partition, int]) -> None:
        """Set the partitions to read, with their positions."""
        # Counted here, because a group that was lost in a power loss restarts with the same generation.
        self._assignments += 1
        self.positions = dict(positions)
        self.high_watermarks = {}
        self.epochs = {}

    async def poll(self, max_wait_ms: int) -> list[tuple[Partition, ReadRecord]]:
        """Return the records of one fetch. Raises ConnectionLost and OutOfRange."""
        topic_ids = await self._link.topic_ids(list(dict.fromkeys(topic for topic, _ in self.positions)))
        request = self._request(topic_ids, max_wait_ms)
        try:
            # A connection may be established after a crash only; then the request goes to the broker's next process.
            await self._link.connection()
            started = self._history.moment()
            response = await self._link.request(request)
        except ConnectionLost:
            # The broker may not have received the request, so the session epoch is unknown.
            self._forget_session()
            raise
        if not self._keep_session(response):
            return []
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        epochs = {
            (topic.topic, row.partition): row.current_leader_epoch
            for topic in request.topics
            for row in topic.partitions
        }
        found: list[tuple[Partition, ReadRecord]] = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "?")
            for row in topic.partitions:
                self._note_end(started, (name, row.partition_index), row, epochs)
                found += self._take(started, (name, row.partition_index), row)
        return found

    def _request(self, topic_ids: dict[str, bytes], max_wait_ms: int) -> FetchRequest:
        wanted = list(self.positions)
        self._random.shuffle(wanted)
        is_incremental = self._session_id != 0
        if is_incremental:
            wanted = [one for one in wanted if self._in_session.get(one) != self.positions[one]]
            forgotten = [one for one in self._in_session if one not in self.positions]
        else:
            forgotten = []
        self._in_session = dict(self.positions)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._random.choice((0, 1, 1, 100)),
            max_bytes=self._random.choice((self._most_bytes, 2 * self._most_bytes, 1_000_000)),
            isolation_level=self.isolation.value,
            session_id=self._session_id,
            session_epoch=self._session_epoch if self._uses_sessions else -1,
            topics=self._topics(wanted, topic_ids),
            forgotten_topics_data=[
                FetchRequestForgottenTopic(topic=topic, topic_id=topic_ids[topic], partitions=[index])
                for topic, index in forgotten
                if topic in topic_ids
            ],
        )

    def _topics(self, wanted: Sequence[Partition], topic_ids: dict[str, bytes]) -> list[FetchRequestFetchTopic]:
        topics: dict[str, FetchRequestFetchTopic] = {}
        for topic, index in wanted:
            row = topics.setdefault(
                topic, FetchRequestFetchTopic(topic=topic, topic_id=topic_ids[topic], partitions=[])
            )
            row.partitions.append(
                FetchRequestFetchPartition(
                    partition=index,
                    fetch_offset=self.positions[topic, index],
                    partition_max_bytes=self._most_bytes,
                )
            )
        return list(topics.values())

    def _keep_session(self, response: Any) -> bool:
        """Update the session; return False if it has ended and the fetch has to be repeated."""
        if response.error_code in _SESSION_ERRORS:
            self._forget_session()
            return False
        if response.error_code != ErrorCode.NONE:
            self._history.note_odd(self._link.name, f"Fetch: {ErrorCode(response.error_code).name}")
        if self._uses_sessions and response.session_id:
            self._session_id = response.session_id
            self._session_epoch += 1
        else:
            self._forget_session()
        return True

    def _forget_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._in_session = {}

    def _take(self, started: Moment, partition: Partition, row: Any) -> Iterable[tuple[Partition, ReadRecord]]:
        """Return the records in the response for a partition, and advance its position."""
        start = self.positions.get(partition)
        if start is None:
            self._history.note_odd(self._link.name, f"Fetch returned {name_of(partition)}, which was not requested")
            return []
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._forget_session()
            if self._history.settings.is_cluster:
                # The log of a leader that has been replaced without its notice may end before the position. Kafka's
                # consumers reject metadata with an epoch older than that of the position (KIP-320).
                return []
            raise OutOfRange(partition)
        if row.error_code != ErrorCode.NONE:
            if row.error_code not in RETRIABLE or row.error_code in NEVER_EXPECTED:
                name = ErrorCode(row.error_code).name
                self._history.note_odd(self._link.name, f"Fetch of {name_of(partition)} at {start}: {name}")
            # Requested again even within a session, since the session may have skipped it.
            self._in_session[partition] = _NOWHERE
            return []
        self.high_watermarks[partition] = row.high_watermark
        try:
            records, position, epoch = self._read(row, start)
        except (InvalidRecordError, CompressionError) as error:
            self._history.note_odd(self._link.name, f"corrupt batch in {name_of(partition)} behind {start}: {error}")
            return []
        if position == start:
            return []
        self.positions[partition] = position
        self.epochs[partition] = epoch
        self._history.record_poll(
            Poll(
                self._link.name,
                started,
                partition,
                self.isolation,
                f"{self._link.name}/{self._assignments}",
                start,
                position,
                tuple(records),
                row.high_watermark,
                row.last_stable_offset,
                self._group,
            )
        )
        return [(partition, record) for record in records]

    def _note_end(self, started: Moment, partition: Partition, row: Any, epochs: Mapping[Partition, int]) -> None:
        """Record the end in a response, if the connection has stated the leader epoch in the request."""
        epoch = epochs.get(partition, -1)
        if row.error_code == ErrorCode.NONE and epoch >= 0:
            end = row.last_stable_offset if self.isolation is Isolation.READ_COMMITTED else row.high_watermark
            self._history.record_fetched_end(self._link.name, started, partition, self.isolation, end, epoch)

    def _read(self, row: Any, start: int) -> tuple[list[ReadRecord], int, int]:
        """Return the records for the application, the position after them, and the leader epoch of the last batch."""
        aborted = row.aborted_transactions or ()
        beginnings = sorted(((one.first_offset, one.producer_id) for one in aborted), reverse=True)
        hides = self.isolation is Isolation.READ_COMMITTED
        hidden: set[int] = set()
        records: list[ReadRecord] = []
        position, epoch = start, -1
        for batch in iter_batches(row.records or b""):
            if not crc_is_valid(batch):
                raise InvalidRecordError("wrong checksum")
            header = read_header(batch)
            if header.last_offset < position:
                continue
            while beginnings and beginnings[-1][0] <= header.last_offset:
                hidden.add(beginnings.pop()[1])
            if header.is_control:
                if any(parse_control_record(one).control_type is ControlType.ABORT for one in iter_records(batch)):
                    hidden.discard(header.producer_id)
            elif not (hides and header.is_transactional and header.producer_id in hidden):
                for one in iter_records(batch):
                    if one.offset >= position:
                        records.append(ReadRecord(one.offset, one.value, one.key, one.headers, one.timestamp))
            position, epoch = header.next_offset, header.partition_leader_epoch
        return records, position, epoch
