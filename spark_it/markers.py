"""The markers of a topic sink, on the driver: where each unit has its own, which must be there, and that none expires.

Kafka forgets an offset that is not committed again within `offsets.retention.minutes`: seven days by default, one where
somebody has kept an older default.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewPartitions as _NewPartitions  # type: ignore[attr-defined]
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]

from odradek.spark_it import checkpoint
from odradek.spark_it.checkpoint import CheckpointError
from odradek.spark_it.cluster import Cluster
from odradek.spark_it.group import ClusterError
from odradek.spark_it.guarantees import Units, why_stateful
from odradek.spark_it.lanes import BatchUnit, Lane, Marker, OffsetUnit, Unit
from odradek.spark_it.lock import resets_of
from odradek.spark_it.sinks import Batch, Range, SinkError
from odradek.spark_it.source_settings import TopicSource
from odradek.spark_it.spec import Pipeline
from odradek.spark_it.units import Clients, is_passing, renew

NewPartitions: Any = _NewPartitions
NewTopic: Any = _NewTopic

BATCHES_TOPIC = "__pipeline_batches"
"""Empty: an offset of it is a batch's number. Partition k belongs to part k of the batches of all pipelines, which
keep apart by their groups."""

RENEW_AFTER_S = 6 * 3600.0
CHECK_EVERY_S = 3600.0
_TIMEOUT_S = 30.0


class Markers:
    """The markers of one pipeline's units. Methods raise SinkError."""

    def __init__(self, pipeline: Pipeline, kind: Units, clients: Clients) -> None:
        self._pipeline = pipeline
        self._kind = kind
        self._clients = clients
        resets = resets_of(pipeline, is_stateful=why_stateful(pipeline) is not None)
        self._resets = " or ".join(f"reset --to {to}" for to in resets)
        self._begun: dict[tuple[str, int], int] | None = None

    def prepare(self) -> None:
        """Makes the topic of the markers, or makes it larger, if need be."""
        if self._kind is not Units.BATCHES:
            return
        parts = self._pipeline.settings.tasks_max
        servers = self._clients.bootstrap_servers
        what = f"cannot make topic {BATCHES_TOPIC} with {parts} partitions at {servers}"
        try:
            passed = self._pipeline.settings.passed["admin.override."]
            _make_batches_topic(AdminClient({"bootstrap.servers": servers, "log_level": 0, **passed}), parts)
        except KafkaException as error:
            said = error.args[0]
            hint = "" if is_passing(said) else "; create it, empty"
            raise SinkError(f"{what}: {said.str()}{hint}", is_retriable=is_passing(said)) from None
        except TimeoutError:
            raise SinkError(f"{what}: no answer", is_retriable=True) from None

    def units(self, batch: Batch) -> list[Unit]:
        """The units of a batch; index i is that of `batch.ranges`, or part i."""
        if self._kind is Units.OFFSETS:
            if batch.ranges is None:
                raise SinkError(f"batch {batch.id} does not say which records it is made of")
            if len({(one.topic, one.partition) for one in batch.ranges}) < len(batch.ranges):
                raise SinkError(f"batch {batch.id} has a partition in pieces; it has one transaction")
            return [self._offset_unit(batch, one) for one in batch.ranges]
        return [
            BatchUnit(
                lane=self._part(part),
                end=batch.marker,
                generation=batch.generation,
                batch=batch.id,
                is_first=batch.id == 0,
                resets=self._resets,
            )
            for part in range(self._pipeline.settings.tasks_max)
        ]

    def _offset_unit(self, batch: Batch, of: Range) -> OffsetUnit:
        return OffsetUnit(
            lane=self._partition(of.topic, of.partition),
            end=of.end,
            generation=batch.generation,
            batch=batch.id,
            is_first=batch.id == 0 or of.start <= self._begins(batch, of),
            resets=self._resets,
            start=of.start,
        )

    # Names of pipelines and topics have '-', and none has ':', so no two pipelines have an id in common.

    def _partition(self, topic: str, partition: int) -> Lane:
        name = self._pipeline.name
        return Lane(f"{name}:{topic}-{partition}", name, topic, partition)

    def _part(self, part: int) -> Lane:
        return Lane(f"{self._pipeline.name}:p{part}", self._pipeline.batches_group, BATCHES_TOPIC, part)

    def _begins(self, batch: Batch, of: Range) -> int:
        """Where the checkpoint begins to read a partition; a batch that goes on elsewhere follows one that is marked.

        A partition that was added later begins with its first record.
        """
        if self._begun is None:
            folder = self._pipeline.state_folder / "checkpoint" / str(batch.generation)
            self._begun = begun(folder)
        return self._begun.get((of.topic, of.partition), 0)

    def lanes(self) -> list[Lane]:
        """All lanes that there may be, with and without a marker."""
        if self._kind is Units.BATCHES:
            return [self._part(part) for part in range(self._pipeline.settings.tasks_max)]
        cluster = Cluster(self._pipeline.settings)
        try:
            return [
                self._partition(*at)
                for source in self._pipeline.sources.values()
                if isinstance(source, TopicSource)
                for at in cluster.partitions(source)
            ]
        except ClusterError as error:
            raise SinkError(str(error), is_retriable=True) from None

    def old(self, now_ms: int) -> list[Lane]:
        """The lanes whose marker is to be renewed: it is old, or does not say how old it is."""
        lanes = self.lanes()
        found = self._read(lanes)
        before_ms = now_ms - int(RENEW_AFTER_S * 1000)
        return [
            lane
            for lane in lanes
            if (marker := found.get(lane)) is not None and (marker.at_ms is None or marker.at_ms <= before_ms)
        ]

    def _read(self, lanes: Iterable[Lane]) -> dict[Lane, Marker]:
        by_place = {(lane.topic, lane.partition): lane for lane in lanes}
        if not by_place:
            return {}
        group = next(iter(by_place.values())).group
        try:
            consumer = self._clients.consumer(group)
            try:
                found = consumer.committed([TopicPartition(*place) for place in by_place], self._clients.timeout_s)
            finally:
                consumer.close()
        except KafkaException as error:
            what = f"cannot read the offsets of group {group} at {self._clients.bootstrap_servers}"
            raise SinkError(f"{what}: {error.args[0].str()}", is_retriable=True) from None
        return {
            by_place[one.topic, one.partition]: Marker.read(one.offset, one.metadata)
            for one in found
            if one.error is None and one.offset >= 0
        }


def begun(checkpoint_folder: Path) -> dict[tuple[str, int], int]:
    """Where the only source of a query began, by its checkpoint; nothing if that does not say.

    Source: Spark 4.0, KafkaSourceInitialOffsetWriter: a zero byte, a line with the version, a line of JSON.
    """
    try:
        text = (checkpoint_folder / "sources" / "0" / "0").read_text("utf-8")
        return checkpoint.topic_offsets(text.partition("\n")[2])
    except (OSError, ValueError, CheckpointError):
        return {}


class Keeper:
    """Renews old markers from a thread of its own, also while no batch comes; `lock` keeps it from a batch's units.

    What goes wrong is tried again at the next check: a marker has days to live.
    """

    def __init__(self, markers: Markers, clients: Clients, lock: threading.Lock) -> None:
        self._markers = markers
        self._clients = clients
        self._lock = lock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="odradek-markers", daemon=True)

    def start(self) -> None:
        """Checks now, and every hour."""
        self._thread.start()

    def close(self) -> None:
        """Ends when the marker in hand is renewed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(SinkError):
                self.renew_old(int(time.time() * 1000))
            self._ended.wait(CHECK_EVERY_S)

    def renew_old(self, now_ms: int) -> int:
        """Renews what is old at a time and returns how many that are. Raises SinkError."""
        renewed = 0
        for lane in self._markers.old(now_ms):
            with self._lock:
                if self._ended.is_set():
                    break
                renew(lane, self._clients)
            renewed += 1
        return renewed


class _AlreadyThereError(Exception):
    """Another pipeline was faster."""


def _make_batches_topic(admin: AdminClient, parts: int) -> None:
    """Asks for nothing that is there: not everybody may make topics. Raises KafkaException, TimeoutError."""
    if _partitions(admin) < parts:
        with contextlib.suppress(_AlreadyThereError):
            _done(admin.create_topics([NewTopic(BATCHES_TOPIC, parts, -1)], request_timeout=_TIMEOUT_S))
    if _partitions(admin) < parts:
        with contextlib.suppress(_AlreadyThereError):
            _done(admin.create_partitions([NewPartitions(BATCHES_TOPIC, parts)], request_timeout=_TIMEOUT_S))
    # Brokers hear of it one after the other.
    give_up_at = time.monotonic() + _TIMEOUT_S
    while _partitions(admin) < parts:
        if time.monotonic() > give_up_at:
            raise TimeoutError
        time.sleep(0.1)


def _partitions(admin: AdminClient) -> int:
    found = admin.list_topics(timeout=_TIMEOUT_S).topics.get(BATCHES_TOPIC)
    return 0 if found is None else len(found.partitions)


def _done(futures: Mapping[str, Future[None]]) -> None:
    for future in futures.values():
        try:
            future.result(_TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_PARTITIONS):
                raise _AlreadyThereError from None
            raise
