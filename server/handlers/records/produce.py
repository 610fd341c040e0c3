"""Produce 3-13: appends one record batch to each partition of the request.

With acks=0 there is no response, and a failure closes the connection; with acks=1 the response follows the leader's
append, with acks=-1 (the clients' default since KIP-679) it follows the appends of all in-sync replicas. Other values
get INVALID_REQUIRED_ACKS. Topics are given by id from version 13 on (KIP-516). From version 8 on an error lists the
records that caused it (KIP-467), from 10 on NOT_LEADER_OR_FOLLOWER has the current leader (KIP-951). The response to a
duplicate of an appended batch has the offsets of that append (KIP-98). A transaction's first batch on a partition is
verified by the transaction's coordinator; from version 12 on the coordinator adds the partition to the transaction
(KIP-890). With flush.messages or flush.before.acks the response waits for a sync. A batch that takes long to validate
is validated in steps between other requests. Leadership, topic configuration, transaction and sequence may change in
the meantime, so its append checks them again.
"""

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, Self

from twisted.internet.defer import Deferred, succeed

from odradek.log.append import AppendInfo
from odradek.log.validation.batch import (
    CheckedRecords,
    InvalidMagicError,
    InvalidOffsetOrSequenceError,
    NotOneBatchError,
    StepwiseValidationRequired,
)
from odradek.log.validation.record import RejectedRecordsError
from odradek.protocol.batches.streaming import Step
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponseBatchIndexAndErrorMessage,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.protocol.schema import rows
from odradek.server.fetching.purgatory import DelayedOperation, PartitionWatch
from odradek.server.handlers.records.leaders import find_leader
from odradek.server.produce_request import TOPIC_IDS_SINCE, find_partition, is_transactional_batch
from odradek.server.refused_batches import RETRIABLE, RefusedBatches
from odradek.server.request import NO_RESPONSE, CloseConnection, NoResponse
from odradek.server.work.waits import AnyDeferred, RetryQueue, Wait, complete, shield, wait_for_all

if TYPE_CHECKING:
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.coordinators.interfaces import TransactionVerification
    from odradek.server.coordinators.transaction_verification import VerificationResult
    from odradek.server.request import Reply, RequestContext
    from odradek.server.work.clock import Clock
    from odradek.server.work.flusher import Flusher
    from odradek.server.work.record_work import RecordWork
    from odradek.server.work.slices import Slices

PARTITIONS_PER_STEP: Final = 8
"""Maximum number of partitions that are appended to in one step. The append of a small batch takes 20 us."""

LEADER_NAMED_SINCE: Final = 10

BYTES_PER_STEP: Final = 1 << 20
"""Maximum total size of the batches of several partitions that are appended in one step. It is the default of a
producer's max.request.size.

A single batch is always appended in one step, which takes 3 to 6 ms for each MB, nearly all of it in the kernel's
write. Its size is limited by max.message.bytes only: a batch of 100 MB may block the thread for half a second. A write
in pieces, or on a thread, would require every other append, roll, truncation and deletion of the log to wait until it
ends.
"""

ADMIN_CLIENT_ID: Final = "__admin_client"
"""Client id of the only client that may write to internal topics, as in Kafka."""

_CHECKED_PER_STEP: Final = 200
"""Partitions of a request that are checked in one step, in up to 0.5 ms."""

_VALID_ACKS: Final = (-1, 1, 0)
ProduceOutcome = ProduceResponse | NoResponse
_Unfinished = dict["Partition", tuple[int, int, ProduceResponsePartitionProduceResponse]]
"""By partition, the offset that its high watermark has to reach before the response is sent, the leader epoch of the
append, and the response row."""

_WITHOUT_LOG_START: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors of an append for which Kafka's response has no log start offset."""

_EMPTY_RECORDS: Final = memoryview(b"")

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_NOT_FAILED: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of an append that Kafka does not count as a failed request."""


class ProduceServices(Protocol):
    """The parts of a broker that Produce needs."""

    flusher: "Flusher"
    metadata: "ClusterMetadata"
    now_ms: Callable[[], int]
    produce_completions: RetryQueue
    reactor: "Clock"
    record_work: "RecordWork"
    replicas: "ReplicaManager"
    slices: "Slices"

    @property
    def verifier(self) -> "TransactionVerification": ...


def produce(services: ProduceServices, context: "RequestContext", request: ProduceRequest) -> "Reply[ProduceOutcome]":
    """Append a batch to each partition; wait for replicas and for a sync if the request or the topic requires them.

    Each partition has its own error. Raises KafkaError TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch
    without a transactional id, INVALID_PRODUCER_ID_MAPPING for batches of several producers in one transaction.

    As in Kafka, a request is completed even if the connection is lost: with acks=0 a client may close the connection
    right after sending the request. Only two waits end when the connection is lost: the wait for replicas, which begins
    after all appends, and the wait of a large batch for one of the places of `RecordWork`. In the second case the batch
    is not appended; otherwise the batches of lost connections could fill the memory.
    """
    topics = request.topic_data
    topic_count = len(topics)
    count = len(topics[0].partition_data) if topic_count == 1 else sum([len(topic.partition_data) for topic in topics])
    if count > PARTITIONS_PER_STEP or topic_count > PARTITIONS_PER_STEP:
        return _produce_in_slices(services, context, request)
    if count > 1:
        # Inline, because all small requests take this path.
        size_bytes = 0
        for topic in topics:
            for data in topic.partition_data:
                if data.records:
                    size_bytes += data.records.nbytes  # type: ignore[union-attr] # decoded: a view of the frame
        if size_bytes > BYTES_PER_STEP:
            return _produce_in_slices(services, context, request)
        for _ in _drop_repeated(request, context.api_version):
            pass
    for _ in _check_transactional(request):
        pass
    if request.transactional_id is None:
        return _Appends(services, context, request, None).run().finish()
    verified = services.verifier.verify_produce(request, context.api_version)
    if isinstance(verified, Deferred):
        # The response of one coordinator may complete the verification of hundreds of requests.
        in_turn: Deferred[VerificationResult | None] = verified.addCallback(
            lambda outcome: _wait_for_turn(services, outcome)
        )
        appended = in_turn.addCallback(lambda outcome: _Appends(services, context, request, outcome).run())
        return shield(appended).addCallback(_Appends.finish)
    return _Appends(services, context, request, verified).run().finish()


def _wait_for_turn(
    services: ProduceServices, verified: "VerificationResult | None"
) -> "Deferred[VerificationResult | None]":
    """Return a Deferred that fires in a slice of the requests that have waited."""
    turn: Deferred[VerificationResult | None] = Wait(lambda: "other requests of verified transactions")
    complete(services.produce_completions, turn, verified)
    return turn


def _produce_in_slices(
    services: ProduceServices, context: "RequestContext", request: ProduceRequest
) -> "Deferred[ProduceOutcome]":
    """Append to many partitions, or many bytes, in slices. Each partition is looked up in the step of its append."""

    def check() -> Generator[None, None, None]:
        yield from _drop_repeated(request, context.api_version)
        yield from _check_transactional(request)

    def verify(_: None) -> "Reply[VerificationResult | None]":
        if request.transactional_id is None:
            return None
        return services.verifier.verify_produce(request, context.api_version)

    def append(verified: "VerificationResult | None") -> "Deferred[_Appends]":
        return services.slices.run(_Appends(services, context, request, verified).run_in_steps())

    checked: Deferred[VerificationResult | None] = services.slices.run(check()).addCallback(verify)
    appended: Deferred[_Appends] = checked.addCallback(append)
    return shield(appended).addCallback(_Appends.finish)


class _Appends:
    """The appends of one request, and the Deferreds that its response waits for."""

    __slots__ = (
        "_context", "_flushes", "_has_failed", "_leaders", "_listener", "_long_appends", "_request", "_services",
        "_topics", "_unfinished", "_verified",
    )  # fmt: skip

    def __init__(
        self,
        services: ProduceServices,
        context: "RequestContext",
        request: ProduceRequest,
        verified: "VerificationResult | None",
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._verified = verified
        self._topics: list[ProduceResponseTopicProduceResponse] = []
        self._unfinished: _Unfinished = {}
        self._flushes: list[Deferred[None]] = []
        self._long_appends: list[Generator[Step, None, None]] = []
        self._has_failed = False
        self._listener = context.listener_name if context.api_version >= LEADER_NAMED_SINCE else None
        self._leaders: dict[int, ProduceResponseNodeEndpoint] = {}

    def run(self) -> Self:
        """Append all batches in one step, except those that take long to validate."""
        now_ms = self._services.now_ms()
        for topic in self._request.topic_data:
            results = self._begin_topic(topic)
            for data in topic.partition_data:
                self._begin_append(topic, data, results, now_ms)
        return self

    def run_in_steps(self) -> Generator[None, None, Self]:
        """Append all batches like `run`, one in each step."""
        for topic in self._request.topic_data:
            results = self._begin_topic(topic)
            if not topic.partition_data:
                yield
            for data in topic.partition_data:
                self._begin_append(topic, data, results, self._services.now_ms())
                yield
        return self

    def finish(self) -> "Reply[ProduceOutcome]":
        """Return the response, or a Deferred of it. Raises CloseConnection for a failure with acks=0."""
        if self._long_appends:
            record_work = self._services.record_work
            waits = [record_work.run(steps, self._context, ends_with_client=False) for steps in self._long_appends]
            self._long_appends = []
            return wait_for_all(waits).addCallback(lambda _: self.finish())
        if self._request.acks == 0:
            if self._has_failed:
                raise CloseConnection(f"a produce with acks=0 failed: {_find_first_error(self._topics)}")
            return NO_RESPONSE
        response = ProduceResponse(responses=self._topics)
        if self._leaders:
            response.node_endpoints = list(self._leaders.values())
        if not self._flushes and not self._unfinished:
            return response
        return _wait_until_done(
            self._services, self._request, response, self._unfinished, self._flushes, self._listener
        )

    def _begin_topic(self, topic: ProduceRequestTopicProduceData) -> list[ProduceResponsePartitionProduceResponse]:
        results: list[ProduceResponsePartitionProduceResponse] = []
        self._topics.append(
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)
        )
        return results

    def _begin_append(
        self,
        topic: ProduceRequestTopicProduceData,
        data: ProduceRequestPartitionProduceData,
        results: list[ProduceResponsePartitionProduceResponse],
        now_ms: int,
    ) -> None:
        try:
            results.append(self._append(topic, data, now_ms))
        except StepwiseValidationRequired as validation:
            self._long_appends.append(self._check_and_append(topic, data, results, len(results), validation))
            results.append(ProduceResponsePartitionProduceResponse(index=data.index))

    def _check_and_append(
        self,
        topic: ProduceRequestTopicProduceData,
        data: ProduceRequestPartitionProduceData,
        results: list[ProduceResponsePartitionProduceResponse],
        position: int,
        validation: StepwiseValidationRequired,
    ) -> Generator[Step, None, None]:
        """Validate a large batch in steps, then append it if the request may still write to the partition."""
        from odradek.log.validation.long_batch import check_in_steps

        now_ms = self._services.now_ms
        while True:
            try:
                checked = yield from check_in_steps(validation.batch, validation.config, now_ms())
                results[position] = self._append(topic, data, now_ms(), checked)
                return
            except StepwiseValidationRequired as again:
                # The topic's configuration has changed meanwhile, or the topic was deleted and created again.
                validation = again
            except KafkaError as error:
                partition = self._find(topic, data.index)
                if partition is not None:
                    _count_refusal(partition, error, len(data.records or _EMPTY_RECORDS))  # type: ignore[arg-type]
                results[position] = self._refuse(topic, data.index, error, partition)
                return

    def _find(self, topic: ProduceRequestTopicProduceData, index: int) -> "Partition | None":
        with suppress(KafkaError):
            return find_partition(self._services.replicas, topic, index, self._context.api_version)
        return None

    def _append(
        self,
        topic: ProduceRequestTopicProduceData,
        data: ProduceRequestPartitionProduceData,
        now_ms: int,
        checked: CheckedRecords | None = None,
    ) -> ProduceResponsePartitionProduceResponse:
        """Append one batch, and return its row of the response.

        Raises StepwiseValidationRequired, with nothing appended.
        """
        request = self._request
        partition: Partition | None = None
        try:
            partition = _find_writable(self._services, self._context, request, topic, data.index, self._verified)
            # Read `partition.log` before the append: a watcher that the append wakes may discover a disk failure, which
            # sets it to None.
            log: PartitionLog = partition.log  # type: ignore[assignment] # with None the append raises
            if self._context.refused_batches:
                self._check_order(topic, data, partition)
            info = partition.append_as_leader(
                data.records or _EMPTY_RECORDS,  # type: ignore[arg-type] # decoded: a view of the frame
                required_acks=request.acks,
                now_ms=now_ms,
                produce_version=self._context.api_version,
                is_verified=self._verified is not None and self._verified.may_append(partition),
                checked=checked,
            )
        except KafkaError as error:
            record_refusal(self._context, topic, data, error.code)
            if partition is not None:
                _count_refusal(partition, error, len(data.records or _EMPTY_RECORDS))  # type: ignore[arg-type]
            return self._refuse(topic, data.index, error, partition)
        row = _make_row(data.index, info)
        if request.acks == -1 and log.state.high_watermark <= info.last_offset:
            self._unfinished[partition] = info.last_offset + 1, partition.leader_epoch, row
        if info.flush_due and partition.waits_for_sync(info, request.acks):
            self._flushes.append(_wait_for_sync(self._services, partition, row))
        return row

    def _refuse(
        self, topic: ProduceRequestTopicProduceData, index: int, error: KafkaError, partition: "Partition | None"
    ) -> ProduceResponsePartitionProduceResponse:
        """Return the row of a batch that is not appended, with the current leader if this broker does not lead."""
        self._has_failed = True
        row = make_error_row(index, error, partition)
        if self._listener is not None:
            leader = _name_leader(self._services, self._listener, topic.name, topic.topic_id, row)
            if leader is not None:
                self._leaders[leader.node_id] = leader
        return row

    def _check_order(
        self,
        topic: ProduceRequestTopicProduceData,
        data: ProduceRequestPartitionProduceData,
        partition: "Partition",
    ) -> None:
        """Raise KafkaError if an earlier batch of the producer, which was refused, is to be repeated first."""
        refused, log = self._context.refused_batches, partition.log
        if refused is not None and log is not None:
            records: memoryview = data.records or _EMPTY_RECORDS  # type: ignore[assignment] # a view of the frame
            refused.check(_find_topic_key(self._context, topic), data.index, records, log.producer_state)


def _count_refusal(partition: "Partition", error: KafkaError, size_bytes: int) -> None:
    """Count a batch that is not appended as Kafka's `ReplicaManager.appendToLocalLog` does."""
    traffic, code = partition.traffic, error.code
    traffic.produce_requests += 1
    if code in _TOO_LARGE:
        traffic.bytes_rejected += size_bytes
    elif code == ErrorCode.CORRUPT_MESSAGE:
        traffic.invalid_crc_records += 1
    elif code not in _NOT_FAILED:
        traffic.failed_produce_requests += 1
        if isinstance(error, InvalidOffsetOrSequenceError):
            traffic.invalid_offset_records += 1
        elif isinstance(error, InvalidMagicError):
            traffic.invalid_magic_records += 1
        elif isinstance(error, RejectedRecordsError):
            traffic.no_key_records += error.missing_keys


def record_refusal(
    context: "RequestContext",
    topic: ProduceRequestTopicProduceData,
    data: ProduceRequestPartitionProduceData,
    code: ErrorCode,
) -> None:
    """Record a batch that is not appended, if its producer will repeat it (`refused_batches`)."""
    if code in RETRIABLE:
        refused = context.refused_batches
        if refused is None:
            refused = context.refused_batches = RefusedBatches()
        records: memoryview = data.records or _EMPTY_RECORDS  # type: ignore[assignment] # a view of the frame
        refused.record(_find_topic_key(context, topic), data.index, records, code)


def _find_topic_key(context: "RequestContext", topic: ProduceRequestTopicProduceData) -> str | bytes:
    return topic.topic_id if context.api_version >= TOPIC_IDS_SINCE else topic.name


def _find_writable(
    services: ProduceServices,
    context: "RequestContext",
    request: ProduceRequest,
    topic: ProduceRequestTopicProduceData,
    index: int,
    verified: "VerificationResult | None",
) -> "Partition":
    """Return the partition to append to. Raises KafkaError if the request may not write to it."""
    partition = find_partition(services.replicas, topic, index, context.api_version)
    if request.acks not in _VALID_ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if partition.is_internal and context.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
    if verified is not None:
        error = verified.error(partition)
        if error is not None:
            raise error
    return partition


def _drop_repeated(request: ProduceRequest, version: int) -> Generator[None, None, None]:
    """Keep only the last entry of a partition that the request repeats."""
    seen: set[tuple[str | bytes, int]] = set()
    is_repeated = False
    count = 0
    for topic in reversed(request.topic_data):
        name = topic.topic_id if version >= TOPIC_IDS_SINCE else topic.name
        kept = []
        for data in reversed(topic.partition_data):
            key = name, data.index
            if key not in seen:
                seen.add(key)
                kept.append(data)
            count += 1
            if not count % _CHECKED_PER_STEP:
                yield
        count += 1
        if not count % _CHECKED_PER_STEP:
            yield
        if len(kept) < len(topic.partition_data):
            is_repeated = True
            kept.reverse()
            topic.partition_data = kept
    if is_repeated:
        request.topic_data = [topic for topic in request.topic_data if topic.partition_data]


def _check_transactional(request: ProduceRequest) -> Generator[None, None, None]:
    """Raise TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch in a request without transactional id."""
    if request.transactional_id is not None:
        return
    count = 0
    for topic in request.topic_data:
        count += 1
        if not count % _CHECKED_PER_STEP:
            yield
        for data in topic.partition_data:
            if is_transactional_batch(data.records):  # type: ignore[arg-type] # decoded: a view of the frame
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            count += 1
            if not count % _CHECKED_PER_STEP:
                yield


def finish_append(
    services: ProduceServices,
    partition: "Partition",
    topic: ProduceRequestTopicProduceData,
    request: ProduceRequest,
    info: AppendInfo,
    listener: str | None,
) -> "Deferred[ProduceOutcome]":
    """Return the response for one partition whose batch is appended, once it is replicated and synced as required."""
    row = _make_row(partition.index, info)
    response = ProduceResponse(
        responses=[
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])
        ]
    )
    unfinished = {partition: (info.last_offset + 1, partition.leader_epoch, row)} if request.acks == -1 else {}
    flushes = [_wait_for_sync(services, partition, row)] if partition.waits_for_sync(info, request.acks) else []
    return _wait_until_done(services, request, response, unfinished, flushes, listener)


def make_failed_response(
    topic: ProduceRequestTopicProduceData, index: int, info: AppendInfo, error: KafkaError
) -> ProduceResponse:
    """Return the response for one partition whose batch was appended, but not replicated or synced."""
    row = _make_row(index, info)
    _fail_row(row, error)
    return ProduceResponse(
        responses=[
            ProduceResponseTopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])
        ]
    )


def _make_row(index: int, info: AppendInfo) -> ProduceResponsePartitionProduceResponse:
    return ProduceResponsePartitionProduceResponse(
        index=index,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
    )


def produce_error(request: ProduceRequest, version: int, error: KafkaError) -> ProduceResponse | None:
    """Return `error` for every partition; None with acks=0, which closes the connection instead."""
    if request.acks == 0:
        return None
    return ProduceResponse(
        responses=rows(
            lambda topic: ProduceResponseTopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=rows(lambda data: make_error_row(data.index, error, None), topic.partition_data),
            ),
            request.topic_data,
        )
    )


def make_error_row(
    index: int, error: KafkaError, partition: "Partition | None"
) -> ProduceResponsePartitionProduceResponse:
    """Return the error row of one partition. If `partition` rejected the batch, the row has its log start offset."""
    row = ProduceResponsePartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.message
    )
    log = None if partition is None else partition.log
    if log is not None and error.code not in _WITHOUT_LOG_START and not isinstance(error, NotOneBatchError):
        row.log_start_offset = log.log_start_offset
    if isinstance(error, RejectedRecordsError):
        row.record_errors = [
            ProduceResponseBatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=message)
            for number, message in error.record_errors
        ]
    return row


def _find_first_error(topics: list[ProduceResponseTopicProduceResponse]) -> str:
    for topic in topics:
        for row in topic.partition_responses:
            if row.error_code:
                return f"{topic.name or topic.topic_id.hex()}-{row.index} {ErrorCode(row.error_code).name}"
    return "unknown"


def name_leaders(services: ProduceServices, listener: str, response: ProduceResponse) -> None:
    """Add the current leaders of partitions that this broker does not lead (KIP-951)."""
    nodes: dict[int, ProduceResponseNodeEndpoint] = {}
    for topic in response.responses:
        for row in topic.partition_responses:
            node = _name_leader(services, listener, topic.name, topic.topic_id, row)
            if node is not None:
                nodes[node.node_id] = node
    response.node_endpoints = list(nodes.values())


def _name_leader(
    services: ProduceServices,
    listener: str,
    topic: str,
    topic_id: bytes,
    row: ProduceResponsePartitionProduceResponse,
) -> ProduceResponseNodeEndpoint | None:
    """Add the current leader to a row with NOT_LEADER_OR_FOLLOWER, and return its endpoint; None if it is unknown."""
    if row.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return None
    leader = find_leader(services.replicas, services.metadata, topic, topic_id, row.index, listener)
    if leader is None:
        return None
    row.current_leader = ProduceResponseLeaderIdAndEpoch(leader_id=leader.broker_id, leader_epoch=leader.leader_epoch)
    return ProduceResponseNodeEndpoint(
        node_id=leader.broker_id, host=leader.host, port=leader.port, rack=leader.rack
    )


def _wait_until_done(
    services: ProduceServices,
    request: ProduceRequest,
    response: ProduceResponse,
    unfinished: _Unfinished,
    flushes: list["Deferred[None]"],
    listener: str | None,
) -> "Deferred[ProduceOutcome]":
    """Return the response once every partition is replicated and synced or has failed, or once the timeout expires.

    listener: of the addresses of new leaders in the response; None for versions without leaders in the response
    """
    waits: list[AnyDeferred] = [*flushes]
    if unfinished:
        waits.append(_ReplicaWait(services, response, unfinished, listener).begin(request.timeout_ms))
    return wait_for_all(waits).addCallback(lambda _: response)


class _ReplicaWait:
    """The wait of one request for the replicas of the partitions that it appended to.

    Its partitions are checked in steps of `_CHECKED_PER_STEP`, and one advance of a high watermark completes as many
    requests as fit into the slices of `produce_completions`.
    """

    __slots__ = ("_listener", "_operation", "_response", "_services", "_unfinished")

    def __init__(
        self, services: ProduceServices, response: ProduceResponse, unfinished: _Unfinished, listener: str | None
    ) -> None:
        self._services = services
        self._response = response
        self._unfinished = unfinished
        self._listener = listener
        self._operation = DelayedOperation[ProduceResponse](
            self._settle_changed, self._expire, services.produce_completions
        )

    def begin(self, timeout_ms: int) -> "Deferred[ProduceResponse]":
        """Begin to wait, and return a Deferred of the response."""
        if len(self._unfinished) > _CHECKED_PER_STEP:
            watched: Deferred[None] = self._services.slices.run(self._watch())
            return watched.addCallback(lambda _: self._wait(timeout_ms))
        for _ in self._watch():
            pass
        return self._wait(timeout_ms)

    def _watch(self) -> Generator[None, None, None]:
        """Watch the partitions that are not replicated yet."""
        try:
            for number, partition in enumerate(list(self._unfinished), 1):
                self._settle(partition)
                if partition in self._unfinished:
                    self._operation.watch(PartitionWatch(partition))
                if not number % _CHECKED_PER_STEP:
                    yield
        except BaseException:
            self._operation.drop()
            raise

    def _wait(self, timeout_ms: int) -> "Deferred[ProduceResponse]":
        operation = self._operation
        if not self._unfinished:
            operation.drop()
            return succeed(self._response)
        waiting = operation.begin(self._services.reactor, timeout_ms)
        if operation.changed:
            operation.wake()
        return waiting

    def _settle_changed(self) -> ProduceResponse | None:
        changed = self._operation.changed
        for _ in range(min(len(changed), _CHECKED_PER_STEP)):
            watch, _ = changed.popitem()
            if watch.partition in self._unfinished:
                self._settle(watch.partition)
        if not self._unfinished:
            return self._response
        if changed:
            self._operation.wake()
        return None

    def _settle(self, partition: "Partition") -> None:
        """Complete the row of a partition if it is replicated, or cannot be any more."""
        offset, leader_epoch, row = self._unfinished[partition]
        try:
            if not partition.has_reached(offset, leader_epoch):
                return
        except KafkaError as error:
            _fail_row(row, error)
            if self._listener is not None:
                self._add_leader(partition, row, self._listener)
        del self._unfinished[partition]

    def _add_leader(
        self, partition: "Partition", row: ProduceResponsePartitionProduceResponse, listener: str
    ) -> None:
        response = self._response
        node = _name_leader(self._services, listener, partition.topic, partition.topic_id, row)
        if node is not None and node not in response.node_endpoints:
            response.node_endpoints = [*response.node_endpoints, node]

    def _expire(self) -> "Reply[ProduceResponse]":
        if len(self._unfinished) > _CHECKED_PER_STEP:
            return self._services.slices.run(self._expire_in_steps())
        for _ in self._expire_in_steps():
            pass
        return self._response

    def _expire_in_steps(self) -> Generator[None, None, ProduceResponse]:
        """Fail the rows of the partitions that are not replicated.

        A partition may have been replicated in time although this request was not retried yet.
        """
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        for number, partition in enumerate(list(self._unfinished), 1):
            self._settle(partition)
            unfinished = self._unfinished.pop(partition, None)
            if unfinished is not None:
                partition.count_expired_produce()
                _fail_row(unfinished[2], error)
            if not number % _CHECKED_PER_STEP:
                yield
        return self._response


def _wait_for_sync(
    services: ProduceServices, partition: "Partition", row: ProduceResponsePartitionProduceResponse
) -> "Deferred[None]":
    def synced(is_synced: bool) -> None:
        if not is_synced:
            _fail_row(row, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))

    return services.flusher.flush(partition).addCallback(synced)


def _fail_row(row: ProduceResponsePartitionProduceResponse, error: KafkaError) -> None:
    """Set the error of an appended batch. As in Kafka, the row keeps its offset."""
    row.error_code = error.code
    row.error_message = error.message
