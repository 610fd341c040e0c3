"""What the topic sink writes in one transaction: its records, and a marker that says they are written. No Spark here.

A unit has the same records on every attempt, and a transactional id of its own. An attempt

1. fences: `init_transactions` ends what an earlier attempt has open, and from then on refuses whatever that one does;
2. reads the marker, an offset of a group, and leaves everything as it is when the records are there;
3. otherwise writes records, dead letters and marker in one transaction.

The order is what makes it safe. After 1, of all that hold the transactional id only this attempt can commit, until a
later one fences it, and then it cannot. So nobody commits between 2 and the commit of 3: an attempt that sleeps and
wakes late is refused. For the same reason what 2 has read still holds when 3 begins, and need not be read again. That
1 and 2 run while Spark makes the first records changes nothing: those are kept, and produced when 3 has begun; it
begins only with a marker that says "not written", and otherwise the records are counted and dropped.

A producer is used for one attempt only: a kept one would often be fenced by then, which shows only when the records of
the attempt are spent; making one costs a tenth of a second.
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
from odradek.spark_it.exactly_once.slots import Lane, MarkerError, Unit
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
    """The attempt was overtaken. What it wrote is aborted; whether its unit is written, the marker says."""


class Records(NamedTuple):
    """Records for one topic, as columns of the same length."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None = None
    is_dead: bool = False


class Outcome(NamedTuple):
    """What the unit holds, and whether it was this attempt that wrote it."""

    rows: int
    dead_letters: int
    is_new: bool


@dataclass(frozen=True)
class Clients:
    """Makes the clients of an attempt; it travels to where the attempt runs. Configurations are librdkafka's.

    `timeout_s` is how long to wait for an answer, `commit_timeout_s` until all is delivered and committed.
    """

    bootstrap_servers: str
    producer_configuration: Mapping[str, str] = field(default_factory=dict)
    consumer_configuration: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    commit_timeout_s: float = 120.0

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Those that a pipeline's file says."""
        passed = settings.passed
        return cls(",".join(settings.bootstrap_servers), passed["producer.override."], passed["admin.override."])

    def producer(self, transactional_id: str) -> Producer:
        """A producer of transactions. Raises KafkaException for a configuration that cannot be."""
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
                # What a unit may take, from the first record that Spark makes to the last. So long do readers of
                # committed records wait behind a unit whose processes were killed, if no other run follows.
                "transaction.timeout.ms": TRANSACTION_MS,
                **self.producer_configuration,
                "transactional.id": transactional_id,
            }
        )

    def consumer(self, group: str, *, is_stable: bool = True) -> Consumer:
        """A consumer that joins no group and only reads its offsets.

        With `is_stable` it waits for the end of transactions that have committed some.
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


def write(unit: Unit, records: Iterable[Records], clients: Clients) -> Outcome:
    """Writes a unit unless it is written. Takes all records either way, to count them.

    Raises SinkError: FencedError, MarkerError, or one that says what Kafka refused.
    """
    with _attempt(unit.lane, clients) as attempt:
        is_written, records = _meanwhile(lambda: attempt.begins(unit), records)
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


def fence(lane: Lane, clients: Clients) -> None:
    """Ends what attempts have open in a lane: readers do not wait for it, and none of them commits any more.

    Raises SinkError.
    """
    with _attempt(lane, clients) as attempt:
        attempt.fence()


def claim(lane: Lane, marker: Marker, replaced: Set[str], clients: Clients) -> None:
    """Commits the first marker of a state in a lane, unless the state has one there. Of two states that claim a lane at
    once one wins. Raises SinkError: MarkerError if the lane has a marker of a state that is not to be replaced.
    """
    with _attempt(lane, clients) as attempt:
        attempt.fence()
        found = attempt.marker()
        if found is not None and found.state == marker.state:
            return
        check_claim(lane, found, replaced)
        attempt.begin(marker._replace(at_ms=_now_ms()))
        attempt.commit(())


def check_claim(lane: Lane, found: Marker | None, replaced: Set[str]) -> None:
    """Raises MarkerError if a lane's marker belongs to a state that is not to be replaced."""
    if found is not None and found.state and found.state not in replaced:
        what = f"the offset of group {lane.group} for {lane.topic}-{lane.partition}"
        raise MarkerError(f"{what} was claimed at the same time by another copy of this pipeline; run only one")


def renew(lane: Lane, clients: Clients) -> None:
    """Commits a marker once more as it is, so that it does not expire. Nothing happens if there is none.

    It is an attempt like any other: merely committing what was read a moment ago could take back what another attempt
    has committed meanwhile. Raises SinkError.
    """
    with _attempt(lane, clients) as attempt:
        attempt.fence()
        marker = attempt.marker()
        if marker is not None:
            attempt.begin(marker._replace(at_ms=_now_ms()))
            attempt.commit(())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Attempt:
    """An attempt at a unit of a lane; nobody else can commit there once `fence` is done."""

    def __init__(self, lane: Lane, clients: Clients, producer: Producer, consumer: Consumer) -> None:
        self._lane = lane
        self._clients = clients
        self._producer = producer
        self._consumer = consumer

    def fence(self) -> None:
        for _ in range(_CONNECTIONS):
            self._producer.list_topics(self._lane.topic, self._clients.timeout_s)
        self._asked(lambda: self._producer.init_transactions(self._clients.timeout_s))

    def marker(self) -> Marker | None:
        wanted = [TopicPartition(self._lane.topic, self._lane.partition)]
        timeout_s = self._clients.timeout_s
        [found] = self._asked(lambda: self._consumer.committed(wanted, timeout_s))
        if found.error is not None:
            raise KafkaException(found.error)
        return None if found.offset < 0 else Marker.read(found.offset, found.metadata)

    def begins(self, unit: Unit) -> bool:
        """Whether the unit is written; if it is not, the transaction is begun."""
        self.fence()
        if unit.is_written(self.marker()):
            return True
        self.begin(Marker(unit.end, unit.generation, unit.batch, _now_ms(), unit.state))
        return False

    def begin(self, marker: Marker) -> None:
        """Begins the transaction with the marker, which counts with the commit: so nothing but that is left to wait
        for behind the last record."""
        self._producer.begin_transaction()
        offset = TopicPartition(self._lane.topic, self._lane.partition, marker.offset, marker.metadata)
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([offset], group, self._clients.timeout_s)

    def commit(self, records: Iterable[Records]) -> Outcome:
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
        what = f"cannot write {self._lane.transactional_id} at {self._clients.bootstrap_servers}"
        if error.code() in _FENCED:
            return FencedError(
                f"{what}: another attempt has taken over, or it took longer than transaction.timeout.ms "
                f"({error.str()}); see that the pipeline runs only once, or have smaller batches by "
                "max.offsets.per.trigger, or set producer.override.transaction.timeout.ms"
            )
        return SinkError(f"{what}: {error.str()}", is_retriable=is_passing(error))


@contextlib.contextmanager
def _attempt(lane: Lane, clients: Clients) -> Iterator[_Attempt]:
    """An attempt. Errors of Kafka leave as SinkError, and no transaction is left open."""
    try:
        # The consumer connects while the producer fences.
        attempt = _Attempt(lane, clients, clients.producer(lane.transactional_id), clients.consumer(lane.group))
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


def _counted(records: Iterable[Records], *, is_new: bool) -> Outcome:
    rows = dead_letters = 0
    for some in records:
        if some.is_dead:
            dead_letters += len(some.values)
        else:
            rows += len(some.values)
    return Outcome(rows, dead_letters, is_new)


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
    """Whether it may go by itself: a broker that is away, a leader that moves. A new attempt has a new producer, so an
    error that is fatal to one says nothing of the next."""
    return error.code() not in _LASTING
