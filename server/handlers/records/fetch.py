"""Fetch 4-18: record batches of many partitions, served unchanged; waits until enough bytes are available.

The response is sent when min_bytes are available or after max_wait_ms. It is sent earlier if a partition has an error
(other than that it does not exist) or diverges, if its records come from a segment that is not the active one, or if
its records do not fit into the response. A fetch that waits keeps a count of available bytes for each partition, so
that an append costs the same for a fetch of many partitions as for one of a few. All partitions are read when the fetch
begins, and again when it completes; many partitions are read in slices. Sessions: KIP-227. Topics by id from version 13
on (KIP-516). Leader epochs: KIP-320.

A follower reads up to the log end, and the first read of its fetch records its progress. In its session only partitions
that may have changed are read. As in Kafka, a high watermark that moves does not end its wait, but is in the next
response. From version 11 on consumers may fetch from followers (KIP-392).
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponseNodeEndpoint,
)
from odradek.protocol.schema import rows
from odradek.replication.replicas.leader_state import NEVER
from odradek.server.fetching.limited_read import (
    NO_RECORDS,
    FetchRow,
    FetchTarget,
    LimitedRead,
    make_error_row,
    measure_available,
)
from odradek.server.fetching.purgatory import DelayedOperation
from odradek.server.fetching.read_rights import ReadRights
from odradek.server.fetching.reader import find_reader
from odradek.server.fetching.requested_partitions import (
    PARTITIONS_PER_STEP,
    FetchPartitions,
    add_requested,
    drain_items,
    free_in_steps,
    is_large_request,
    list_keys,
    split_topics,
)
from odradek.server.fetching.response_rows import (
    MISSING,
    add_rows,
    estimate_bytes,
    find_cause,
    find_missing_error,
    get_shared_error,
    name_leaders,
)
from odradek.server.fetching.session_cache import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    MAX_SESSION_PARTITIONS,
    NOT_SENT,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from odradek.server.fetching.session_watch import SessionWatch
from odradek.server.handlers.records.leaders import find_leader

if TYPE_CHECKING:
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.fetching.cold_reads import ColdReads
    from odradek.server.fetching.readers import Readers
    from odradek.server.fetching.session_cache import FetchSessionCache
    from odradek.server.quotas.charge import RequestCharge
    from odradek.server.request import Reply, RequestContext
    from odradek.server.security.authorization.rights import Rights
    from odradek.server.work.clock import Clock
    from odradek.server.work.slices import Slices
    from odradek.server.work.waits import RetryQueue

TOPIC_IDS_SINCE: Final = 13
ERROR_AT_TOP_SINCE: Final = 7
LEADER_NAMED_SINCE: Final = 16
ENDED_INPUT_WAIT_MS: Final = 1000
"""Maximum wait of a fetch whose client has closed its side of the connection, but may still read the response."""
FOLLOWER_PARTITIONS_PER_STEP: Final = 25
"""Maximum number of partitions in a step of a follower's first read, which takes up to 0.5 ms too: its progress may
complete a produce request for each partition."""

_FEW_PARTITIONS: Final = 4
"""Number of unsettled partitions up to which a retry of a follower's fetch reads them without a measurement before."""

_NOT_URGENT: Final = (*MISSING, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Errors of partitions that do not end the wait for others."""

ReadSteps = Generator[None, None, FetchResponse]
FirstReadSteps = Generator[None, None, FetchResponse | None]
"""Steps that return the response, or None if the fetch has to wait."""


class FetchServices(Protocol):
    """The parts of a broker that Fetch needs."""

    cold_reads: "ColdReads"
    completions: "RetryQueue"
    config: "BrokerConfig"
    fetch_sessions: "FetchSessionCache"
    follower_completions: "RetryQueue"
    metadata: "ClusterMetadata"
    monotonic_ms: Callable[[], int]
    reactor: "Clock"
    readers: "Readers | None"
    replicas: "ReplicaManager"
    slices: "Slices"


def fetch(services: FetchServices, context: "RequestContext", request: FetchRequest) -> "Reply[FetchResponse]":
    """Return the records of the requested partitions, now or when enough bytes are available.

    Errors of a partition are in its row. Raises KafkaError for an error of the fetch session.
    """
    return _Fetch(services, context, request).begin()


def fetch_error(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    """Return `error` once for the whole request; before version 7, in the row of every partition."""
    if version >= ERROR_AT_TOP_SINCE:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        responses=rows(
            lambda topic: FetchResponseFetchableTopicResponse(
                topic=topic.topic,
                partitions=rows(lambda data: make_error_row(data.partition, error, version), topic.partitions),
            ),
            request.topics,
        )
    )


class _Fetch:
    """One Fetch request, from its session to its response.

    targets: the partitions that can be read
    refused, reasons: the other partitions, and the error of each
    available_bytes: the total of all targets, while the fetch waits
    is_refused: a follower without the right to replicate; no partition is read
    read_rights: the topics that a consumer may read; None without authorization
    watch: of the session that a follower continues; then `targets` and `refused` are those that are not settled
    """

    __slots__ = (
        "available_bytes", "context", "epoch", "fetched_ms", "is_refused", "max_bytes", "min_bytes", "opens_session",
        "operation", "read_rights", "reader", "reasons", "refused", "request", "services", "session", "targets",
        "uses_ids", "version", "wanted", "watch",
    )  # fmt: skip

    def __init__(self, services: FetchServices, context: "RequestContext", request: FetchRequest) -> None:
        self.services = services
        self.context = context
        self.request = request
        self.version = context.api_version
        self.uses_ids = self.version >= TOPIC_IDS_SINCE
        self.max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.reader = find_reader(request, self.version, services.config, context.listener_name)
        context.is_follower = self.reader.follower >= 0
        charge = context.charge
        if charge is not None:
            self._limit(charge)
        self.session: FetchSession | None = None
        self.watch: SessionWatch | None = None
        self.epoch = 0
        self.opens_session = False
        self.operation: DelayedOperation[FetchResponse] | None = None
        self.targets: list[FetchTarget] = []
        self.refused: list[FetchPartition] = []
        self.reasons: list[KafkaError] = []
        self.available_bytes = 0
        self.fetched_ms = NEVER
        self.is_refused = False
        self.read_rights: ReadRights | None = None

    def begin(self) -> "Reply[FetchResponse]":
        request = self.request
        self._resume()
        if self.context.rights is not None:
            self._authorize(self.context.rights)
        if is_large_request(request, self._partitions_per_step):
            if self.session is not None:
                # The session accepts no other request until this one is applied.
                self.session.is_busy = True
            return self._run_in_slices(self._begin_in_steps())
        requested: FetchPartitions = {}
        for topic in request.topics:
            add_requested(requested, topic, topic.partitions, self.uses_ids)
        if self.session is not None:
            if self.session.watch is not None and len(requested) == 1 and not self.is_refused:
                waiting = self._begin_caught_up(self.session, self.session.watch, requested)
                if waiting is not None:
                    return waiting
            cache = self.services.fetch_sessions
            cache.update(self.session, requested, ())
            for forgotten in request.forgotten_topics_data:
                cache.update(self.session, {}, list_keys(forgotten, forgotten.partitions, self.uses_ids))
        wanted = self._select_partitions(requested)
        if len(wanted) > self._partitions_per_step:
            return self._run_in_slices(self._read_first(wanted))
        self._find_targets(wanted.items())
        may_wait = request.max_wait_ms > 0
        if self.reader.follower >= 0 and may_wait:
            # Before the read: the progress that it records completes requests, and that may cause appends.
            self._watch(self._make_operation(), self.targets)
        read = self._make_first_read()
        try:
            self._read(read, self.targets)
        except BaseException:
            self._end_watches()
            raise
        self._add_refused(read, 0, len(self.refused))
        if not may_wait or self._has_read_enough(read):
            self._end_watches()
            return self._respond(read)
        if self.operation is None:
            self._watch(self._make_operation(), self.targets)
        self.available_bytes = read.read_bytes
        return self._wait()

    def _begin_caught_up(
        self, session: FetchSession, watch: SessionWatch, requested: FetchPartitions
    ) -> "Deferred[FetchResponse] | None":
        """Begin the fetch of a follower that has all records, and wait for the next append.

        Between two produce requests with acks=all that is nearly every fetch. None if the fetch may read another
        partition, or not wait; then `begin` continues as for any other.
        """
        if self.request.forgotten_topics_data or self.request.max_wait_ms <= 0 or self.min_bytes <= 0:
            return None
        target, monotonic_ms = None, self.services.monotonic_ms()
        if not self.services.replicas.deleted_topics:
            target = watch.find_caught_up(requested, self.reader.follower, monotonic_ms)
        if target is None:
            return None
        session.update(requested, ())
        self.watch = watch
        operation = self._make_operation()
        try:
            watch.record_progress(target, self.reader.broker_epoch, monotonic_ms)
        except BaseException as error:
            operation.drop()
            if isinstance(error, KafkaError):
                # The read of `begin` raises the same error, and makes a row of it.
                return None
            raise
        watch.settle((target,))
        return self._wait()

    @property
    def _partitions_per_step(self) -> int:
        """The number of partitions in one step of the first read."""
        if self.reader.follower < 0:
            return PARTITIONS_PER_STEP
        return min(FOLLOWER_PARTITIONS_PER_STEP, PARTITIONS_PER_STEP)

    # -- a fetch of many partitions --------------------------------------------------------------------------------

    def _run_in_slices(self, steps: FirstReadSteps) -> "Deferred[FetchResponse]":
        return self.services.slices.run(steps).addErrback(self._end_broken_session).addCallback(self._wait_or_respond)

    def _wait_or_respond(self, response: FetchResponse | None) -> "Reply[FetchResponse]":
        if response is not None:
            return response
        return self._wait()

    def _begin_in_steps(self) -> FirstReadSteps:
        requested: FetchPartitions = OrderedDict()
        count = 0
        for topic, partitions in split_topics(self.request.topics):
            add_requested(requested, topic, partitions, self.uses_ids)
            count += 1 + len(partitions)
            if count >= PARTITIONS_PER_STEP:
                yield
                count = 0
        if self.version >= ERROR_AT_TOP_SINCE:
            # Free the topics, which occupy more memory than the fetch that waits. Error responses do not contain them.
            topics, self.request.topics = self.request.topics, []
            yield from free_in_steps(topic.partitions for topic in topics)
            yield from free_in_steps([topics])
        if self.session is not None:
            yield from self._update_session(self.session, requested)
            self.session.is_busy = False
        return (yield from self._read_first(self._select_partitions(requested)))

    def _update_session(self, session: FetchSession, requested: FetchPartitions) -> Generator[None, None, None]:
        cache = self.services.fetch_sessions
        items = iter(requested.items())
        while some := dict(islice(items, PARTITIONS_PER_STEP)):
            cache.update(session, some, ())
            yield
        forgotten = 0
        for topic, partitions in split_topics(self.request.forgotten_topics_data):
            cache.update(session, {}, list_keys(topic, partitions, self.uses_ids))
            forgotten += 1 + len(partitions)
            if forgotten >= PARTITIONS_PER_STEP:
                yield
                forgotten = 0

    def _end_broken_session(self, failure: Failure) -> Failure:
        """Remove the session if only a part of the request was applied to it."""
        session = self.session
        if session is not None and session.is_busy:
            self.services.fetch_sessions.remove(session.id)
        return failure

    def _read_first(self, wanted: "Mapping[PartitionKey, FetchPartition]") -> FirstReadSteps:
        """Read all partitions; return the response, or None if the fetch has to wait.

        Each partition is watched before it is read, so that no change after its read is missed.
        """
        operation = self._make_operation() if self.request.max_wait_ms > 0 else None
        read = self._make_first_read()
        items = iter(wanted.items()) if self._keeps_wanted() else drain_items(wanted)
        try:
            # Stop before another request changes the session's partitions: it advances the epoch first.
            while not self._is_superseded() and (some := list(islice(items, self._partitions_per_step))):
                found = self._find_targets(some)
                if operation is not None:
                    self._watch(operation, found)
                self._read(read, found)
                yield
            yield from self._refuse_in_steps(read)
            if operation is not None and not self._is_superseded() and not self._has_read_enough(read):
                self.available_bytes = read.read_bytes
                return None
        except BaseException:
            self._end_watches()
            raise
        self._end_watches()
        return (yield from self._respond_in_steps(read))

    def _read_again(self, *, may_wait: bool) -> ReadSteps:
        """Read all partitions once more, and return the response."""
        read = self._make_read(may_wait=may_wait)
        if self.watch is not None:
            yield from self._read_unsettled(read)
            yield from self._refuse_in_steps(read)
            return (yield from self._respond_in_steps(read))
        for start in range(0, len(self.targets), PARTITIONS_PER_STEP):
            read.read(self.targets[start : start + PARTITIONS_PER_STEP])
            yield
        yield from self._refuse_in_steps(read)
        return (yield from self._respond_in_steps(read))

    def _read_unsettled(self, read: LimitedRead) -> Generator[None, None, None]:
        """Read the partitions of a follower's session that are not settled."""
        items = iter(self._forget_targets().items())
        while not self._is_superseded() and (some := list(islice(items, PARTITIONS_PER_STEP))):
            self._read(read, self._find_targets(some))
            yield

    def _forget_targets(self) -> "Mapping[PartitionKey, FetchPartition]":
        """Return the partitions of a follower's session to read now, in place of those of the first read."""
        assert self.session is not None
        assert self.watch is not None
        self.targets, self.refused, self.reasons = [], [], []
        return self.watch.select_unsettled(self.session.partitions)

    def _refuse_in_steps(self, read: LimitedRead) -> Generator[None, None, None]:
        for start in range(0, len(self.refused), PARTITIONS_PER_STEP):
            self._add_refused(read, start, start + PARTITIONS_PER_STEP)
            yield

    def _respond_in_steps(self, read: LimitedRead) -> ReadSteps:
        """Make the response in steps, like `_respond`.

        Another request may continue the session between two steps. This response then becomes an error, and the rows
        that were already recorded as sent are reset to NOT_SENT.
        """
        throttled = self._throttle(read)
        if throttled is not None:
            return throttled
        rows, session = read.rows, self.session
        topics: list[FetchResponseFetchableTopicResponse] = []
        nodes: dict[int, FetchResponseNodeEndpoint] = {}
        for start in range(0, len(rows), PARTITIONS_PER_STEP):
            some = rows[start : start + PARTITIONS_PER_STEP]
            add_rows(topics, some, rows[start - 1][0] if start else None)
            if self._may_name_leaders(read):
                name_leaders(nodes, some, self._find_leader)
            yield
        recorded = 0
        if session is not None or self.opens_session:
            while recorded < len(rows) and (session is None or session.epoch == self.epoch):
                self._record_sent(rows[recorded : recorded + PARTITIONS_PER_STEP])
                recorded += PARTITIONS_PER_STEP
                yield
        if session is None:
            session_id = self._create_session() if self.opens_session else INVALID_SESSION_ID
        elif session.epoch == self.epoch:
            session_id = session.id
        else:
            for requested, _ in rows[:recorded]:
                requested.high_watermark = NOT_SENT
            return self._refuse_superseded(session)
        self._count_sent(read)
        yield from free_in_steps([rows, self.refused, self.reasons, self.targets])
        return FetchResponse(session_id=session_id, responses=topics, node_endpoints=list(nodes.values()))

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _make_operation(self) -> DelayedOperation[FetchResponse]:
        services, watch = self.services, self.watch
        queue = services.completions if watch is None else services.follower_completions
        operation = self.operation = DelayedOperation(self._try_complete, self._expire, queue)
        if watch is not None:
            watch.operation = operation
        return operation

    def _watch(self, operation: DelayedOperation[FetchResponse], targets: Iterable[FetchTarget]) -> None:
        """Watch targets while the fetch waits. Those of a follower's session are watched always."""
        if self.watch is None:
            log_end = self.reader.isolation_level is None
            for target in targets:
                operation.watch(target, log_end=log_end)

    def _end_watches(self) -> None:
        """Watch no partition any more, because the fetch does not wait."""
        if self.operation is not None:
            self.operation.drop()

    def _wait(self) -> "Deferred[FetchResponse]":
        """Wait for max_wait_ms, or for at most ENDED_INPUT_WAIT_MS if the client has closed its side of the connection.

        A waiting fetch may hold much memory. Watched partitions may have changed before the wait begins.
        """
        operation = self.operation
        assert operation is not None
        max_wait_ms = self.request.max_wait_ms
        if self.context.has_input_ended:
            max_wait_ms = min(max_wait_ms, ENDED_INPUT_WAIT_MS)
        operation.allow_shortening(self.services.reactor, ENDED_INPUT_WAIT_MS)
        waiting = operation.begin(self.services.reactor, max_wait_ms)
        if operation.changed:
            operation.wake()
        return waiting

    def _try_complete(self) -> "Reply[FetchResponse] | None":
        if self._is_superseded():
            return self._complete(may_wait=False)
        if not self._find_few_targets():
            return self._complete(may_wait=False) if self._has_enough_available() else None
        read = self._make_read()
        self._read(read, self.targets)
        self._add_refused(read, 0, len(self.refused))
        if self._has_read_enough(read):
            return self._respond(read)
        self.available_bytes = read.read_bytes
        return None

    def _find_few_targets(self) -> bool:
        """Return whether reading all partitions takes about as long as measuring those that have changed.

        In a follower's session these are its unsettled partitions, unless one of them does not exist any more.
        """
        watch = self.watch
        if watch is None:
            return len(self.targets) + len(self.refused) <= 1
        if len(watch.unsettled) > _FEW_PARTITIONS:
            return False
        self._find_targets(self._forget_targets().items())
        if self.refused:
            return False
        assert self.operation is not None
        self.operation.changed.clear()
        return True

    def _has_enough_available(self) -> bool:
        """Check the targets that have changed, up to `PARTITIONS_PER_STEP` of them at a time."""
        operation = self.operation
        assert operation is not None
        changed: dict[FetchTarget, None] = operation.changed  # type: ignore[assignment] # a fetch watches targets
        for _ in range(min(len(changed), PARTITIONS_PER_STEP)):
            target, _ = changed.popitem()
            try:
                size_bytes, is_urgent = measure_available(target, self.reader, self.max_bytes, self.services.cold_reads)
            except KafkaError:
                return True
            self.available_bytes += size_bytes - target.available_bytes
            target.available_bytes = size_bytes
            if is_urgent or self.available_bytes >= self.min_bytes:
                return True
        if changed:
            operation.wake()
        return False

    def _expire(self) -> "Reply[FetchResponse]":
        traffic = self.services.replicas.traffic
        if self.reader.follower >= 0:
            traffic.expired_follower_fetches += 1
        else:
            traffic.expired_fetches += 1
        return self._complete(may_wait=True)

    def _complete(self, *, may_wait: bool) -> "Reply[FetchResponse]":
        """Return the response with the records available now, or a Deferred of it.

        `may_wait`: for the disk, until there are records. Those that are still missing are for the next fetch.
        A fetch that another one has superseded reads nothing: the targets of their session have the available bytes
        that the other one has counted.
        """
        if self.session is not None and self._is_superseded():
            return self._refuse_superseded(self.session)
        if self.watch is not None:
            if len(self.watch.unsettled) > PARTITIONS_PER_STEP:
                return self.services.slices.run(self._read_again(may_wait=may_wait))
            self._find_targets(self._forget_targets().items())
        elif len(self.targets) + len(self.refused) > PARTITIONS_PER_STEP:
            return self.services.slices.run(self._read_again(may_wait=may_wait))
        read = self._make_read(may_wait=may_wait)
        self._read(read, self.targets)
        self._add_refused(read, 0, len(self.refused))
        return self._respond(read)

    # -- requested partitions --------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find the session that the request continues. A full or final fetch ends the session that it names."""
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

    def _authorize(self, rights: "Rights") -> None:
        """Check a follower's right to replicate, or find the decisions on the topics of a consumer."""
        if self.reader.follower >= 0:
            self.is_refused = not rights.allows_cluster()
            return
        session = self.session
        found = None if session is None else session.read_rights
        if found is None:
            found = ReadRights(self.services.metadata)
        found.begin(rights, 0 if session is None else len(session.partitions))
        self.read_rights = found
        if session is not None:
            session.read_rights = found

    def _select_partitions(self, requested: FetchPartitions) -> "Mapping[PartitionKey, FetchPartition]":
        """Return the partitions to read: those of the session, or those of the request if there is no session."""
        session = self.session
        if session is None:
            self.opens_session = self.opens_session and len(requested) <= MAX_SESSION_PARTITIONS
            if self.opens_session:
                self.wanted = requested
            return requested
        if not session.partitions:
            self.services.fetch_sessions.remove(session.id)
            self.session = None
            return requested
        if self.reader.follower < 0 or session.watch is None or self.is_refused:
            return session.partitions
        self.watch = session.watch
        return self.watch.select(session.partitions, self.services.monotonic_ms())

    def _keeps_wanted(self) -> bool:
        return self.session is not None or self.opens_session

    def _is_superseded(self) -> bool:
        return self.session is not None and self.session.epoch != self.epoch

    def _find_targets(self, wanted: Iterable[tuple[PartitionKey, FetchPartition]]) -> list[FetchTarget]:
        """Look up partitions; add them to `targets` or `refused`, and return the targets added."""
        # The keys of a request are all ids or all names.
        replicas = self.services.replicas
        by_id, by_name = replicas.partitions_by_id, replicas.partitions
        partitions: dict[PartitionKey, Partition] = by_id if self.uses_ids else by_name  # type: ignore[assignment]
        found, watch = [], self.watch
        if self.is_refused or self.read_rights is not None:
            wanted = self._refuse_unreadable(wanted)
        for key, requested in wanted:
            partition = partitions.get(key)
            if partition is None or (replicas.deleted_topics and replicas.is_deleted(partition)):
                if watch is not None:
                    watch.unwatch(key)
                self._refuse_partition(requested, find_missing_error(replicas, requested, uses_ids=self.uses_ids))
            elif watch is not None:
                found.append(watch.find_target(key, requested, partition))
            else:
                found.append(FetchTarget(requested, partition))
        self.targets += found
        if self.services.readers is not None and self.reader.follower < 0:
            self.services.readers.record(self.context.client_id, found)
        return found

    def _refuse_unreadable(
        self, wanted: Iterable[tuple[PartitionKey, FetchPartition]]
    ) -> list[tuple[PartitionKey, FetchPartition]]:
        """Refuse the partitions that the client may not read; return the others."""
        rights = self.read_rights
        readable = []
        for key, requested in wanted:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED if rights is None else rights.find_error(key[0])
            if error is None:
                readable.append((key, requested))
            else:
                self._refuse_partition(requested, error)
        return readable

    def _refuse_partition(self, requested: FetchPartition, code: ErrorCode) -> None:
        self.refused.append(requested)
        self.reasons.append(get_shared_error(code))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _make_read(
        self, fetched_ms: int | None = None, previous_ms: int = NEVER, *, may_wait: bool = False
    ) -> LimitedRead:
        """Return a read, which `may_wait` for the disk at the end of the fetch's wait, so that it gets records.

        Without a wait before, it gets all records: its client may take a partition without records for its end.
        """
        ends_at_once = self.request.max_wait_ms <= 0 or self.min_bytes <= 0
        return LimitedRead(
            self.version,
            self.reader,
            self.max_bytes,
            self.session is None,
            self._find_cause,
            fetched_ms,
            previous_ms,
            None if ends_at_once else self.services.cold_reads,
            may_wait,
        )

    def _make_first_read(self) -> LimitedRead:
        """Return the read that records the progress of a follower, or the position of another reader.

        A later read is that of a fetch that has waited for records: its reader may have stopped meanwhile.
        """
        is_follower, watch = self.reader.follower >= 0, self.watch
        if watch is not None:
            read = self._make_read(watch.fetched_ms, watch.previous_ms)
        elif is_follower:
            self.fetched_ms, previous_ms = self.services.monotonic_ms(), self.context.follower_fetched_ms
            self.context.follower_fetched_ms = self.fetched_ms
            read = self._make_read(self.fetched_ms, previous_ms)
        else:
            read = self._make_read()
        read.finds_ends = self.services.readers is not None and not is_follower
        return read

    def _read(self, read: LimitedRead, targets: list[FetchTarget]) -> None:
        read.read(targets)
        if self.watch is not None:
            self.watch.settle(targets)

    def _add_refused(self, read: LimitedRead, start: int, end: int) -> None:
        """Add error rows, of which those of missing or unreadable partitions do not end the wait for the others."""
        for requested, error in zip(self.refused[start:end], self.reasons[start:end], strict=True):
            read.refuse(requested, error, is_urgent=error.code not in _NOT_URGENT)

    def _has_read_enough(self, read: LimitedRead) -> bool:
        is_empty = not self.targets if self.watch is None else self.watch.is_empty
        return read.is_urgent or is_empty or read.read_bytes >= self.min_bytes

    def _find_cause(self, requested: FetchPartition, error: KafkaError) -> KafkaError:
        return find_cause(self.services.replicas, requested, error, uses_ids=self.uses_ids)

    # -- response --------------------------------------------------------------------------------------------------

    def _limit(self, charge: "RequestCharge") -> None:
        """Apply the client's quotas. A larger fetch than `max_fetch_bytes` would be throttled without end (KIP-219).

        Followers are exempt; clients without the right to replicate are none.
        """
        rights = self.context.rights
        if self.reader.follower >= 0 and (rights is None or rights.allows_cluster()):
            self.context.charge = None
            return
        self.max_bytes = int(min(self.max_bytes, charge.max_fetch_bytes))
        self.min_bytes = min(self.min_bytes, self.max_bytes)

    def _throttle(self, read: LimitedRead) -> FetchResponse | None:
        """Return an empty response if the client exceeds a quota, with the session as it was before this fetch."""
        charge = self.context.charge
        if charge is None or not charge.settle_fetch(estimate_bytes(read)):
            return None
        session = self.session
        if session is not None and session.epoch != self.epoch:
            return self._refuse_superseded(session)
        return FetchResponse(session_id=INVALID_SESSION_ID if session is None else session.id)

    def _respond(self, read: LimitedRead) -> FetchResponse:
        if self.context.charge is not None:
            throttled = self._throttle(read)
            if throttled is not None:
                return throttled
        if self.session is not None:
            return self._respond_in_session(self.session, read)
        return self._make_response(self._open_session(read.rows) if self.opens_session else INVALID_SESSION_ID, read)

    def _open_session(self, rows: list[FetchRow]) -> int:
        self._record_sent(rows)
        return self._create_session()

    def _create_session(self) -> int:
        session = self.services.fetch_sessions.create(
            self.wanted, self.uses_ids, self.services.monotonic_ms(), is_privileged=self.reader.follower >= 0
        )
        if session is None:
            return INVALID_SESSION_ID
        session.read_rights = self.read_rights
        if self.reader.follower >= 0:
            session.watch = SessionWatch(self.reader.follower, self.fetched_ms)
        return session.id

    def _respond_in_session(self, session: FetchSession, read: LimitedRead) -> FetchResponse:
        """Return a response with the partitions that have changed since the session's last response."""
        if session.epoch != self.epoch:
            return self._refuse_superseded(session)
        self._record_sent(read.rows)
        return self._make_response(session.id, read)

    @staticmethod
    def _refuse_superseded(session: FetchSession) -> FetchResponse:
        """Return an error: the client has continued the session with another request while this one waited."""
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id)

    def _record_sent(self, rows: list[FetchRow]) -> None:
        """Record the values sent to the client. Partitions with records move to the end of the session (KIP-227)."""
        session, watch = self.session, self.watch
        for requested, row in rows:
            requested.record_sent(row.high_watermark, row.log_start_offset, bool(row.error_code))
            key = (requested.topic_id if self.uses_ids else requested.topic), requested.index
            if session is not None and row.records is not NO_RECORDS:
                session.partitions.move_to_end(key)
            if watch is not None:
                watch.unsettle(key)

    def _make_response(self, session_id: int, read: LimitedRead) -> FetchResponse:
        self._count_sent(read)
        response = FetchResponse(session_id=session_id, responses=[])
        add_rows(response.responses, read.rows, None)
        if self._may_name_leaders(read):
            nodes: dict[int, FetchResponseNodeEndpoint] = {}
            name_leaders(nodes, read.rows, self._find_leader)
            response.node_endpoints = list(nodes.values())
        return response

    def _count_sent(self, read: LimitedRead) -> None:
        read.count_sent()
        if read.ends and self.services.readers is not None:
            self.services.readers.record_ends(self.context.client_id, read.ends)

    def _may_name_leaders(self, read: LimitedRead) -> bool:
        return read.has_failed and self.version >= LEADER_NAMED_SINCE

    def _find_leader(self, requested: FetchPartition) -> tuple[int, FetchResponseNodeEndpoint] | None:
        services = self.services
        leader = find_leader(
            services.replicas,
            services.metadata,
            requested.topic,
            requested.topic_id,
            requested.index,
            self.context.listener_name,
        )
        if leader is None:
            return None
        node = FetchResponseNodeEndpoint(node_id=leader.broker_id, host=leader.host, port=leader.port, rack=leader.rack)
        return leader.leader_epoch, node
