"""Produce fast path: the part before the records of a produce request is decoded once if later requests repeat it.

The head of a Produce frame is everything before the records: client id, acks, topic, partition index. A connection
stores the heads of successful requests for one partition, each with its partition and its encoded response. The
records of a frame with a known head are appended to the partition directly, and only the correlation id and three
offsets of the response are filled in. Every other request (another shape, an error) goes through all stages to
`handlers/produce.py`; tests compare the fast path with it.

A head is valid while this broker leads its partition: after that the append fails, and the handler determines the
error. The same is true of a transaction's first batch on a partition, which has to be verified. Partitions of a deleted
topic have a leader until they are retired, so they are checked while there are any. A head refers to its `Partition`,
never to the log: a retired partition has released the log, so that the files of a deleted topic are closed.
"""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from odradek.log.validation.batch import StepwiseValidationRequired
from odradek.protocol.batches.record_batch import FLAGS_POSITION, PRODUCER, PRODUCER_POSITION, RECORD_BATCH_OVERHEAD
from odradek.protocol.codec import MALFORMED, encoder
from odradek.protocol.codec_source import Buffer, read_varint_tail
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.framing import SIZE_BYTES
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
)
from odradek.server.apis import APIS, PRODUCE_KEY
from odradek.server.fetching.purgatory import DelayedOperation
from odradek.server.handlers.records import produce
from odradek.server.produce_request import TOPIC_IDS_SINCE, find_partition
from odradek.server.security.authorization.operations import ResourceType
from odradek.server.security.authorization.rights import Rights

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from odradek.log.append import AppendInfo
    from odradek.log.partition_log import PartitionLog
    from odradek.replication.replicas.partition import Partition
    from odradek.server.request import RequestContext
    from odradek.server.security.authorization.authorizer import Authorizer

_CODE: Final = slice(4, 8)
_CORRELATION_ID: Final = slice(8, 12)
_RESPONSE_ID: Final = slice(4, 8)
_HEAD_AT: Final = 12
_MAX_HEADS: Final = 64
_MAX_LENGTHS: Final = 4
_MAX_HEAD_END: Final = 4096
_TRANSACTIONAL: Final = 0x10
_LOG_START_SINCE: Final = 5
_NO_TAGS: Final = b"\0\0\0"
"""The empty tagged fields of partition, topic and request: no version has any."""

_unpack_producer: Final = PRODUCER.unpack_from
_pack_offsets: Final = struct.Struct(">qqq").pack_into
_SENTINELS: Final = (0x5A6B7C8D9EAFB0C1, 0x5A6B7C8D9EAFB0C2, 0x5A6B7C8D9EAFB0C3)


FastResponse = bytearray | ProduceResponse
"""An encoded response, or a response to encode."""


class _KnownHead:
    """The partition of a head, and its encoded response with space for the offsets.

    request: a request with this head, without records
    listener: of the addresses of new leaders in the response; None for versions without leaders in the response
    """

    __slots__ = (
        "acks", "append", "is_plain", "listener", "offsets_at", "partition", "request", "response", "topic",
    )  # fmt: skip

    def __init__(self, partition: "Partition", request: ProduceRequest, version: int, listener: str) -> None:
        self.partition = partition
        self.listener = listener if version >= produce.LEADER_NAMED_SINCE else None
        self.append: Callable[..., AppendInfo] = partition.append_as_leader
        self.is_plain = request.transactional_id is None
        if not self.is_plain:
            self.append = _append_in_open_transaction(partition)
        self.acks = request.acks
        (topic,) = request.topic_data
        self.topic = ProduceRequestTopicProduceData(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_data=[ProduceRequestPartitionProduceData(index=partition.index)],
        )
        self.request = ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms, topic_data=[self.topic])
        row = ProduceResponsePartitionProduceResponse(
            index=partition.index,
            base_offset=_SENTINELS[0],
            log_append_time_ms=_SENTINELS[1],
            log_start_offset=_SENTINELS[2],
        )
        template = bytearray(8)
        if response_is_flexible(0, ProduceRequest.is_flexible(version)):
            template.append(0)
        response = ProduceResponse(
            responses=[
                ProduceResponseTopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=[row]
                )
            ]
        )
        encoder(ProduceResponse, version)(response, template, [])
        template[:4] = (len(template) - SIZE_BYTES).to_bytes(4, "big")
        self.offsets_at = template.index(struct.pack(">qqq", *_SENTINELS))
        self.response = bytes(template)


class PendingProduce:
    """An appended batch whose response waits for the replicas or for a sync.

    request: has the fields that an error response needs
    sync: fires with the response after the sync, which begins with the append; None if only the replicas are waited for
    """

    __slots__ = ("_known", "_leader_epoch", "_services", "appended_s", "info", "out", "request", "sync")

    def __init__(
        self, services: produce.ProduceServices, known: _KnownHead, info: "AppendInfo", out: bytearray
    ) -> None:
        self._services = services
        self._known = known
        self._leader_epoch = known.partition.leader_epoch
        self.request = known.request
        self.info = info
        self.out = out
        self.appended_s = services.reactor.seconds()
        self.sync: Deferred[FastResponse] | Deferred[produce.ProduceOutcome] | None = None
        partition, acks = known.partition, known.acks
        if partition.waits_for_sync(info, acks):
            if acks == -1:
                self.sync = produce.finish_append(
                    services, partition, known.topic, self.request, info, known.listener
                )
            else:
                self.sync = services.flusher.flush(partition).addCallback(
                    lambda is_synced: out if is_synced else self._fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
                )

    def respond(self) -> "FastResponse | Deferred[FastResponse] | Deferred[produce.ProduceOutcome]":
        """Return the response, or a Deferred of it. The timeout counts from the append."""
        if self.sync is not None:
            return self.sync
        response = self._check()
        if response is not None:
            return response
        # A call of DelayedOperation[...] takes much longer.
        operation: DelayedOperation[FastResponse] = DelayedOperation(
            self._check, self._expire, self._services.produce_completions
        )
        clock = self._services.reactor
        waited_ms = int((clock.seconds() - self.appended_s) * 1000)
        return operation.wait(clock, self.request.timeout_ms - waited_ms, (self._known.partition,))

    def cancel(self) -> None:
        """Drop the response, because the connection is lost."""
        if self.sync is not None:
            self.sync.addErrback(lambda _: None)
            self.sync.cancel()

    def _check(self) -> FastResponse | None:
        try:
            is_replicated = self._known.partition.has_reached(self.info.last_offset + 1, self._leader_epoch)
        except KafkaError as error:
            return self._fail(error)
        return self.out if is_replicated else None

    def _expire(self) -> FastResponse:
        # The batch may have been replicated in time although the response was not checked again yet.
        response = self._check()
        if response is None:
            self._known.partition.count_expired_produce()
            response = self._fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        return response

    def _fail(self, error: KafkaError) -> ProduceResponse:
        known = self._known
        response = produce.make_failed_response(known.topic, known.partition.index, self.info, error)
        if known.listener is not None:
            produce.name_leaders(self._services, known.listener, response)
        return response


class ProduceFastPath:
    """The heads of one connection, all of one API version and of a few lengths."""

    __slots__ = ("_code", "_head_ends", "_heads", "_is_flexible", "_services", "_version")

    def __init__(self, services: produce.ProduceServices) -> None:
        self._services = services
        self._heads: dict[bytes, _KnownHead] = {}
        self._head_ends: tuple[int, ...] = ()
        self._code = b""
        self._version = 0
        self._is_flexible = False

    def append_records(self, frame: Buffer) -> bytearray | PendingProduce | None:
        """Append the records of a frame with a known head; return its encoded response, or a `PendingProduce`.

        Return None, with nothing appended, if the head is unknown or the append fails.
        """
        if frame[_CODE] != self._code:
            return None
        for head_end in self._head_ends:
            head = bytes(frame[_HEAD_AT:head_end])
            known = self._heads.get(head)
            if known is not None:
                break
        else:
            return None
        records = self._find_records(frame, head_end)
        if records is None or len(records) < RECORD_BATCH_OVERHEAD:
            return None
        if known.is_plain and records[FLAGS_POSITION] & _TRANSACTIONAL:
            return None
        partition = known.partition
        replicas = self._services.replicas
        if replicas.deleted_topics and replicas.is_deleted(partition):
            return None
        # A watcher that the append wakes may discover a disk failure, which releases the log of the partition.
        log: PartitionLog = partition.log  # type: ignore[assignment] # None fails the append
        try:
            info = known.append(
                records,
                required_acks=known.acks,
                now_ms=self._services.now_ms(),
                produce_version=self._version,
                is_verified=False,
            )
        except KafkaError:
            if not partition.is_leader:
                del self._heads[head]
            return None
        except StepwiseValidationRequired:
            return None
        out = bytearray(known.response)
        out[_RESPONSE_ID] = frame[_CORRELATION_ID]
        _pack_offsets(out, known.offsets_at, info.first_offset, info.log_append_time_ms, info.log_start_offset)
        if (known.acks == -1 and log.state.high_watermark <= info.last_offset) or (
            info.flush_due and partition.waits_for_sync(info, known.acks)
        ):
            return PendingProduce(self._services, known, info, out)
        return out

    def _find_records(self, frame: Buffer, head_end: int) -> memoryview | None:
        """Return the records after a head; None unless only empty tagged fields follow them."""
        end = len(frame)
        try:
            if not self._is_flexible:
                start = head_end + 4
                size = int.from_bytes(frame[head_end:start], "big", signed=True)
                return memoryview(frame)[start:end] if size >= 0 and start + size == end else None
            size = frame[head_end]
            start = head_end + 1
            if size > 127:
                second = frame[start]
                if second < 128:
                    size += (second - 1) << 7
                    start += 1
                else:
                    size, start = read_varint_tail(frame, start, size)
        except MALFORMED:
            return None
        after = start + size - 1
        if size == 0 or after + len(_NO_TAGS) != end or frame[after:end] != _NO_TAGS:
            return None
        return memoryview(frame)[start:after]

    def add_head(
        self, frame: Buffer, context: "RequestContext", request: ProduceRequest, response: ProduceResponse
    ) -> None:
        """Store the head of a successful request, if it is for one partition."""
        version = context.api_version
        if version < _LOG_START_SINCE or len(request.topic_data) != 1:
            return
        topic = request.topic_data[0]
        if len(topic.partition_data) != 1 or response.responses[0].partition_responses[0].error_code:
            return
        data = topic.partition_data[0]
        partition = find_partition(self._services.replicas, topic, data.index, version)
        is_flexible = ProduceRequest.is_flexible(version)
        records: memoryview = data.records  # type: ignore[assignment] # decoded: a view of the frame
        head_end = _find_head_end(frame, len(records), is_flexible)
        if head_end is None or head_end > _MAX_HEAD_END or partition.is_internal:
            return
        code = bytes(frame[_CODE])
        if code != self._code or len(self._heads) >= _MAX_HEADS:
            self._clear(code, version, is_flexible)
        if head_end not in self._head_ends:
            if len(self._head_ends) >= _MAX_LENGTHS:
                self._clear(code, version, is_flexible)
            self._head_ends += (head_end,)
        head = bytes(frame[_HEAD_AT:head_end])
        known = self._heads.get(head)
        if known is None or known.partition is not partition:
            self._heads[head] = _KnownHead(partition, request, version, context.listener_name)

    def _clear(self, code: bytes, version: int, is_flexible: bool) -> None:
        self._heads.clear()
        self._head_ends = ()
        self._code, self._version, self._is_flexible = code, version, is_flexible


class AuthorizedFastPath:
    """The fast path of a connection to a broker with an authorizer.

    The heads are those of requests that the client may send. They are dropped when its rights may have changed.
    """

    __slots__ = ("_authorizer", "_context", "_fast_path", "_principal", "_services", "_version")

    def __init__(
        self, services: produce.ProduceServices, authorizer: "Authorizer", context: "RequestContext"
    ) -> None:
        self._services = services
        self._authorizer = authorizer
        self._context = context
        self._fast_path = ProduceFastPath(services)
        self._version = authorizer.version
        self._principal = context.principal

    def append_records(self, frame: Buffer) -> bytearray | PendingProduce | None:
        """Append the records of a frame like `ProduceFastPath`, if the client's rights are unchanged."""
        if self._authorizer.version != self._version or self._context.principal is not self._principal:
            self._drop_heads()
            return None
        return self._fast_path.append_records(frame)

    def add_head(
        self, frame: Buffer, context: "RequestContext", request: ProduceRequest, response: ProduceResponse
    ) -> None:
        """Store the head of a successful request, if the client may still send it."""
        if self._authorizer.version != self._version or context.principal is not self._principal:
            self._drop_heads()
        if len(request.topic_data) == 1 and self._may_send(request):
            self._fast_path.add_head(frame, context, request, response)

    def _drop_heads(self) -> None:
        self._fast_path = ProduceFastPath(self._services)
        self._version, self._principal = self._authorizer.version, self._context.principal

    def _may_send(self, request: ProduceRequest) -> bool:
        """Decide anew, because rights may have changed since the request was authorized."""
        rights = Rights(self._authorizer, self._context, APIS[PRODUCE_KEY].needs or ())
        transactional_id = request.transactional_id
        if transactional_id is not None and not rights.allows(
            ResourceType.TRANSACTIONAL_ID, transactional_id, audits_denial=False
        ):
            return False
        (topic,) = request.topic_data
        name = topic.name
        if self._context.api_version >= TOPIC_IDS_SINCE:
            known = self._services.metadata.topics_by_id.get(topic.topic_id)
            if known is None:
                return False
            name = known.name
        return rights.allows(ResourceType.TOPIC, name, audits_denial=False)


def make_fast_path(
    services: produce.ProduceServices, context: "RequestContext"
) -> ProduceFastPath | AuthorizedFastPath:
    """Return the fast path of a connection."""
    rights = context.rights
    return ProduceFastPath(services) if rights is None else AuthorizedFastPath(services, rights.authorizer, context)


def _append_in_open_transaction(partition: "Partition") -> "Callable[..., AppendInfo]":
    """Return an append function that accepts only batches of a transaction that is open on the partition.

    Such batches need no verification.
    """

    def append(
        records: memoryview, *, required_acks: int, now_ms: int, produce_version: int, is_verified: bool
    ) -> "AppendInfo":
        log = partition.log
        if log is not None:
            producer_id, epoch, _ = _unpack_producer(records, PRODUCER_POSITION)
            entry = log.producer_state.producers.get(producer_id)
            if entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch:
                return partition.append_as_leader(
                    records,
                    required_acks=required_acks,
                    now_ms=now_ms,
                    produce_version=produce_version,
                    is_verified=is_verified,
                )
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)

    return append


def _find_head_end(frame: Buffer, records_bytes: int, is_flexible: bool) -> int | None:
    """Return the end of the head, where the length of the records is; None unless empty tagged fields follow them."""
    end = len(frame)
    if not is_flexible:
        return end - records_bytes - 4
    if bytes(frame[end - 3 :]) != _NO_TAGS:
        return None
    length_bytes = max(1, ((records_bytes + 1).bit_length() + 6) // 7)
    return end - 3 - records_bytes - length_bytes
