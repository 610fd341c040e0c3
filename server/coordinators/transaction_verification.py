"""Transaction verification (KIP-890): a check with the coordinator before a transaction's first batch on a partition.

With transaction version 2 the verification also adds the partition to the transaction. Older producers have sent
AddPartitionsToTxn, and the verification checks that the transaction contains the partition. Otherwise a delayed batch
could be appended after the end of its transaction and start one that is never ended. A partition that already has a
batch of the transaction needs no verification.
"""

from collections.abc import Callable, Generator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from odradek.coordinator.request_context import RequestContext
from odradek.protocol.batches.record_batch import PRODUCER, PRODUCER_POSITION, RECORD_BATCH_OVERHEAD
from odradek.protocol.errors import ErrorCode, KafkaError, read_error_code
from odradek.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnRequestAddPartitionsToTxnTransaction,
)
from odradek.protocol.messages.produce import ProduceRequest
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from odradek.server.produce_request import TOPIC_IDS_SINCE, find_partition, is_transactional_batch
from odradek.server.work.waits import Wait, map_reply

if TYPE_CHECKING:
    from odradek.log.producers.state import Verification
    from odradek.replication.metadata.image import ClusterMetadata
    from odradek.replication.replicas.partition import Partition
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.config import BrokerConfig
    from odradek.server.coordinators.remote_verification import CoordinatorReply, RemoteCoordinators
    from odradek.server.coordinators.transactions import TransactionCoordinatorRuntime
    from odradek.server.request import Reply
    from odradek.server.work.clock import Clock
    from odradek.server.work.slices import Slices

PARTITIONS_PER_STEP: Final = 100
"""Partitions of one step, which takes up to 0.5 ms."""

NO_SEQUENCE: Final = -1
_FIRST_PAUSE_MS: Final = 1
"""Short, because in most cases the last markers are already being written. The pause doubles with each retry."""
_unpack_producer: Final = PRODUCER.unpack_from
_AS_BROKER: Final = RequestContext(api_version=5)
"""The context of AddPartitionsToTxn in the version that brokers send."""

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # The coordinator's broker does not know another partition of the request yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)


class ClientSupport(Enum):
    """Support of a client for KIP-890, determined by the version of its request."""

    OLD = 0
    ABORTABLE = 1
    """The client supports TRANSACTION_ABORTABLE."""
    ADDS = 2
    """Transaction version 2: the request adds the partition, and every transaction has its own epoch."""

    @classmethod
    def for_produce(cls, version: int) -> "ClientSupport":
        return cls.ADDS if version > 11 else cls.ABORTABLE if version > 10 else cls.OLD

    @classmethod
    def for_offset_commit(cls, version: int) -> "ClientSupport":
        return cls.ADDS if version > 4 else cls.ABORTABLE if version > 3 else cls.OLD


class TransactionWriter(NamedTuple):
    """The producer of a transactional write, and its transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    support: ClientSupport


class VerificationResult(NamedTuple):
    """Result of a verification: errors by partition, and the partitions' open verifications (`guards`).

    missing: the errors of partitions that this broker did not have when the verification began, by topic name or id,
        and index
    """

    writer: TransactionWriter
    errors: dict["Partition", ErrorCode]
    guards: dict["Partition", "Verification"]
    is_checked: bool = True
    missing: Mapping[tuple[str | bytes, int], KafkaError] = MappingProxyType({})

    def error(self, partition: "Partition") -> KafkaError | None:
        """Return the error of a partition for a Produce response; None if the batch may be appended.

        Retriable errors become NOT_ENOUGH_REPLICAS, after which clients of all versions retry without a metadata
        request. A partition that this broker has got since then has the error of the time when it was missing: the
        coordinator was not asked about it.
        """
        code = self.errors.get(partition)
        if code is None:
            if not self.missing:
                return None
            index = partition.index
            return self.missing.get((partition.topic, index)) or self.missing.get((partition.topic_id, index))
        if code is ErrorCode.INVALID_TXN_STATE:
            return KafkaError(code, "Partition was not added to the transaction")
        if code in _RETRIABLE or (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and self.writer.support is not ClientSupport.ADDS
        ):
            return KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
            )
        return KafkaError(code)

    def may_append(self, partition: "Partition") -> bool:
        """Return whether the verification is still open; otherwise only a batch of an open transaction is accepted."""
        if not self.is_checked:
            return True
        guard = self.guards.get(partition)
        log = partition.log
        return (
            guard is not None
            and log is not None
            and log.producer_state.verifications.get(self.writer.producer_id) is guard
        )


class _Batches(NamedTuple):
    """The transactional batches of a Produce request.

    sequences: the first sequence number of each partition's batch
    producers: the producer ids and epochs of the batches
    missing: see `VerificationResult`
    """

    sequences: dict["Partition", int]
    producers: set[tuple[int, int]]
    missing: dict[tuple[str | bytes, int], KafkaError]


class VerificationServices(Protocol):
    """The parts of a broker that verification uses."""

    config: "BrokerConfig"
    metadata: "ClusterMetadata"
    monotonic_ms: Callable[[], int]
    reactor: "Clock"
    replicas: "ReplicaManager"
    slices: "Slices"

    @property
    def transactions(self) -> "TransactionCoordinatorRuntime": ...


class TransactionVerifier:
    """Verifies transactions with their coordinators.

    remote: coordinators on other brokers; None for a broker without others
    """

    def __init__(self, services: VerificationServices, remote: "RemoteCoordinators | None" = None) -> None:
        self._services = services
        self._remote = remote

    def verify_produce(self, request: ProduceRequest, version: int) -> "Reply[VerificationResult | None]":
        """Verify the partitions of a transactional Produce. Return the result or a Deferred of it.

        The result is None if no batch is transactional. Raises KafkaError INVALID_PRODUCER_ID_MAPPING for several
        producers.
        """
        found = _Batches({}, set(), {})
        collected = self._run(
            self._collect_transactional(request, version, found),
            sum([len(topic.partition_data) for topic in request.topic_data]),
        )
        return map_reply(collected, lambda _: self._verify_batches(request, version, found))

    def _collect_transactional(
        self, request: ProduceRequest, version: int, found: "_Batches"
    ) -> Generator[None, None, None]:
        count = 0
        for topic in request.topic_data:
            for data in topic.partition_data:
                count += 1
                if not count % PARTITIONS_PER_STEP:
                    yield
                records: memoryview | None = data.records  # type: ignore[assignment] # decoded: a view of the frame
                if records is None or not is_transactional_batch(records) or len(records) < RECORD_BATCH_OVERHEAD:
                    continue
                producer_id, epoch, sequence = _unpack_producer(records, PRODUCER_POSITION)
                if producer_id < 0:
                    continue
                found.producers.add((producer_id, epoch))
                try:
                    partition = find_partition(self._services.replicas, topic, data.index, version)
                except KafkaError as error:
                    topic_key = topic.topic_id if version >= TOPIC_IDS_SINCE else topic.name
                    found.missing[topic_key, data.index] = error
                else:
                    found.sequences[partition] = sequence

    def _verify_batches(
        self, request: ProduceRequest, version: int, found: "_Batches"
    ) -> "Reply[VerificationResult | None]":
        if not found.producers:
            return None
        if len(found.producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )
        ((producer_id, epoch),) = found.producers
        support = ClientSupport.for_produce(version)
        writer = TransactionWriter(request.transactional_id or "", producer_id, epoch, support)
        verified = self.verify(writer, found.sequences)
        if support is ClientSupport.ADDS:
            # The previous transaction is usually complete very soon, much earlier than the client would retry.
            config = self._services.config
            max_retry_ms = min(config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms)
            until_ms = self._services.monotonic_ms() + max_retry_ms
            verified = map_reply(
                verified, lambda first: self._retry(first, found.sequences, until_ms, _FIRST_PAUSE_MS)
            )
        if found.missing:
            verified = map_reply(verified, lambda result: result._replace(missing=found.missing))
        return verified  # type: ignore[return-value] # Deferred is invariant

    def _retry(
        self, verified: VerificationResult, batches: "dict[Partition, int]", until_ms: int, pause_ms: int
    ) -> "Reply[VerificationResult]":
        """Repeat the verification while it fails with CONCURRENT_TRANSACTIONS, until `until_ms`."""
        services = self._services
        if ErrorCode.CONCURRENT_TRANSACTIONS not in verified.errors.values() or services.monotonic_ms() >= until_ms:
            return verified
        pause: Wait[None] = Wait(lambda: "end of the producer's previous transaction", lambda _: timer.cancel())
        pause_ms = min(pause_ms, services.config.add_partitions_to_txn_retry_backoff_ms)
        timer = services.reactor.callLater(pause_ms / 1000, pause.callback, None)
        return pause.addCallback(
            lambda _: map_reply(
                self.verify(verified.writer, batches),
                lambda repeated: self._retry(repeated, batches, until_ms, pause_ms * 2),
            )
        )

    def verify(self, writer: TransactionWriter, sequences: "dict[Partition, int]") -> "Reply[VerificationResult]":
        """Verify that partitions may be written. Return the result or a Deferred of it.

        `sequences` has the first sequence number of the batch for each partition.
        """
        adds = writer.support is ClientSupport.ADDS
        is_checked = self._services.config.transaction_partition_verification_enable
        verified = VerificationResult(writer, {}, {}, is_checked)
        if not adds and not is_checked:
            return verified
        begun = self._run(self._begin(verified, sequences), len(sequences))
        return map_reply(begun, lambda _: self._verify_guarded(verified))

    def _begin(self, verified: VerificationResult, sequences: "dict[Partition, int]") -> Generator[None, None, None]:
        """Begin the verification of each partition, before the request to the coordinator."""
        writer = verified.writer
        adds = writer.support is ClientSupport.ADDS
        monotonic_ms = self._services.monotonic_ms()
        for number, (partition, sequence) in enumerate(sequences.items(), 1):
            if not number % PARTITIONS_PER_STEP:
                yield
            try:
                guard = partition.leading_log().producer_state.begin_verification(
                    writer.producer_id, writer.producer_epoch, sequence, monotonic_ms, adds_partition=adds
                )
            except KafkaError as error:
                verified.errors[partition] = error.code
            else:
                if guard is not None:
                    verified.guards[partition] = guard

    def _verify_guarded(self, verified: VerificationResult) -> "Reply[VerificationResult]":
        if not verified.guards:
            return verified
        result = self._add_or_verify(verified.writer, list(verified.guards))
        if not isinstance(result, Deferred):
            return _record_result(verified, result)
        recorded: Deferred[VerificationResult] = result.addCallback(lambda response: _record_result(verified, response))
        return recorded

    def _run(self, steps: Generator[None, None, None], count: int) -> "Reply[None]":
        """Run the steps for `count` partitions. Return None, or a Deferred of it if they are run in slices."""
        if count > PARTITIONS_PER_STEP:
            return self._services.slices.run(steps)
        for _ in steps:
            pass
        return None

    def _add_or_verify(self, writer: TransactionWriter, partitions: "list[Partition]") -> "Reply[CoordinatorReply]":
        """Send AddPartitionsToTxn to the coordinator. Return the result or a Deferred of it."""
        services = self._services
        coordinators = services.transactions
        index = coordinators.index_of(writer.transactional_id)
        coordinator = services.metadata.partition(TRANSACTION_STATE_TOPIC, index)
        if coordinator is None or coordinator.leader not in services.metadata.brokers:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.index)
        transaction = AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(
            transactional_id=writer.transactional_id,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            verify_only=writer.support is not ClientSupport.ADDS,
            topics=[
                AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        if self._remote is not None and coordinator.leader != services.config.node_id:
            return self._remote.add_or_verify(coordinator.leader, transaction)
        return coordinators.run_on(
            index, lambda shard, token, now_ms: shard.add_or_verify_partitions(transaction, _AS_BROKER, token, now_ms)
        )


def _record_result(verified: VerificationResult, result: "CoordinatorReply") -> VerificationResult:
    """Add the coordinator's errors to `verified`, as errors that the client supports."""
    support = verified.writer.support
    if isinstance(result, ErrorCode):
        for partition in verified.guards:
            verified.errors[partition] = _convert_error(result, support)
        return verified
    by_name = {(partition.topic, partition.index): partition for partition in verified.guards}
    for topic in result.topic_results:
        for row in topic.results_by_partition:
            if row.partition_error_code:
                code = read_error_code(row.partition_error_code)
                verified.errors[by_name[topic.name, row.partition_index]] = _convert_error(code, support)
    return verified


def _convert_error(code: ErrorCode, support: ClientSupport) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is ClientSupport.OLD:
        return ErrorCode.INVALID_TXN_STATE
    return code
