"""Transactions of the topic sink: records and marker are written together. Does not use Spark.

All attempts at a transaction have the same records and the transactional id of its slot. An attempt has three steps.

1. Fence: `init_transactions` aborts the open transaction of an earlier attempt and fences its producer.
2. Read the marker, an offset of a group. If the records are written, stop.
3. Otherwise write records, dead letters and marker in one transaction.

This order is safe. After step 1 only this attempt can commit with the transactional id, until a later attempt fences
it. So no other attempt commits between step 2 and the commit of step 3, and the marker that step 2 has read is still
valid in step 3; an attempt that was suspended and resumes late gets PRODUCER_FENCED. Spark computes the first records
during steps 1 and 2; they are buffered and produced in step 3. If the marker shows that the transaction is written, the
records are only counted.

A producer is used for one attempt only. A reused producer would often be fenced already, and the error would appear
only after Spark has computed the records; a new producer takes a tenth of a second.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from odradek.spark_it.definition.settings import PipelineSettings
from odradek.spark_it.exactly_once.slots import MarkerError, SinkTransaction, TransactionalSlot
from odradek.spark_it.interfaces.marker import BatchMarker
from odradek.spark_it.interfaces.sink import SinkError

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]

_NOT_READY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._WAIT_COORD,
)
"""Errors of a coordinator that is not ready yet."""
_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)
_RETRY_PAUSE_S = 0.05
_ABORT_TIMEOUT_S = 10.0
TRANSACTION_TIMEOUT_MS = 120_000
_MAX_PREFETCHED = 16
_CONNECTIONS = 2
"""librdkafka connects to a bootstrap address, and again once it has the broker's id. Without an open connection it
waits half a second before it looks for the coordinator again. A metadata request returns once a connection is open."""


class FencedError(SinkError):
    """A later attempt has fenced this one, which is aborted. The marker shows whether the transaction is written."""


class TopicRecords(NamedTuple):
    """Records for one topic, as columns of the same length."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None = None
    is_dead: bool = False


class SinkTransactionOutcome(NamedTuple):
    """Numbers of rows and dead letters in a transaction. `is_new` is true if this attempt wrote it."""

    rows: int
    dead_letters: int
    is_new: bool


@dataclass(frozen=True)
class Clients:
    """Factory of an attempt's clients, serialized to the worker that runs the attempt. Configurations are librdkafka's.

    `timeout_s` limits a request, `commit_timeout_s` the delivery and commit of a transaction.
    """

    bootstrap_servers: str
    producer_configuration: Mapping[str, str] = field(default_factory=dict)
    consumer_configuration: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    commit_timeout_s: float = 120.0

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Return the factory for a pipeline's settings."""
        passed = settings.passed
        return cls(",".join(settings.bootstrap_servers), passed["producer.override."], passed["admin.override."])

    def make_producer(self, transactional_id: str) -> Producer:
        """Return a transactional producer. Raises KafkaException for an invalid configuration."""
        transaction_ms = self.producer_configuration.get("transaction.timeout.ms", "")
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "client.id": transactional_id,
                "log_level": 0,
                # Large requests: throughput matters, the latency of a record does not.
                "linger.ms": 50,
                "batch.num.messages": 20_000,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 262_144,
                # A failed delivery fails the transaction, so no report is needed for each record.
                "delivery.report.only.error": True,
                # A metadata request for a deleted topic must not create it.
                "allow.auto.create.topics": False,
                # The partitioner of the Java producer, for keys.
                "partitioner": "murmur2_random",
                # librdkafka requires message.timeout.ms <= transaction.timeout.ms.
                "message.timeout.ms": min(60_000, int(transaction_ms)) if transaction_ms.isdecimal() else 60_000,
                # The maximum time from the first record that Spark computes to the last. If the process is killed and
                # the pipeline is not restarted, read_committed readers wait this long for the open transaction.
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                **self.producer_configuration,
                "transactional.id": transactional_id,
            }
        )

    def make_consumer(self, group: str, *, is_stable: bool = True) -> Consumer:
        """Return a consumer that joins no group and only reads the group's offsets.

        With `is_stable` it waits for open transactions that include offsets of the group.
        """
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 0,
                **self.consumer_configuration,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if is_stable else "read_uncommitted",
            }
        )


def write_transaction(
    transaction: SinkTransaction, records: Iterable[TopicRecords], clients: Clients
) -> SinkTransactionOutcome:
    """Write a transaction unless it is already written. In both cases all records are consumed and counted.

    Raises SinkError: FencedError, MarkerError, or one with the error of Kafka.
    """
    with _open_attempt(transaction.slot, clients) as attempt:
        is_written, records = _prefetch_while(lambda: attempt.begin_unless_written(transaction), records)
        return _count_records(records, is_new=False) if is_written else attempt.commit(records)


def _prefetch_while(
    start_transaction: Callable[[], T], records: Iterable[TopicRecords]
) -> tuple[T, Iterator[TopicRecords]]:
    """Run `start_transaction` in a thread while the first records are computed. Return its result and all records."""
    source = iter(records)
    prefetched: list[TopicRecords] = []
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(start_transaction)
        while not future.done() and len(prefetched) < _MAX_PREFETCHED:
            records_part = next(source, None)
            if records_part is None:
                break
            prefetched.append(records_part)
        return future.result(), chain(prefetched, source)


def fence_slot(slot: TransactionalSlot, clients: Clients) -> None:
    """Abort the open transaction of a slot, so that readers do not wait for it, and fence earlier attempts. Raises
    SinkError.
    """
    with _open_attempt(slot, clients) as attempt:
        attempt.fence()


def claim_slot(slot: TransactionalSlot, marker: BatchMarker, replaced: Set[str], clients: Clients) -> None:
    """Commit the first marker of a state in a slot, unless the slot has one. Of two concurrent claims one succeeds.

    Raises SinkError: MarkerError if the marker belongs to a state that is not in `replaced`.
    """
    with _open_attempt(slot, clients) as attempt:
        attempt.fence()
        existing = attempt.read_marker()
        if existing is not None and existing.state == marker.state:
            return
        check_claim(slot, existing, replaced)
        attempt.begin(marker._replace(at_ms=_now_ms()))
        attempt.commit(())


def check_claim(slot: TransactionalSlot, marker: BatchMarker | None, replaced: Set[str]) -> None:
    """Raise MarkerError if a slot's marker belongs to a state that is not in `replaced`."""
    if marker is not None and marker.state and marker.state not in replaced:
        what = f"the offset of group {slot.group} for {slot.topic}-{slot.partition}"
        raise MarkerError(f"{what} was claimed at the same time by another copy of this pipeline; run only one")


def renew_marker(slot: TransactionalSlot, clients: Clients) -> None:
    """Commit a slot's marker again, so that it does not expire. Does nothing if there is none.

    The renewal fences earlier attempts. Otherwise it could revert a marker that a concurrent attempt commits after the
    read. Raises SinkError.
    """
    with _open_attempt(slot, clients) as attempt:
        attempt.fence()
        marker = attempt.read_marker()
        if marker is not None:
            attempt.begin(marker._replace(at_ms=_now_ms()))
            attempt.commit(())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Attempt:
    """An attempt at a transaction of a slot. After `fence` no earlier attempt can commit."""

    def __init__(self, slot: TransactionalSlot, clients: Clients, producer: Producer, consumer: Consumer) -> None:
        self._slot = slot
        self._clients = clients
        self._producer = producer
        self._consumer = consumer

    def fence(self) -> None:
        for _ in range(_CONNECTIONS):
            self._producer.list_topics(self._slot.topic, self._clients.timeout_s)
        self._retry_until_ready(lambda: self._producer.init_transactions(self._clients.timeout_s))

    def read_marker(self) -> BatchMarker | None:
        partitions = [TopicPartition(self._slot.topic, self._slot.partition)]
        timeout_s = self._clients.timeout_s
        [committed] = self._retry_until_ready(lambda: self._consumer.committed(partitions, timeout_s))
        if committed.error is not None:
            raise KafkaException(committed.error)
        return None if committed.offset < 0 else BatchMarker.read(committed.offset, committed.metadata)

    def begin_unless_written(self, transaction: SinkTransaction) -> bool:
        """Fence, and return whether the transaction is already written; if it is not, begin it."""
        self.fence()
        if transaction.is_written(self.read_marker()):
            return True
        self.begin(
            BatchMarker(transaction.end, transaction.generation, transaction.batch, _now_ms(), transaction.state)
        )
        return False

    def begin(self, marker: BatchMarker) -> None:
        """Begin the transaction and send the marker, so that only the commit follows the last record."""
        self._producer.begin_transaction()
        offset = TopicPartition(self._slot.topic, self._slot.partition, marker.offset, marker.metadata)
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([offset], group, self._clients.timeout_s)

    def commit(self, records: Iterable[TopicRecords]) -> SinkTransactionOutcome:
        outcome = _count_records(map(self._produce, records), is_new=True)
        self._producer.commit_transaction(self._clients.commit_timeout_s)
        return outcome

    def _produce(self, records: TopicRecords) -> TopicRecords:
        # This loop limits the throughput of the topic sink, so it does nothing but one call per record.
        produce, topic = self._producer.produce, records.topic
        if records.headers is None:
            for key, value in zip(records.keys, records.values, strict=True):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._retry_while_full(partial(produce, topic, value, key))
            return records
        for key, value, headers in zip(records.keys, records.values, records.headers, strict=True):
            kafka_headers: Any = None if headers is None else list(headers)
            try:
                produce(topic, value, key, headers=kafka_headers)
            except BufferError:
                self._retry_while_full(partial(produce, topic, value, key, headers=kafka_headers))
        return records

    def _retry_while_full(self, produce: Callable[[], None]) -> None:
        """Retry while librdkafka's queue is full. This terminates: each message is delivered, or fails after
        message.timeout.ms."""
        while True:
            self._producer.poll(_RETRY_PAUSE_S)
            with contextlib.suppress(BufferError):
                return produce()

    def _retry_until_ready(self, request: Callable[[], T]) -> T:
        """Retry a request while the coordinator is not ready."""
        give_up_at = time.monotonic() + self._clients.timeout_s
        while True:
            try:
                return request()
            except KafkaException as error:
                if _get_kafka_error(error).code() not in _NOT_READY or time.monotonic() > give_up_at:
                    raise
            time.sleep(_RETRY_PAUSE_S)

    def abort(self, cause: BaseException) -> SinkError | None:
        """Abort the open transaction, if any. Return `cause` as a SinkError; None if it is not an error of Kafka.

        If the abort fails, the next attempt aborts the transaction when it fences.
        """
        error = cause if isinstance(cause, KafkaException) else None
        try:
            self._producer.abort_transaction(_ABORT_TIMEOUT_S)
        except KafkaException as failed:
            # If `produce` failed because of a fatal error, only this call returns the fatal error itself.
            if error is not None and _get_kafka_error(failed).fatal():
                error = failed
            self._producer.purge()
        return None if error is None else self._make_error(_get_kafka_error(error))

    def close(self) -> None:
        """Close the clients. A producer is closed with its last reference, and a stored exception references this
        attempt through its frames, so the reference is deleted."""
        self._consumer.close()
        del self._producer

    def _make_error(self, error: KafkaError) -> SinkError:
        what = f"cannot write {self._slot.transactional_id} at {self._clients.bootstrap_servers}"
        if error.code() in _FENCED:
            return FencedError(
                f"{what}: a later attempt has fenced it, or it took longer than transaction.timeout.ms "
                f"({error.str()}); check that the pipeline runs only once, or reduce max.offsets.per.trigger, or "
                "increase producer.override.transaction.timeout.ms"
            )
        return SinkError(f"{what}: {error.str()}", is_retriable=is_transient(error))


@contextlib.contextmanager
def _open_attempt(slot: TransactionalSlot, clients: Clients) -> Iterator[_Attempt]:
    """Create an attempt; at the end abort its transaction if it is open. Errors of Kafka are raised as SinkError."""
    try:
        # The consumer is created here so that it connects while the producer fences.
        attempt = _Attempt(
            slot, clients, clients.make_producer(slot.transactional_id), clients.make_consumer(slot.group)
        )
    except KafkaException as error:
        what = _get_kafka_error(error).str()
        raise SinkError(f"invalid producer.override or admin.override: {what}") from None
    try:
        yield attempt
    except BaseException as cause:
        failure = attempt.abort(cause)
        if failure is not None:
            raise failure from None
        raise
    finally:
        attempt.close()


def _count_records(records: Iterable[TopicRecords], *, is_new: bool) -> SinkTransactionOutcome:
    rows = dead_letters = 0
    for part in records:
        if part.is_dead:
            dead_letters += len(part.values)
        else:
            rows += len(part.values)
    return SinkTransactionOutcome(rows, dead_letters, is_new)


def _get_kafka_error(error: KafkaException) -> KafkaError:
    kafka_error: KafkaError = error.args[0]
    return kafka_error


_PERMANENT = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError._INVALID_ARG,
    KafkaError.UNSUPPORTED_VERSION,
)


def is_transient(error: KafkaError) -> bool:
    """Return whether an error may be transient, such as an unavailable broker or a new leader.

    A new attempt has a new producer, so an error that is fatal to one producer may be transient for the sink.
    """
    return error.code() not in _PERMANENT
