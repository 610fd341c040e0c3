"""DeleteRecords 0-2: moves the log start of partitions and returns their low watermarks (KIP-107).

A deletion is acknowledged when the new log start is in the checkpoint of the log directory, synced, and all replicas
have reached it: it survives kill -9 and a power loss. Apache Kafka writes that checkpoint once a minute. All partitions
of one log directory, of this request and of others, share a write.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponseDeleteRecordsPartitionResult,
    DeleteRecordsResponseDeleteRecordsTopicResult,
)
from odradek.protocol.schema import rows
from odradek.server.fetching.purgatory import DelayedOperation
from odradek.server.work.slices import ROWS_PER_STEP, SMALL_REQUEST_STEPS
from odradek.server.work.waits import shield

if TYPE_CHECKING:
    from odradek.log.log_manager import LogManager
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.request import RequestContext
    from odradek.server.work.clock import Clock
    from odradek.server.work.slices import Slices

MIN_DISK_WAIT_MS: Final = 1_000
"""Shortest timeout while a checkpoint is being written. The request's timeout is for followers: with 0 the request
succeeds if there are none."""

_INVALID_LOW_WATERMARK: Final = -1
_Row = DeleteRecordsResponseDeleteRecordsPartitionResult


class DeleteRecordsServices(Protocol):
    """The parts of a broker that DeleteRecords needs."""

    logs: "LogManager"
    reactor: "Clock"
    replicas: "ReplicaManager"
    slices: "Slices"


def delete_records(
    services: DeleteRecordsServices, context: "RequestContext", request: DeleteRecordsRequest
) -> "Deferred[DeleteRecordsResponse]":
    """Move the log start of each partition, also if the connection is lost. Each partition has its own error."""
    timeout_ms = request.timeout_ms
    moved = services.slices.run(_move_log_starts(services, request), SMALL_REQUEST_STEPS)
    return shield(moved).addCallback(lambda pending: pending.wait(timeout_ms))


def _move_log_starts(
    services: DeleteRecordsServices, request: DeleteRecordsRequest
) -> "Generator[None, None, _PendingRequest]":
    """Move one log start in each step, then begin to write them. A repeated partition gets the last offset given.

    Collections are emptied in steps too: freeing a large one at once takes long.
    """
    offsets: OrderedDict[tuple[str, int], int] = OrderedDict()
    count = 0
    for topic in request.topics:
        count += 1
        for requested in topic.partitions:
            offsets[topic.name, requested.partition_index] = requested.offset
            count += 1
            if count % ROWS_PER_STEP == 0:
                yield
        if count % ROWS_PER_STEP == 0:
            yield
    response = DeleteRecordsResponse()
    by_name: dict[str, DeleteRecordsResponseDeleteRecordsTopicResult] = {}
    deletions = []
    while offsets:
        (name, index), offset = offsets.popitem(last=False)
        result = by_name.get(name)
        if result is None:
            result = by_name[name] = DeleteRecordsResponseDeleteRecordsTopicResult(name=name)
            response.topics.append(result)
        row = _Row(partition_index=index, low_watermark=_INVALID_LOW_WATERMARK)
        result.partitions.append(row)
        try:
            partition = services.replicas.get(name, index)
            row.low_watermark = partition.delete_records(offset)
            log = partition.leading_log()
        except KafkaError as error:
            _refuse(row, error)
        else:
            deletions.append(_Deletion(partition, log.log_start_offset, log.log_directory, row))
        yield
    while by_name:
        by_name.popitem()
        yield
    pending = _PendingRequest(services, response, deletions)
    pending.save()
    return pending


def delete_records_error(request: DeleteRecordsRequest, version: int, error: KafkaError) -> DeleteRecordsResponse:
    """Return `error` for every partition."""
    return DeleteRecordsResponse(
        topics=rows(
            lambda topic: DeleteRecordsResponseDeleteRecordsTopicResult(
                name=topic.name,
                partitions=rows(
                    lambda requested: _Row(
                        partition_index=requested.partition_index,
                        low_watermark=_INVALID_LOW_WATERMARK,
                        error_code=error.code,
                    ),
                    topic.partitions,
                ),
            ),
            request.topics,
        )
    )


class _Deletion(NamedTuple):
    """A partition whose log start moved to `offset`, and its row of the response."""

    partition: "Partition"
    offset: int
    log_directory: str
    row: _Row


class _PendingRequest:
    """A request whose log starts have moved, and whose response waits.

    A log start that moved does not move back if its checkpoint cannot be written: clients may have received it.
    The client gets the error; its retry writes the checkpoint again.
    """

    def __init__(
        self, services: DeleteRecordsServices, response: DeleteRecordsResponse, deletions: list[_Deletion]
    ) -> None:
        self._services = services
        self._response = response
        self._pending = {deletion.partition: deletion for deletion in deletions}
        self._directories = dict.fromkeys(deletion.log_directory for deletion in deletions)
        self._outcomes: dict[str, Exception | None] = {}
        self._operation: DelayedOperation[DeleteRecordsResponse] | None = None

    def save(self) -> None:
        """Begin to write the checkpoints."""
        for path in self._directories:
            self._services.logs.checkpoint_log_starts(path, partial(self._on_saved, path))

    def wait(self, timeout_ms: int) -> "DeleteRecordsResponse | Deferred[DeleteRecordsResponse]":
        """Return the response, or a Deferred of it."""
        self._settle(list(self._pending))
        if not self._pending:
            return self._response
        if len(self._outcomes) < len(self._directories):
            timeout_ms = max(timeout_ms, MIN_DISK_WAIT_MS)
        self._operation = DelayedOperation(self._settle_changed, self._expire)
        # A partition without followers has nothing to wait for: it is not watched.
        followed = [partition for partition in self._pending if partition.followers]
        return self._operation.wait(self._services.reactor, timeout_ms, followed)

    def _on_saved(self, path: str, error: Exception | None) -> None:
        """Record that the checkpoint of a directory was written, or that its write failed with `error`."""
        self._outcomes[path] = error
        if self._operation is not None:
            self._settle([one.partition for one in self._pending.values() if one.log_directory == path])
            self._operation.wake()

    def _settle_changed(self) -> DeleteRecordsResponse | None:
        """Complete the rows of the partitions that have changed; return the response when no row is left."""
        assert self._operation is not None
        changed = self._operation.changed
        partitions = [watch.partition for watch in changed]
        changed.clear()
        self._settle(partitions)
        return None if self._pending else self._response

    def _settle(self, partitions: "Iterable[Partition]") -> None:
        """Complete the rows that can be completed."""
        for partition in partitions:
            deletion = self._pending.get(partition)
            if deletion is not None and self._try_settle(deletion):
                del self._pending[partition]

    def _try_settle(self, deletion: _Deletion) -> bool:
        """Complete the row of a deletion; return False if it has to wait."""
        partition, offset, directory, row = deletion
        try:
            partition.leading_log()
            error = self._outcomes.get(directory)
            if error is not None:
                raise error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        except KafkaError as failure:
            _refuse(row, failure)
            return True
        if directory not in self._outcomes or partition.low_watermark < offset:
            return False
        # Not the current low watermark: another request may have moved it further, and that may not be synced.
        row.low_watermark = offset
        return True

    def _expire(self) -> DeleteRecordsResponse:
        for deletion in self._pending.values():
            deletion.row.error_code = ErrorCode.REQUEST_TIMED_OUT
        return self._response


def _refuse(row: _Row, error: KafkaError) -> None:
    row.error_code = error.code
    row.low_watermark = _INVALID_LOW_WATERMARK
