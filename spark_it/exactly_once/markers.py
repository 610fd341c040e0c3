"""The markers of a topic sink, on the driver: their slots, the markers that a batch requires, and their renewal.

Kafka deletes an offset that is not committed again within `offsets.retention.minutes`: seven days by default, one
before Kafka 2.0. Once a marker may have been deleted, its absence no longer proves that its transaction is not written.
The first run of a pipeline's state therefore commits a marker in each existing slot (`Markers.claim`). A partition that
is added to a source later has no marker before the batch with its first records. In that batch a missing marker is
accepted as long as no marker of the batch can have expired (`find_expiry_reason`).
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewPartitions as _NewPartitions  # type: ignore[attr-defined]
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]

from odradek.spark_it.definition.guarantees import TransactionKind, find_stateful_reason
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.exactly_once.slots import BatchTransaction, OffsetTransaction, SinkTransaction, TransactionalSlot
from odradek.spark_it.exactly_once.transactions import Clients, check_claim, claim_slot, is_transient, renew_marker
from odradek.spark_it.interfaces.kafka_types import TopicPartition as PartitionId
from odradek.spark_it.interfaces.marker import BatchMarker, make_marker_number
from odradek.spark_it.interfaces.sink import Claim, Range, SinkBatch, SinkError
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.kafka.requests import ClusterError
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.checkpoint import CheckpointError
from odradek.spark_it.state.lock import list_resets

NewPartitions: Any = _NewPartitions
NewTopic: Any = _NewTopic

BATCHES_TOPIC = "__pipeline_batches"
"""A topic without records. The offset that a group commits for partition k is the marker of part k of the pipeline's
batches. Pipelines share the topic and have different groups."""

RENEW_AFTER_S = 6 * 3600.0
CHECK_EVERY_S = 3600.0
"""Maximum interval between checks for old markers, shorter if brokers retain offsets for less than eight hours."""
ASSUMED_RETENTION_MS = 24 * 3_600_000
"""Kafka's shortest default of `offsets.retention.minutes`, assumed for brokers that do not report the setting."""
_TIMEOUT_S = 30.0
_THREADS = 8


def find_expiry_reason(planned_ms: int, now_ms: int, retention_ms: int | None) -> str | None:
    """Return the reason why markers of a batch may have expired since it was planned; None if they cannot have expired.

    Only half of the retention is used, because this machine's clock may differ from that of the machine that planned
    the batch.
    """
    assumed_ms = ASSUMED_RETENTION_MS if retention_ms is None else retention_ms
    if abs(now_ms - planned_ms) < assumed_ms // 2:
        return None
    hours = f"{assumed_ms / 3_600_000:g} hours"
    if retention_ms is None:
        hours = f"{hours} (assumed, because the brokers do not report offsets.retention.minutes)"
    else:
        hours = f"{hours} (offsets.retention.minutes)"
    ago = f"{(now_ms - planned_ms) / 3_600_000:,.1f} hours ago"
    return f"it was planned {ago}, more than half of the time for which Kafka retains offsets, {hours}"


class Markers:
    """The markers of one pipeline's transactions. Methods raise SinkError."""

    def __init__(self, pipeline: Pipeline, kind: TransactionKind, clients: Clients) -> None:
        self._pipeline = pipeline
        self._kind = kind
        self._clients = clients
        resets = list_resets(pipeline, is_stateful=find_stateful_reason(pipeline) is not None)
        self._resets = " or ".join(f"reset --to {to}" for to in resets)
        self._initial_offsets: dict[PartitionId, int] | None = None
        self._retention_ms: int | None = None

    def prepare(self) -> None:
        """Create the topic of the markers, or add partitions to it, if necessary."""
        if self._kind is not TransactionKind.BATCHES:
            return
        parts = self._pipeline.settings.tasks_max
        servers = self._clients.bootstrap_servers
        what = f"cannot create topic {BATCHES_TOPIC} with {parts} partitions at {servers}"
        try:
            passed = self._pipeline.settings.passed["admin.override."]
            _create_batches_topic(AdminClient({"bootstrap.servers": servers, "log_level": 0, **passed}), parts)
        except KafkaException as error:
            kafka_error = error.args[0]
            hint = "" if is_transient(kafka_error) else "; create it before the run (it stays empty)"
            raise SinkError(f"{what}: {kafka_error.str()}{hint}", is_retriable=is_transient(kafka_error)) from None
        except TimeoutError:
            raise SinkError(f"{what}: no response", is_retriable=True) from None

    def make_transactions(self, batch: SinkBatch) -> list[SinkTransaction]:
        """Return the transactions of a batch; index i corresponds to `batch.ranges[i]`, or to part i.

        First commits the first markers of partitions that are new in the batch and have no records in it.
        """
        if self._kind is TransactionKind.OFFSETS:
            if batch.ranges is None:
                raise SinkError(f"batch {batch.id} has no offset ranges")
            if len({(one.topic, one.partition) for one in batch.ranges}) < len(batch.ranges):
                raise SinkError(
                    f"batch {batch.id} has several ranges of one partition; offset transactions need one each"
                )
            previous = self._read_start_offsets(batch)
            self._claim_empty_partitions(batch, previous)
            first = self._find_unmarked(batch, previous)
            return [
                self._make_offset_transaction(batch, one, is_first=(one.topic, one.partition) in first)
                for one in batch.ranges
            ]
        return [
            BatchTransaction(
                slot=self._make_part_slot(part),
                end=batch.marker,
                generation=batch.generation,
                batch=batch.id,
                is_first=False,
                resets=self._resets,
                state=batch.state,
            )
            for part in range(self._pipeline.settings.tasks_max)
        ]

    def _make_offset_transaction(self, batch: SinkBatch, range_: Range, *, is_first: bool) -> OffsetTransaction:
        return OffsetTransaction(
            slot=self._make_partition_slot(range_.topic, range_.partition),
            end=range_.end,
            generation=batch.generation,
            batch=batch.id,
            is_first=is_first,
            resets=self._resets,
            start=range_.start,
            state=batch.state,
        )

    # Names of pipelines and topics may contain '-' but not ':', so transactional ids of two pipelines never collide.

    def _make_partition_slot(self, topic: str, partition: int) -> TransactionalSlot:
        name = self._pipeline.name
        return TransactionalSlot(f"{name}:{topic}-{partition}", name, topic, partition)

    def _make_part_slot(self, part: int) -> TransactionalSlot:
        return TransactionalSlot(f"{self._pipeline.name}:p{part}", self._pipeline.batches_group, BATCHES_TOPIC, part)

    def _find_unmarked(self, batch: SinkBatch, previous: Mapping[PartitionId, int] | None) -> set[PartitionId]:
        """Return the partitions for which a missing marker proves that no transaction was written.

        These are the partitions whose first records are in the batch, as long as no marker of the batch can have
        expired. In any other partition an earlier batch has committed a marker.
        """
        assert batch.ranges is not None
        start_offsets = self._get_initial_offsets(batch)
        partitions_without_marker = set()
        for one in batch.ranges:
            at = one.topic, one.partition
            # A partition that was added later starts at its log start offset, which may be above 0.
            is_added = previous is not None and at not in previous
            if batch.id == 0 or is_added or one.start <= start_offsets.get(at, 0):
                partitions_without_marker.add(at)
        if not partitions_without_marker:
            return partitions_without_marker
        planned = _read_planned_batch(self._get_checkpoint_folder(batch), batch.id)
        return set() if planned is None or self._may_have_expired(planned) else partitions_without_marker

    def _may_have_expired(self, planned: checkpoint.PlannedBatch) -> bool:
        return find_expiry_reason(planned.started_ms, int(time.time() * 1000), self.fetch_retention_ms()) is not None

    def _claim_empty_partitions(self, batch: SinkBatch, previous: Mapping[PartitionId, int] | None) -> None:
        """Commit the first marker of each partition that is new in the batch, starts above offset 0 and has no records
        in the batch.

        Without this marker, the later batch with the first records of the partition could not determine whether the
        partition has a transaction already. A repeated batch does not commit the marker again. No marker is committed
        if it may have expired since the batch was planned.
        """
        assert batch.ranges is not None
        planned = None if previous is None else _read_planned_batch(self._get_checkpoint_folder(batch), batch.id)
        if previous is None or planned is None:
            return
        # For a partition that starts at offset 0 the offset alone proves that it has no transaction yet.
        new = {at: offset for at, offset in planned.parse_topic_offsets().items() if offset and at not in previous}
        empty = new.keys() - {(one.topic, one.partition) for one in batch.ranges}
        if not empty or self._may_have_expired(planned):
            return

        def claim_one(at: PartitionId) -> None:
            first = BatchMarker(new[at], batch.generation, state=batch.state)
            claim_slot(self._make_partition_slot(*at), first, frozenset(), self._clients)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(claim_one, sorted(empty)))

    def _get_checkpoint_folder(self, batch: SinkBatch) -> Path:
        return self._pipeline.state_folder / "checkpoint" / str(batch.generation)

    def _get_initial_offsets(self, batch: SinkBatch) -> dict[PartitionId, int]:
        if self._initial_offsets is None:
            self._initial_offsets = read_initial_offsets(self._get_checkpoint_folder(batch))
        return self._initial_offsets

    def _read_start_offsets(self, batch: SinkBatch) -> Mapping[PartitionId, int] | None:
        """Return the start offsets of a batch, by the partitions that existed before it; None if the checkpoint does
        not have them."""
        if batch.id == 0:
            return self._get_initial_offsets(batch) or None
        before = _read_planned_batch(self._get_checkpoint_folder(batch), batch.id - 1)
        return None if before is None else before.parse_topic_offsets()

    def fetch_retention_ms(self) -> int | None:
        """Return the time for which brokers retain offsets; None if they do not report it."""
        if self._retention_ms is None:
            with contextlib.suppress(ClusterError):
                self._retention_ms = KafkaCluster(self._pipeline.settings).fetch_offsets_retention_ms()
        return self._retention_ms

    def read_owners(self) -> set[str]:
        """Return the identities of the pipeline states that have markers."""
        return {marker.state for marker in self._read_all().values() if marker.state}

    def read_newest(self) -> int:
        """Return the marker of the newest batch with a written transaction; 0 with offset transactions, whose markers
        are not batch numbers."""
        if self._kind is TransactionKind.OFFSETS:
            return 0
        return max((marker.offset for marker in self._read_all().values()), default=0)

    def claim(self, claimed: Claim) -> None:
        """Commit the first marker of each slot, for a state without batches.

        Several copies of the pipeline may start at the same time. All claim the same slot first, so only the copy that
        succeeds claims the others.
        """
        if not claimed.is_new:
            return
        slots = self.list_slots()
        generation, state = claimed.generation, claimed.state
        if self._kind is TransactionKind.BATCHES:
            first = BatchMarker(make_marker_number(generation, -1), generation, state=state)
            claim_slot(slots[0], first, claimed.replaced, self._clients)
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda slot: claim_slot(slot, first, claimed.replaced, self._clients), slots[1:]))
            return
        starts = {
            slot: claimed.start_offsets[at]
            for slot in slots
            if (at := (slot.topic, slot.partition)) in claimed.start_offsets
        }
        if not starts:
            return
        lowest = min(starts, key=lambda slot: (slot.topic, slot.partition))
        claim_slot(lowest, BatchMarker(starts[lowest], generation, state=state), claimed.replaced, self._clients)
        # A copy with another state also reaches this line only if its lowest slot is a different one.
        markers = self._read_markers(starts, is_strict=True)
        rest = {slot: begin for slot, begin in starts.items() if slot not in markers or markers[slot].state != state}
        for slot in rest:
            check_claim(slot, markers.get(slot), claimed.replaced)
        metadata = BatchMarker(0, generation, at_ms=int(time.time() * 1000), state=state).metadata
        try:
            offsets = {(slot.topic, slot.partition): begin for slot, begin in rest.items()}
            KafkaCluster(self._pipeline.settings).commit(self._pipeline.name, offsets, metadata)
        except ClusterError as error:
            raise SinkError(str(error), is_retriable=True) from None

    def list_slots(self) -> list[TransactionalSlot]:
        """Return all possible slots, with and without a marker."""
        if self._kind is TransactionKind.BATCHES:
            return [self._make_part_slot(part) for part in range(self._pipeline.settings.tasks_max)]
        cluster = KafkaCluster(self._pipeline.settings)
        try:
            return [
                self._make_partition_slot(*at)
                for source in self._pipeline.sources.values()
                if isinstance(source, TopicSource)
                for at in cluster.list_partitions(source)
            ]
        except ClusterError as error:
            raise SinkError(str(error), is_retriable=True) from None

    def list_old_slots(self, now_ms: int) -> list[TransactionalSlot]:
        """Return the slots whose marker is due for renewal: it is old, or does not contain the time of its commit."""
        slots = self.list_slots()
        markers = self._read_markers(slots)
        retention_ms = self.fetch_retention_ms() or ASSUMED_RETENTION_MS
        renew_before_ms = now_ms - min(int(RENEW_AFTER_S * 1000), retention_ms // 4)
        return [
            slot
            for slot in slots
            if (marker := markers.get(slot)) is not None and (marker.at_ms is None or marker.at_ms <= renew_before_ms)
        ]

    def _read_all(self) -> dict[TransactionalSlot, BatchMarker]:
        """Return all markers, without waiting for open transactions: those of a killed run are aborted only by the next
        attempts."""
        return self._read_markers(self.list_slots(), is_strict=True)

    def _read_markers(
        self, slots: Iterable[TransactionalSlot], *, is_strict: bool = False
    ) -> dict[TransactionalSlot, BatchMarker]:
        """Return the existing markers. A marker that cannot be read is omitted.

        With `is_strict` it raises SinkError instead, and open transactions are not waited for.
        """
        slots_by_partition = {(slot.topic, slot.partition): slot for slot in slots}
        if not slots_by_partition:
            return {}
        group = next(iter(slots_by_partition.values())).group
        try:
            consumer = self._clients.make_consumer(group, is_stable=not is_strict)
            try:
                committed = consumer.committed(
                    [TopicPartition(*partition) for partition in slots_by_partition], self._clients.timeout_s
                )
            finally:
                consumer.close()
        except KafkaException as error:
            what = f"cannot read the offsets of group {group} at {self._clients.bootstrap_servers}"
            raise SinkError(f"{what}: {error.args[0].str()}", is_retriable=True) from None
        for one in committed if is_strict else ():
            if one.error is not None:
                what = f"cannot read the offset of group {group} for {one.topic}-{one.partition}"
                raise SinkError(f"{what}: {one.error.str()}", is_retriable=True)
        return {
            slots_by_partition[one.topic, one.partition]: BatchMarker.read(one.offset, one.metadata)
            for one in committed
            if one.error is None and one.offset >= 0
        }


def _read_planned_batch(folder: Path, batch_id: int) -> checkpoint.PlannedBatch | None:
    """Read a batch of the checkpoint; None if it does not exist."""
    try:
        return checkpoint.read_batch(folder, batch_id)
    except (OSError, CheckpointError):
        return None


def read_initial_offsets(checkpoint_folder: Path) -> dict[tuple[str, int], int]:
    """Read the initial offsets of a query with a single source from its checkpoint; empty if they are not recorded.

    Source: Spark 4.0, KafkaSourceInitialOffsetWriter: a zero byte, a line with the version, a line of JSON.
    """
    try:
        text = (checkpoint_folder / "sources" / "0" / "0").read_text("utf-8")
        return checkpoint.parse_topic_offsets(text.partition("\n")[2])
    except (OSError, ValueError, CheckpointError):
        return {}


class MarkerRenewal:
    """Thread that renews old markers, even while no batch runs. It holds `lock` during a renewal, as a batch does.

    A failed renewal is retried at the next check. This is early enough, because a marker is due for renewal after a
    quarter of the retention at the latest.
    """

    def __init__(self, markers: Markers, clients: Clients, lock: threading.Lock) -> None:
        self._markers = markers
        self._clients = clients
        self._lock = lock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="odradek-markers", daemon=True)

    def start(self) -> None:
        """Check now, and then every hour, or every eighth of the retention if that is shorter."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the renewal in progress."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(SinkError):
                self.renew_old(int(time.time() * 1000))
            retention_ms = self._markers.fetch_retention_ms() or ASSUMED_RETENTION_MS
            self._ended.wait(min(CHECK_EVERY_S, retention_ms / 8000))

    def renew_old(self, now_ms: int) -> int:
        """Renew the markers that are due for renewal at `now_ms`; return their number. Raises SinkError."""
        renewed = 0
        for slot in self._markers.list_old_slots(now_ms):
            with self._lock:
                if self._ended.is_set():
                    break
                renew_marker(slot, self._clients)
            renewed += 1
        return renewed


class _AlreadyExistsError(Exception):
    """Another pipeline has created the topic or its partitions."""


def _create_batches_topic(admin: AdminClient, parts: int) -> None:
    """Create the topic or add partitions, but only if necessary: the user may lack the authorization to create topics.

    Raises KafkaException, TimeoutError.
    """
    if _count_partitions(admin) < parts:
        with contextlib.suppress(_AlreadyExistsError):
            _wait_for(admin.create_topics([NewTopic(BATCHES_TOPIC, parts, -1)], request_timeout=_TIMEOUT_S))
    if _count_partitions(admin) < parts:
        with contextlib.suppress(_AlreadyExistsError):
            _wait_for(admin.create_partitions([NewPartitions(BATCHES_TOPIC, parts)], request_timeout=_TIMEOUT_S))
    # A broker may not have the new metadata yet.
    give_up_at = time.monotonic() + _TIMEOUT_S
    while _count_partitions(admin) < parts:
        if time.monotonic() > give_up_at:
            raise TimeoutError
        time.sleep(0.1)


def _count_partitions(admin: AdminClient) -> int:
    topic = admin.list_topics(timeout=_TIMEOUT_S).topics.get(BATCHES_TOPIC)
    return 0 if topic is None else len(topic.partitions)


def _wait_for(futures: Mapping[str, Future[None]]) -> None:
    for future in futures.values():
        try:
            future.result(_TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_PARTITIONS):
                raise _AlreadyExistsError from None
            raise
