"""Fetch 4-18: record batches of many partitions, served unchanged, after a wait if there are too few.

The response is sent when min_bytes are available, when a partition fails, diverges or is read up to the end of an older
segment, or after max_wait_ms. A fetch that waits tracks the available bytes of each partition, so that an append costs
the same for a fetch of many partitions as for one of a few. All partitions are read when the fetch begins and again
when it is answered; many partitions in slices. Sessions: KIP-227. Topics by id from version 13 on (KIP-516). Leader
epochs: KIP-320.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, overload

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
)
from odradek.protocol.schema import rows
from odradek.server.fetching.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    MAX_SESSION_PARTITIONS,
    NOT_TOLD,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from odradek.server.fetching.limited_read import NO_RECORDS, FetchTarget, LimitedRead, Row, available_bytes, failed_row
from odradek.server.fetching.purgatory import DelayedOperation
from odradek.server.handlers.leaders import find_leader

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.fetching.fetch_sessions import FetchSessionCache
    from odradek.server.fetching.purgatory import CompletionQueue
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.clock import Clock
    from odradek.server.work.slices import Slices

TOPIC_IDS_SINCE: Final = 13
ERROR_AT_TOP_SINCE: Final = 7
CONSUMER: Final = -1
LEADER_NAMED_SINCE: Final = 16
REPLICA_STATE_SINCE: Final = 15
ENDED_INPUT_WAIT_MS: Final = 1000
"""Longest wait of a client that has closed its side: it may still read the response."""
MOST_AT_ONCE: Final = 100
"""Partitions of a fetch that is read in one step, within 0.5 ms; those of a larger one are read in steps of so many."""

_FREED_AT_ONCE: Final = 1000
_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

Wanted = dict[PartitionKey, FetchPartition]
Reading = Generator[None, None, FetchResponse]
FirstReading = Generator[None, None, FetchResponse | None]
"""Returns None to wait for more."""


class FetchServices(Protocol):
    """The parts of a broker that Fetch needs."""

    completions: "CompletionQueue"
    config: "BrokerConfig"
    fetch_sessions: "FetchSessionCache"
    metadata: "ClusterMetadata"
    monotonic_ms: Callable[[], int]
    reactor: "Clock"
    replicas: "ReplicaManager"
    slices: "Slices"


def fetch(services: FetchServices, context: "RequestContext", request: FetchRequest) -> "Reply[FetchResponse]":
    """Read at once if enough is available, else wait."""
    return _Fetch(services, context, request).begin()


def fetch_error(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    """The error at the top (a session's errors are always there), or at every partition before version 7."""
    if version >= ERROR_AT_TOP_SINCE:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        responses=rows(
            lambda topic: FetchResponseFetchableTopicResponse(
                topic=topic.topic,
                partitions=rows(lambda asked: failed_row(asked.partition, error, version), topic.partitions),
            ),
            request.topics,
        )
    )


class _Fetch:
    """One Fetch request, from its session to its response.

    targets: the partitions that can be read; refused, reasons: the others, and for each an error that many share
    available_bytes: of all targets, while the fetch waits
    """

    __slots__ = (
        "available_bytes",
        "context",
        "epoch",
        "is_follower",
        "max_bytes",
        "min_bytes",
        "opens_session",
        "operation",
        "reasons",
        "refused",
        "request",
        "services",
        "session",
        "targets",
        "uses_ids",
        "version",
        "wanted",
    )

    def __init__(self, services: FetchServices, context: "RequestContext", request: FetchRequest) -> None:
        self.services = services
        self.context = context
        self.request = request
        self.version = context.api_version
        self.uses_ids = self.version >= TOPIC_IDS_SINCE
        self.max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.session: FetchSession | None = None
        self.epoch = 0
        self.opens_session = False
        self.operation: DelayedOperation[FetchResponse] | None = None
        self.targets: list[FetchTarget] = []
        self.refused: list[FetchPartition] = []
        self.reasons: list[KafkaError] = []
        self.available_bytes = 0

    def begin(self) -> "Reply[FetchResponse]":
        request = self.request
        self._resume()
        if _is_large(request):
            if self.session is not None:
                # It takes no other request until this one is applied.
                self.session.is_busy = True
            return self._begin_in_slices(self._decoded_steps())
        asked: Wanted = {}
        for topic in request.topics:
            _name(asked, topic, topic.partitions, self.uses_ids)
        if self.session is not None:
            cache = self.services.fetch_sessions
            cache.update(self.session, asked, ())
            for forgotten in request.forgotten_topics_data:
                cache.update(self.session, {}, _keys(forgotten, forgotten.partitions, self.uses_ids))
        wanted = self._resolve(asked)
        if len(wanted) > MOST_AT_ONCE:
            return self._begin_in_slices(self._first_steps(wanted))
        self._find(wanted.items())
        read = self._new_read()
        read.read(self.targets)
        self._add_refused(read, 0, len(self.refused))
        if self._is_enough(read) or request.max_wait_ms <= 0:
            return self._respond(read)
        operation = self._new_operation()
        for target in self.targets:
            operation.watch(target)
        self.available_bytes = read.read_bytes
        return self._wait(operation)

    # -- a fetch of many partitions --------------------------------------------------------------------------------

    def _begin_in_slices(self, steps: FirstReading) -> "Deferred[FetchResponse]":
        return self.services.slices.run(steps).addErrback(self._end_broken_session).addCallback(self._begun)

    def _begun(self, response: FetchResponse | None) -> "Reply[FetchResponse]":
        if response is not None:
            return response
        operation = self.operation
        assert operation is not None
        outcome = self._wait(operation)
        if operation.changed:
            operation.wake()
        return outcome

    def _decoded_steps(self) -> FirstReading:
        asked: Wanted = OrderedDict()
        named = 0
        for topic, partitions in _parts(self.request.topics):
            _name(asked, topic, partitions, self.uses_ids)
            named += 1 + len(partitions)
            if named >= MOST_AT_ONCE:
                yield
                named = 0
        if self.version >= ERROR_AT_TOP_SINCE:
            # Not needed for an error either: more memory than all that is kept while the fetch waits.
            topics, self.request.topics = self.request.topics, []
            yield from _free_steps(topic.partitions for topic in topics)
            yield from _free_steps([topics])
        if self.session is not None:
            yield from self._update_steps(self.session, asked)
            self.session.is_busy = False
        return (yield from self._first_steps(self._resolve(asked)))

    def _update_steps(self, session: FetchSession, asked: Wanted) -> Generator[None, None, None]:
        cache = self.services.fetch_sessions
        items = iter(asked.items())
        while some := dict(islice(items, MOST_AT_ONCE)):
            cache.update(session, some, ())
            yield
        forgotten = 0
        for topic, partitions in _parts(self.request.forgotten_topics_data):
            cache.update(session, {}, _keys(topic, partitions, self.uses_ids))
            forgotten += 1 + len(partitions)
            if forgotten >= MOST_AT_ONCE:
                yield
                forgotten = 0

    def _end_broken_session(self, failure: Failure) -> Failure:
        """End a session to which only a part of the request was applied."""
        session = self.session
        if session is not None and session.is_busy:
            self.services.fetch_sessions.remove(session.id)
        return failure

    def _first_steps(self, wanted: Wanted) -> FirstReading:
        """Read all partitions; return the response, or None to wait for more.

        Each partition is watched from before it is read on: nothing that happens to it until the end is missed.
        """
        operation = self._new_operation() if self.request.max_wait_ms > 0 else None
        read = self._new_read()
        items = iter(wanted.items()) if self._keeps_wanted() else _drain(wanted)
        try:
            # A session that goes on elsewhere changes after its epoch.
            while not self._is_superseded() and (some := list(islice(items, MOST_AT_ONCE))):
                found = self._find(some)
                if operation is not None:
                    for target in found:
                        operation.watch(target)
                read.read(found)
                yield
            yield from self._refuse_steps(read)
            if operation is not None and not self._is_superseded() and not self._is_enough(read):
                self.available_bytes = read.read_bytes
                return None
        except BaseException:
            if operation is not None:
                operation.drop()
            raise
        if operation is not None:
            operation.drop()
        return (yield from self._respond_steps(read))

    def _read_steps(self) -> Reading:
        """Read all partitions once more, and return the response."""
        read = self._new_read()
        for start in range(0, len(self.targets), MOST_AT_ONCE):
            read.read(self.targets[start : start + MOST_AT_ONCE])
            yield
        yield from self._refuse_steps(read)
        return (yield from self._respond_steps(read))

    def _refuse_steps(self, read: LimitedRead) -> Generator[None, None, None]:
        for start in range(0, len(self.refused), MOST_AT_ONCE):
            self._add_refused(read, start, start + MOST_AT_ONCE)
            yield

    def _respond_steps(self, read: LimitedRead) -> Reading:
        """As `_respond`. A session goes on at any step; what the client was not told after all is then news again."""
        rows, session = read.rows, self.session
        topics: list[FetchResponseFetchableTopicResponse] = []
        nodes: dict[int, FetchResponseNodeEndpoint] = {}
        for start in range(0, len(rows), MOST_AT_ONCE):
            some = rows[start : start + MOST_AT_ONCE]
            self._add_rows(topics, some, rows[start - 1][0] if start else None)
            if self._names_leaders(read):
                self._name_leaders(nodes, some)
            yield
        told = 0
        if session is not None or self.opens_session:
            while told < len(rows) and (session is None or session.epoch == self.epoch):
                self._tell(rows[told : told + MOST_AT_ONCE])
                told += MOST_AT_ONCE
                yield
        if session is None:
            session_id = self._create_session() if self.opens_session else INVALID_SESSION_ID
        elif session.epoch == self.epoch:
            session_id = session.id
        else:
            for asked, _ in rows[:told]:
                asked.high_watermark = NOT_TOLD
            return self._superseded(session)
        yield from _free_steps([rows, self.refused, self.reasons, self.targets])
        return FetchResponse(session_id=session_id, responses=topics, node_endpoints=list(nodes.values()))

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _new_operation(self) -> DelayedOperation[FetchResponse]:
        self.operation = DelayedOperation(self._try_complete, self._complete, self.services.completions)
        return self.operation

    def _wait(self, operation: DelayedOperation[FetchResponse]) -> "Deferred[FetchResponse]":
        """Wait for max_wait_ms; briefly once the client may be gone, because a waiting fetch may hold much memory."""
        max_wait_ms = self.request.max_wait_ms
        if self.context.has_input_ended:
            max_wait_ms = min(max_wait_ms, ENDED_INPUT_WAIT_MS)
        operation.let_hasten(self.services.reactor, ENDED_INPUT_WAIT_MS)
        return operation.begin(self.services.reactor, max_wait_ms)

    def _try_complete(self) -> "Reply[FetchResponse] | None":
        if len(self.targets) + len(self.refused) > 1:
            return self._complete() if self._has_enough() else None
        read = self._new_read()
        read.read(self.targets)
        self._add_refused(read, 0, len(self.refused))
        return self._respond(read) if self._is_enough(read) else None

    def _has_enough(self) -> bool:
        """Check the targets that have changed, up to `MOST_AT_ONCE` of them at a time."""
        operation = self.operation
        assert operation is not None
        changed: dict[FetchTarget, None] = operation.changed  # type: ignore[assignment] # a fetch watches targets
        isolation_level = self.request.isolation_level
        for _ in range(min(len(changed), MOST_AT_ONCE)):
            target, _ = changed.popitem()
            try:
                size_bytes, is_urgent = available_bytes(target, isolation_level)
            except KafkaError:
                return True
            self.available_bytes += size_bytes - target.available_bytes
            target.available_bytes = size_bytes
            if is_urgent or self.available_bytes >= self.min_bytes:
                return True
        if changed:
            operation.wake()
        return False

    def _complete(self) -> "Reply[FetchResponse]":
        """Return the response with the records available now, or a Deferred of it."""
        if len(self.targets) + len(self.refused) > MOST_AT_ONCE:
            return self.services.slices.run(self._read_steps())
        read = self._new_read()
        read.read(self.targets)
        self._add_refused(read, 0, len(self.refused))
        return self._respond(read)

    # -- what is asked ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find the session that the request continues; end the one that it names otherwise."""
        request = self.request
        cache = self.services.fetch_sessions
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != INVALID_SESSION_ID:
                cache.remove(request.session_id)
            self.opens_session = epoch == INITIAL_EPOCH
            return
        session = cache.resume(request.session_id, epoch, self.uses_ids, self.services.monotonic_ms())
        session.advance()
        self.session, self.epoch = session, session.epoch

    def _resolve(self, asked: Wanted) -> Wanted:
        """The partitions to fetch: those named, or those of the session, which has the named ones by now."""
        session = self.session
        if session is None:
            self.opens_session = self.opens_session and len(asked) <= MAX_SESSION_PARTITIONS
            if self.opens_session:
                self.wanted = asked
            return asked
        if not session.partitions:
            self.services.fetch_sessions.remove(session.id)
            self.session = None
            return asked
        return session.partitions

    def _keeps_wanted(self) -> bool:
        return self.session is not None or self.opens_session

    def _is_superseded(self) -> bool:
        return self.session is not None and self.session.epoch != self.epoch

    def _find(self, wanted: Iterable[tuple[PartitionKey, FetchPartition]]) -> list[FetchTarget]:
        """Find the replicas; return what is new in `targets`."""
        # The keys of a request are all ids or all names.
        replicas = self.services.replicas
        by_id, by_name = replicas.partitions_by_id, replicas.partitions
        partitions: dict[PartitionKey, Partition] = by_id if self.uses_ids else by_name  # type: ignore[assignment]
        request = self.request
        replica_id = request.replica_id if self.version < REPLICA_STATE_SINCE else request.replica_state.replica_id
        found = []
        for key, asked in wanted:
            partition = partitions.get(key)
            if partition is None or (replicas.deleted_topics and replicas.is_deleted(partition)):
                self._refuse(asked, self._why_missing(asked))
            elif replica_id > CONSUMER:
                # No other broker has a replica of any partition yet; a fetch that claims one is refused.
                has_epoch = asked.current_leader_epoch >= 0
                self._refuse(asked, ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                found.append(FetchTarget(asked, partition))
        self.targets += found
        return found

    def _refuse(self, asked: FetchPartition, code: ErrorCode) -> None:
        self.refused.append(asked)
        self.reasons.append(_shared_error(code))

    def _why_missing(self, asked: FetchPartition) -> ErrorCode:
        replicas = self.services.replicas
        try:
            if self.uses_ids:
                replicas.get_by_id(asked.topic_id, asked.index)
            else:
                replicas.get(asked.topic, asked.index)
        except KafkaError as error:
            return error.code
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # -- reading ---------------------------------------------------------------------------------------------------

    def _new_read(self) -> LimitedRead:
        names_all = self.session is None
        return LimitedRead(self.version, self.request.isolation_level, self.max_bytes, names_all, self._cause)

    def _add_refused(self, read: LimitedRead, start: int, end: int) -> None:
        """Add error rows. A missing partition does not end the wait: the client may be waiting for the others."""
        for asked, error in zip(self.refused[start:end], self.reasons[start:end], strict=True):
            read.refuse(asked, error, is_urgent=error.code not in _MISSING)

    def _is_enough(self, read: LimitedRead) -> bool:
        return read.is_urgent or not self.targets or read.read_bytes >= self.min_bytes

    def _cause(self, asked: FetchPartition, error: KafkaError) -> KafkaError:
        """Return the error for a failed read: the partition may have been deleted since the request arrived."""
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            replicas, index = self.services.replicas, asked.index
            if self.uses_ids:
                is_here = (asked.topic_id, index) in replicas.partitions_by_id
            else:
                is_here = (asked.topic, index) in replicas.partitions
            if not is_here and self._why_missing(asked) in _MISSING:
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return error

    # -- answering -------------------------------------------------------------------------------------------------

    def _respond(self, read: LimitedRead) -> FetchResponse:
        if self.session is not None:
            return self._respond_in_session(self.session, read)
        return self._response(self._open_session(read.rows) if self.opens_session else INVALID_SESSION_ID, read)

    def _open_session(self, rows: list[Row]) -> int:
        self._tell(rows)
        return self._create_session()

    def _create_session(self) -> int:
        session = self.services.fetch_sessions.create(self.wanted, self.uses_ids, self.services.monotonic_ms())
        return INVALID_SESSION_ID if session is None else session.id

    def _respond_in_session(self, session: FetchSession, read: LimitedRead) -> FetchResponse:
        """Only what is news."""
        if session.epoch != self.epoch:
            return self._superseded(session)
        self._tell(read.rows)
        return self._response(session.id, read)

    @staticmethod
    def _superseded(session: FetchSession) -> FetchResponse:
        """Refuse: the client continued the session with another request while this one waited."""
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id)

    def _tell(self, rows: list[Row]) -> None:
        """Record the values sent to the client. Partitions with records move to the end of the order."""
        session = self.session
        for asked, row in rows:
            asked.tell(row.high_watermark, row.log_start_offset, bool(row.error_code))
            if session is not None and row.records is not NO_RECORDS:
                session.partitions.move_to_end((asked.topic_id if self.uses_ids else asked.topic, asked.index))

    def _response(self, session_id: int, read: LimitedRead) -> FetchResponse:
        response = FetchResponse(session_id=session_id, responses=[])
        self._add_rows(response.responses, read.rows, None)
        if self._names_leaders(read):
            nodes: dict[int, FetchResponseNodeEndpoint] = {}
            self._name_leaders(nodes, read.rows)
            response.node_endpoints = list(nodes.values())
        return response

    @staticmethod
    def _add_rows(
        topics: list[FetchResponseFetchableTopicResponse], rows: list[Row], last: FetchPartition | None
    ) -> None:
        """Add rows to those of their topics; `last` is the partition of the row before them."""
        for asked, row in rows:
            if last is None or asked.topic_id != last.topic_id or asked.topic != last.topic:
                topics.append(FetchResponseFetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id))
                last = asked
            topics[-1].partitions.append(row)

    def _names_leaders(self, read: LimitedRead) -> bool:
        return read.has_failed and self.version >= LEADER_NAMED_SINCE

    def _name_leaders(self, nodes: dict[int, FetchResponseNodeEndpoint], rows: list[Row]) -> None:
        """Name the leaders of the partitions that are no longer led here (KIP-951)."""
        for asked, row in rows:
            if row.error_code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                continue
            leader = find_leader(
                self.services.metadata, asked.topic, asked.topic_id, asked.index, self.context.listener_name
            )
            if leader is not None:
                row.current_leader = FetchResponseLeaderIdAndEpoch(
                    leader_id=leader.broker_id, leader_epoch=leader.leader_epoch
                )
                nodes[leader.broker_id] = FetchResponseNodeEndpoint(
                    node_id=leader.broker_id, host=leader.host, port=leader.port, rack=leader.rack
                )


class _Freeable(Protocol):
    """A list of anything."""

    def __len__(self) -> int: ...

    def __delitem__(self, index: slice, /) -> None: ...


@cache
def _shared_error(code: ErrorCode) -> KafkaError:
    """The same for all partitions: a request keeps one for each of them while it waits."""
    return KafkaError(code)


def _is_large(request: FetchRequest) -> bool:
    topics, forgotten = request.topics, request.forgotten_topics_data
    if len(topics) == 1 and not forgotten:
        return len(topics[0].partitions) > MOST_AT_ONCE
    if len(topics) + len(forgotten) > MOST_AT_ONCE:
        return True
    count = sum([len(topic.partitions) for topic in topics]) + sum([len(topic.partitions) for topic in forgotten])
    return count > MOST_AT_ONCE


def _drain(wanted: Wanted) -> Iterator[tuple[PartitionKey, FetchPartition]]:
    """Take out the items: what is large takes long to be freed, too."""
    assert isinstance(wanted, OrderedDict)
    while wanted:
        yield wanted.popitem(last=False)


def _free_steps(done: Iterable[_Freeable]) -> Generator[None, None, None]:
    """Empty lists that are not needed any more. To free much at once takes long."""
    count = 0
    for items in done:
        count += 1
        while items or count >= _FREED_AT_ONCE:
            count += len(items)
            del items[-_FREED_AT_ONCE:]
            if count >= _FREED_AT_ONCE:
                yield
                count = 0


@overload
def _parts(
    topics: Iterable[FetchRequestFetchTopic],
) -> Iterator[tuple[FetchRequestFetchTopic, list[FetchRequestFetchPartition]]]: ...


@overload
def _parts(
    topics: Iterable[FetchRequestForgottenTopic],
) -> Iterator[tuple[FetchRequestForgottenTopic, list[int]]]: ...


def _parts(topics: Iterable[FetchRequestFetchTopic | FetchRequestForgottenTopic]) -> Iterator[tuple[object, object]]:
    """Each topic with a few of its partitions at a time. One without any comes once: it takes time, too."""
    for topic in topics:
        partitions = topic.partitions
        for start in range(0, len(partitions) or 1, MOST_AT_ONCE):
            yield topic, partitions[start : start + MOST_AT_ONCE]


def _name(
    asked: Wanted, topic: FetchRequestFetchTopic, partitions: list[FetchRequestFetchPartition], uses_ids: bool
) -> None:
    """Add the partitions a request names; of one that is named twice, the last word counts."""
    name = topic.topic_id if uses_ids else topic.topic
    for data in partitions:
        partition = FetchPartition(topic.topic, topic.topic_id, data.partition)
        partition.fetch_offset = data.fetch_offset
        partition.max_bytes = data.partition_max_bytes
        if data.current_leader_epoch >= 0:
            partition.current_leader_epoch = data.current_leader_epoch
        partition.last_fetched_epoch = data.last_fetched_epoch
        partition.fetcher_log_start_offset = data.log_start_offset
        asked[name, data.partition] = partition


def _keys(topic: FetchRequestForgottenTopic, partitions: Iterable[int], uses_ids: bool) -> list[PartitionKey]:
    return [((topic.topic_id if uses_ids else topic.topic), index) for index in partitions]
