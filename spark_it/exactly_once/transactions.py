"""Writes one transaction of the topic sink: its records, and the marker that they are written. Does not use Spark.

A transaction has the same records on every attempt, and its slot's transactional id. An attempt has three steps.

1. Fence: `init_transactions` aborts the open transaction of an earlier attempt and fences its producer.
2. Read the marker, an offset of a group. If the records are written, stop.
3. Otherwise write records, dead letters and marker in one transaction.

The order makes it safe. After step 1 only this attempt can commit under the transactional id, until a later attempt
fences it. So nothing is committed between step 2 and the commit of step 3: an attempt that was suspended and resumes
late is refused. For the same reason the marker of step 2 is still valid in step 3. Spark makes the first records during
steps 1 and 2: they are kept, and produced once step 3 begins. If the marker shows that the transaction is written, the
records are counted and dropped.

A producer is used for one attempt only. A kept producer would often be fenced by then, which shows only after the
records of the attempt are consumed; a new producer takes a tenth of a second.
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
from odradek.spark_it.interfaces.marker import Marker
from odradek.spark_it.interfaces.sink import SinkError

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]

_NOT_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._WAIT_COORD,
)
"""What a coordinator says that will answer in a moment."""
_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)
_BETWEEN_TRIES_S = 0.05
_ABORT_S = 10.0
TRANSACTION_MS = 120_000
_TAKEN_AHEAD = 16
_CONNECTIONS = 2
"""librdkafka connects to a broker by its address, and once more when it knows its number. Without a connection it waits
half a second before it looks for the coordinator again; a question that was answered says that there is one."""


class FencedError(SinkError):
    """A later attempt has fenced this one, which is aborted. The marker shows whether the transaction is written."""


class Records(NamedTuple):
    """Records for one topic, as columns of the same length."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None = None
    is_dead: bool = False


class TransactionOutcome(NamedTuple):
    """Numbers of rows and dead letters in a transaction. `is_new` if this attempt wrote it."""

    rows: int
    dead_letters: int
    is_new: bool


@dataclass(frozen=True)
class Clients:
    """Factory of an attempt's clients, which is sent to where the attempt runs. Configurations are librdkafka's.

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

    def producer(self, transactional_id: str) -> Producer:
        """Return a transactional producer. Raises KafkaException for an invalid configuration."""
        transaction_ms = self.producer_configuration.get("transaction.timeout.ms", "")
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "client.id": transactional_id,
                "log_level": 0,
                # Large requests: nobody waits for a single record.
                "linger.ms": 50,
                "batch.num.messages": 20_000,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 262_144,
                # A failed delivery fails the transaction, so no report is needed for each record.
                "delivery.report.only.error": True,
                # Asking about a topic that was deleted must not bring it back.
                "allow.auto.create.topics": False,
                # Where Kafka's own clients put a key.
                "partitioner": "murmur2_random",
                # librdkafka wants it no longer than a transaction may take.
                "message.timeout.ms": min(60_000, int(transaction_ms)) if transaction_ms.isdecimal() else 60_000,
                # What a transaction may take, from the first record that Spark makes to the last. So long do readers of
                # committed records wait behind a transaction whose processes were killed, if no other run follows.
                "transaction.timeout.ms": TRANSACTION_MS,
                **self.producer_configuration,
                "transactional.id": transactional_id,
            }
        )

    def consumer(self, group: str, *, is_stable: bool = True) -> Consumer:
        """Return a consumer that joins no group and only reads its offsets.

        With `is_stable` it waits for the end of transactions that have committed offsets.
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


def write(transaction: SinkTransaction, records: Iterable[Records], clients: Clients) -> TransactionOutcome:
    """Write a transaction unless it is written. Consumes all records either way, to count them.

    Raises SinkError: FencedError, MarkerError, or one with the error of Kafka.
    """
    with _attempt(transaction.slot, clients) as attempt:
        is_written, records = _meanwhile(lambda: attempt.begins(transaction), records)
        return _counted(records, is_new=False) if is_written else attempt.commit(records)


def _meanwhile(do: Callable[[], T], records: Iterable[Records]) -> tuple[T, Iterator[Records]]:
    """Does it while the first records are made; returns what comes of it, and all records, of which none has gone
    anywhere."""
    source = iter(records)
    taken: list[Records] = []
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(do)
        while not doing.done() and len(taken) < _TAKEN_AHEAD:
            some = next(source, None)
            if some is None:
                break
            taken.append(some)
        return doing.result(), chain(taken, source)


def fence(slot: TransactionalSlot, clients: Clients) -> None:
    """Abort the open transaction of a slot: readers do not wait for it, and earlier attempts cannot commit. Raises
    SinkError.
    """
    with _attempt(slot, clients) as attempt:
        attempt.fence()


def claim(slot: TransactionalSlot, marker: Marker, replaced: Set[str], clients: Clients) -> None:
    """Commit the first marker of a state in a slot, unless the state has one there. Of two concurrent claims one wins.

    Raises SinkError: MarkerError if the marker belongs to a state that is not to be replaced.
    """
    with _attempt(slot, clients) as attempt:
        attempt.fence()
        found = attempt.marker()
        if found is not None and found.state == marker.state:
            return
        check_claim(slot, found, replaced)
        attempt.begin(marker._replace(at_ms=_now_ms()))
        attempt.commit(())


def check_claim(slot: TransactionalSlot, found: Marker | None, replaced: Set[str]) -> None:
    """Raise MarkerError if a slot's marker belongs to a state that is not to be replaced."""
    if found is not None and found.state and found.state not in replaced:
        what = f"the offset of group {slot.group} for {slot.topic}-{slot.partition}"
        raise MarkerError(f"{what} was claimed at the same time by another copy of this pipeline; run only one")


def renew(slot: TransactionalSlot, clients: Clients) -> None:
    """Commit a marker again, so that it does not expire. Does nothing if there is none.

    It is an attempt like any other: a plain commit of the marker just read could revert the commit of a concurrent
    attempt. Raises SinkError.
    """
    with _attempt(slot, clients) as attempt:
        attempt.fence()
        marker = attempt.marker()
        if marker is not None:
            attempt.begin(marker._replace(at_ms=_now_ms()))
            attempt.commit(())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Attempt:
    """An attempt at a transaction of a slot; nobody else can commit there once `fence` is done."""

    def __init__(self, slot: TransactionalSlot, clients: Clients, producer: Producer, consumer: Consumer) -> None:
        self._slot = slot
        self._clients = clients
        self._producer = producer
        self._consumer = consumer

    def fence(self) -> None:
        for _ in range(_CONNECTIONS):
            self._producer.list_topics(self._slot.topic, self._clients.timeout_s)
        self._asked(lambda: self._producer.init_transactions(self._clients.timeout_s))

    def marker(self) -> Marker | None:
        wanted = [TopicPartition(self._slot.topic, self._slot.partition)]
        timeout_s = self._clients.timeout_s
        [found] = self._asked(lambda: self._consumer.committed(wanted, timeout_s))
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else Marker.read(found.offset, found.metadata)

    def begins(self, transaction: SinkTransaction) -> bool:
        """Whether the transaction is written; if it is not, the transaction is begun."""
        self.fence()
        if transaction.is_written(self.marker()):
            return True
        self.begin(Marker(transaction.end, transaction.generation, transaction.batch, _now_ms(), transaction.state))
        return False

    def begin(self, marker: Marker) -> None:
        """Begins the transaction with the marker, which counts with the commit: so nothing but that is left to wait
        for behind the last record."""
        self._producer.begin_transaction()
        offset = TopicPartition(self._slot.topic, self._slot.partition, marker.offset, marker.metadata)
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([offset], group, self._clients.timeout_s)

    def commit(self, records: Iterable[Records]) -> TransactionOutcome:
        outcome = _counted(map(self._produced, records), is_new=True)
        self._producer.commit_transaction(self._clients.commit_timeout_s)
        return outcome

    def _produced(self, records: Records) -> Records:
        # A call for each record and nothing else: this loop is what a topic sink's speed comes down to.
        produce, topic = self._producer.produce, records.topic
        if records.headers is None:
            for key, value in zip(records.keys, records.values, strict=True):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._when_there_is_room(partial(produce, topic, value, key))
            return records
        for key, value, headers in zip(records.keys, records.values, records.headers, strict=True):
            named: Any = None if headers is None else list(headers)
            try:
                produce(topic, value, key, headers=named)
            except BufferError:
                self._when_there_is_room(partial(produce, topic, value, key, headers=named))
        return records

    def _when_there_is_room(self, produce: Callable[[], None]) -> None:
        """The queue is full. Deliveries make room, and one that fails ends the transaction, so this ends."""
        while True:
            self._producer.poll(_BETWEEN_TRIES_S)
            with contextlib.suppress(BufferError):
                return produce()

    def _asked(self, ask: Callable[[], T]) -> T:
        """Asks again while the coordinator is not ready."""
        give_up_at = time.monotonic() + self._clients.timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                if _kafka_error(error).code() not in _NOT_YET or time.monotonic() > give_up_at:
                    raise
            time.sleep(_BETWEEN_TRIES_S)

    def abort(self, why: BaseException) -> SinkError | None:
        """Aborts what is open, if anything is, and says what `why` comes to; None if Kafka has nothing to do with it.

        A transaction that is not aborted here is aborted when the next attempt fences.
        """
        error = why if isinstance(why, KafkaException) else None
        try:
            self._producer.abort_transaction(_ABORT_S)
        except KafkaException as failed:
            # The reason for which a producer is of no more use shows only here, if it showed on produce first.
            if error is not None and _kafka_error(failed).fatal():
                error = failed
            self._producer.purge()
        return None if error is None else self._said(_kafka_error(error))

    def close(self) -> None:
        """Ends the clients. A producer ends with the last reference to it, and an error that is kept has the frames in
        which this attempt is."""
        self._consumer.close()
        del self._producer

    def _said(self, error: KafkaError) -> SinkError:
        what = f"cannot write {self._slot.transactional_id} at {self._clients.bootstrap_servers}"
        if error.code() in _FENCED:
            return FencedError(
                f"{what}: another attempt has taken over, or it took longer than transaction.timeout.ms "
                f"({error.str()}); see that the pipeline runs only once, or have smaller batches by "
                "max.offsets.per.trigger, or set producer.override.transaction.timeout.ms"
            )
        return SinkError(f"{what}: {error.str()}", is_retriable=is_passing(error))


@contextlib.contextmanager
def _attempt(slot: TransactionalSlot, clients: Clients) -> Iterator[_Attempt]:
    """An attempt. Errors of Kafka leave as SinkError, and no transaction is left open."""
    try:
        # The consumer connects while the producer fences.
        attempt = _Attempt(slot, clients, clients.producer(slot.transactional_id), clients.consumer(slot.group))
    except KafkaException as error:
        what = _kafka_error(error).str()
        raise SinkError(f"producer.override or admin.override cannot be: {what}") from None
    try:
        yield attempt
    except BaseException as why:
        failure = attempt.abort(why)
        if failure is not None:
            raise failure from None
        raise
    finally:
        attempt.close()


def _counted(records: Iterable[Records], *, is_new: bool) -> TransactionOutcome:
    rows = dead_letters = 0
    for some in records:
        if some.is_dead:
            dead_letters += len(some.values)
        else:
            rows += len(some.values)
    return TransactionOutcome(rows, dead_letters, is_new)


def _kafka_error(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


_LASTING = (
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


def is_passing(error: KafkaError) -> bool:
    """Return whether an error may disappear by itself: a broker that is down, a leader that moves.

    A new attempt has a new producer, so an error that is fatal to one does not affect the next.
    """
    return error.code() not in _LASTING
