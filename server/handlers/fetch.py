"""Fetch 4-18: record batches from many partitions, closed, waiting a while when there are too few of them.

The answer comes when min_bytes are there, when a partition fails, diverges or is read up to the end of an older
segment, or when max_wait_ms are over. While nothing has been read yet, the first batch comes whole whatever the limits
say (KIP-74). Sessions: KIP-227. Topics by id from version 13 on (KIP-516). Leader epochs: KIP-320; a reader whose
history has parted from ours is told where (KIP-595). Read-committed fetches end at the last stable offset and name the
aborted transactions (KIP-98).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseEpochEndOffset,
    FetchResponseFetchableTopicResponse,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
)
from odradek.replication.partition import READ_COMMITTED, Partition
from odradek.server.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from odradek.server.purgatory import DelayedOperation

if TYPE_CHECKING:
    from odradek.server.request import RequestContext
    from odradek.server.services import Services

TOPIC_IDS_SINCE: Final = 13
CONSUMER: Final = -1
STORAGE_ERROR_SINCE: Final = 6
LEADER_NAMED_SINCE: Final = 16
REPLICA_STATE_SINCE: Final = 15
_INVALID_OFFSET: Final = -1
_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_NO_RECORDS: Final = b""

Row = tuple[FetchPartition, FetchResponsePartitionData]


def fetch(services: "Services", context: "RequestContext", request: FetchRequest) -> Any:
    """Read at once if there is enough to read, else wait for it."""
    return _Fetch(services, context, request).begin()


def fetch_error(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    """The error at the top (a session's errors are always there), or at every partition before version 7."""
    if version >= 7:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        responses=[
            FetchResponseFetchableTopicResponse(
                topic=topic.topic,
                partitions=[_failed_row(asked.partition, error, version) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


class _Fetch:
    """One Fetch request from its session to its answer."""

    __slots__ = (
        "context",
        "epoch",
        "has_failed",
        "isolation_level",
        "max_bytes",
        "min_bytes",
        "opens_session",
        "request",
        "services",
        "session",
        "targets",
        "version",
    )

    def __init__(self, services: "Services", context: "RequestContext", request: FetchRequest) -> None:
        self.services = services
        self.context = context
        self.request = request
        self.version = context.api_version
        self.isolation_level = request.isolation_level
        self.max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.session: FetchSession | None = None
        self.epoch = 0
        self.opens_session = False
        self.has_failed = False
        self.targets: list[tuple[FetchPartition, Partition | KafkaError]] = []

    def begin(self) -> Any:
        self.targets = [(asked, self._find(asked)) for asked in self._asked()]
        request = self.request
        replica_id = request.replica_id if self.version < REPLICA_STATE_SINCE else request.replica_state.replica_id
        if replica_id > CONSUMER:
            self._refuse_follower(replica_id)
        rows, is_enough = self._read()
        if is_enough or request.max_wait_ms <= 0:
            return self._respond(rows)
        partitions = [target for _, target in self.targets if isinstance(target, Partition)]
        operation = DelayedOperation(self._try_complete, self._timed_out)
        return operation.wait(self.services.reactor, request.max_wait_ms, partitions)

    def _try_complete(self) -> FetchResponse | None:
        rows, is_enough = self._read()
        return self._respond(rows) if is_enough else None

    def _timed_out(self) -> FetchResponse:
        return self._respond(self._read()[0])

    # -- what is asked ---------------------------------------------------------------------------------------------

    def _asked(self) -> Iterable[FetchPartition]:
        """The partitions to fetch: those named, or those of the session with the named ones changed."""
        request = self.request
        cache = self.services.fetch_sessions
        epoch = request.session_epoch
        asked = _partitions_of(request, self.version)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != INVALID_SESSION_ID:
                cache.remove(request.session_id)
            self.opens_session = epoch == INITIAL_EPOCH
            return asked.values()
        uses_ids = self.version >= TOPIC_IDS_SINCE
        session = cache.resume(request.session_id, epoch, uses_ids, self.services.monotonic_ms())
        session.update(asked, _forgotten(request, uses_ids))
        session.advance()
        if not session.partitions:
            cache.remove(session.id)
            return asked.values()
        self.session, self.epoch = session, session.epoch
        return list(session.partitions.values())

    def _find(self, asked: FetchPartition) -> Partition | KafkaError:
        replicas = self.services.replicas
        try:
            if self.version >= TOPIC_IDS_SINCE:
                return replicas.get_by_id(asked.topic_id, asked.index)
            return replicas.get(asked.topic, asked.index)
        except KafkaError as error:
            # Kept for as long as the request waits: without the frames, which would keep the request in turn.
            return error.with_traceback(None)

    def _refuse_follower(self, replica_id: int) -> None:
        """No other broker has a replica of anything yet: one that thinks so learns it at each partition."""
        for number, (asked, target) in enumerate(self.targets):
            if isinstance(target, Partition):
                has_epoch = asked.current_leader_epoch >= 0
                code = ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.targets[number] = asked, KafkaError(code, f"broker {replica_id} has no replica here")

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Row], bool]:
        """Read all partitions within the limits; and whether that suffices for an answer.

        A partition that does not exist does not hasten the answer: the client may be waiting for the others.
        """
        rows: list[Row] = []
        missing: list[Row] = []
        remaining_bytes = self.max_bytes
        read_bytes = 0
        is_urgent = False
        for asked, target in self.targets:
            error: KafkaError | None = None
            if isinstance(target, Partition):
                try:
                    row, size_bytes, is_all = self._read_one(asked, target, remaining_bytes, read_bytes == 0)
                except KafkaError as failure:
                    error = self._cause(asked, failure)
            else:
                error = target
            if error is not None:
                self.has_failed = True
                row, size_bytes, is_all = _failed_row(asked.index, error, self.version), 0, True
                if error is target and error.code in _MISSING:
                    missing.append((asked, row))
                    continue
            is_urgent = is_urgent or is_all
            read_bytes += size_bytes
            remaining_bytes = max(0, remaining_bytes - size_bytes)
            rows.append((asked, row))
        return rows + missing, is_urgent or not rows or read_bytes >= self.min_bytes

    def _cause(self, asked: FetchPartition, error: KafkaError) -> KafkaError:
        """A partition that was there when the request came may have been deleted since."""
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            found = self._find(asked)
            if isinstance(found, KafkaError) and found.code in _MISSING:
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return error

    def _read_one(
        self, asked: FetchPartition, partition: Partition, remaining_bytes: int, at_least_one: bool
    ) -> tuple[FetchResponsePartitionData, int, bool]:
        """A partition's row, the bytes in it, and whether there is no sense in waiting for more.

        That is so when the reader's history has parted from ours, and at the end of an older segment.
        """
        log = partition.leading_log(asked.current_leader_epoch)
        row = FetchResponsePartitionData(
            partition_index=asked.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            records=_NO_RECORDS,
        )
        if asked.last_fetched_epoch >= 0:
            diverging = partition.diverging_epoch(asked.last_fetched_epoch, asked.fetch_offset)
            if diverging is not None:
                row.diverging_epoch = FetchResponseEpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
                return row, 0, True
        region = partition.read(
            asked.fetch_offset,
            min(asked.max_bytes, remaining_bytes),
            isolation_level=self.isolation_level,
            at_least_one=at_least_one,
            current_leader_epoch=asked.current_leader_epoch,
        )
        if self.isolation_level == READ_COMMITTED:
            found = [] if region is None else partition.aborted_transactions(asked.fetch_offset, region)
            row.aborted_transactions = [
                FetchResponseAbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in found
            ]
        if region is None:
            return row, 0, False
        row.records = region
        return row, region.size_bytes, region.file is not log.active_segment.file

    # -- answering -------------------------------------------------------------------------------------------------

    def _respond(self, rows: list[Row]) -> FetchResponse:
        if self.session is not None:
            return self._respond_in_session(self.session, rows)
        return self._response(self._open_session(rows) if self.opens_session else INVALID_SESSION_ID, rows)

    def _open_session(self, rows: list[Row]) -> int:
        for asked, row in rows:
            asked.tell(row.high_watermark, row.log_start_offset, bool(row.error_code))
        uses_ids = self.version >= TOPIC_IDS_SINCE
        partitions: dict[PartitionKey, FetchPartition] = {
            (asked.topic_id if uses_ids else asked.topic, asked.index): asked for asked, _ in rows
        }
        session = self.services.fetch_sessions.create(partitions, uses_ids, self.services.monotonic_ms())
        return INVALID_SESSION_ID if session is None else session.id

    def _respond_in_session(self, session: FetchSession, rows: list[Row]) -> FetchResponse:
        """Only what is news. Partitions that gave records go to the end of the order, so that each gets its turn."""
        if session.epoch != self.epoch:
            # The same client went on with the session while this request waited: it does not know what it is told.
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id)
        uses_ids = self.version >= TOPIC_IDS_SINCE
        told: list[Row] = []
        for asked, row in rows:
            has_records = row.records is not _NO_RECORDS
            is_news = asked.tell(row.high_watermark, row.log_start_offset, bool(row.error_code))
            if is_news or has_records or row.diverging_epoch.epoch >= 0:
                told.append((asked, row))
            if has_records:
                session.partitions.move_to_end((asked.topic_id if uses_ids else asked.topic, asked.index))
        return self._response(session.id, told)

    def _response(self, session_id: int, rows: list[Row]) -> FetchResponse:
        topics: list[FetchResponseFetchableTopicResponse] = []
        last: FetchPartition | None = None
        for asked, row in rows:
            if last is None or asked.topic_id != last.topic_id or asked.topic != last.topic:
                topics.append(FetchResponseFetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id))
                last = asked
            topics[-1].partitions.append(row)
        response = FetchResponse(session_id=session_id, responses=topics)
        if self.has_failed and self.version >= LEADER_NAMED_SINCE:
            self._name_leaders(response, rows)
        return response

    def _name_leaders(self, response: FetchResponse, rows: list[Row]) -> None:
        """Tell who leads the partitions that are not led here any more (KIP-951)."""
        nodes: dict[int, FetchResponseNodeEndpoint] = {}
        for asked, row in rows:
            if row.error_code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                continue
            leader = self.services.current_leader(
                asked.topic, asked.topic_id, asked.index, self.context.listener_name
            )
            if leader is not None:
                row.current_leader = FetchResponseLeaderIdAndEpoch(
                    leader_id=leader.broker_id, leader_epoch=leader.leader_epoch
                )
                nodes[leader.broker_id] = FetchResponseNodeEndpoint(
                    node_id=leader.broker_id, host=leader.host, port=leader.port, rack=leader.rack
                )
        response.node_endpoints = list(nodes.values())


def _partitions_of(request: FetchRequest, version: int) -> dict[PartitionKey, FetchPartition]:
    """The partitions a request names; of one that is named twice, the last word counts."""
    found: dict[PartitionKey, FetchPartition] = {}
    uses_ids = version >= TOPIC_IDS_SINCE
    for topic in request.topics:
        name = topic.topic_id if uses_ids else topic.topic
        for asked in topic.partitions:
            partition = FetchPartition(topic.topic, topic.topic_id, asked.partition)
            partition.fetch_offset = asked.fetch_offset
            partition.max_bytes = asked.partition_max_bytes
            if asked.current_leader_epoch >= 0:
                partition.current_leader_epoch = asked.current_leader_epoch
            partition.last_fetched_epoch = asked.last_fetched_epoch
            partition.fetcher_log_start_offset = asked.log_start_offset
            found[name, asked.partition] = partition
    return found


def _forgotten(request: FetchRequest, uses_ids: bool) -> Iterable[PartitionKey]:
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            yield (topic.topic_id if uses_ids else topic.topic), index


def _failed_row(index: int, error: KafkaError, version: int) -> FetchResponsePartitionData:
    code = error.code
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_SINCE:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponsePartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=_INVALID_OFFSET,
        last_stable_offset=_INVALID_OFFSET,
        log_start_offset=_INVALID_OFFSET,
        aborted_transactions=None,
        records=_NO_RECORDS,
    )
