"""Metrics of the controller; 0 on a broker that is not the controller."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from odradek.server.metrics.declaration import Collected, Family, gauge, histogram, histogram_families, meter

if TYPE_CHECKING:
    from odradek.replication.controller.controller import Controller
    from odradek.replication.metadata.image import ClusterMetadata

_MBEAN: Final = "kafka.controller:type=KafkaController"

ACTIVE: Final = gauge(f"{_MBEAN},name=ActiveControllerCount", "1 if this broker is the controller.")
BROKERS: Final = gauge(f"{_MBEAN},name=ActiveBrokerCount", "Brokers that are registered.")
TOPICS: Final = gauge(f"{_MBEAN},name=GlobalTopicCount", "Topics of the cluster.")
PARTITIONS: Final = gauge(f"{_MBEAN},name=GlobalPartitionCount", "Partitions of the cluster.")
OFFLINE: Final = gauge(f"{_MBEAN},name=OfflinePartitionsCount", "Partitions without a leader.")
IMBALANCE: Final = gauge(
    f"{_MBEAN},name=PreferredReplicaImbalanceCount", "Partitions that their preferred replica does not lead."
)

UNCLEAN: Final = meter(
    "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
    "Elections of a leader that was not in sync, by this controller.",
)

EVENT_QUEUE: Final = histogram(
    "kafka.controller:type=ControllerEventManager,name=EventQueueTimeMs",
    "Time of an event in the queue of the controller, in ms.",
)
EVENT_PROCESSING: Final = histogram(
    "kafka.controller:type=ControllerEventManager,name=EventQueueProcessingTimeMs",
    "Time from the begin of an event to its end, with its writes to the metadata store, in ms.",
)
LEAVING: Final = gauge(f"{_MBEAN},name=ControlledShutdownBrokerCount", "Brokers that have announced their stop.")

_COUNTED: Final = (BROKERS, TOPICS, PARTITIONS, OFFLINE, IMBALANCE)
METRICS: Final = (ACTIVE, *_COUNTED, LEAVING, UNCLEAN, *EVENT_QUEUE, *EVENT_PROCESSING)

_TOPICS_PER_STEP: Final = 64
_PARTITIONS_PER_STEP: Final = 1000


def collect_controller(controller: "Controller") -> Collected:
    """Return the metrics of the controller."""
    active = controller.is_active
    values = [0, 0, 0, 0, 0]
    if active:
        for counted in _count(controller.image):
            if counted is None:
                yield None
            else:
                values = counted
    yield Family(ACTIVE, [("", int(active))])
    for metric, value in zip(_COUNTED, values, strict=True):
        yield Family(metric, [("", value)])
    yield Family(LEAVING, [("", len(controller.context.shutting_down) if active else 0)])
    yield Family(UNCLEAN, [("", controller.context.unclean_elections)])
    times = controller.event_times
    if times is not None:
        yield from histogram_families(EVENT_QUEUE, times.queue)
        yield from histogram_families(EVENT_PROCESSING, times.processing)


def _count(image: "ClusterMetadata") -> Iterator[list[int] | None]:
    """Count the image, with pauses; the last item are the numbers in the order of `_COUNTED`."""
    partitions = offline = imbalance = since_pause = 0
    topics = list(image.topics.values())
    for number, topic in enumerate(topics):
        since_pause += len(topic.partitions)
        if number % _TOPICS_PER_STEP == 0 or since_pause > _PARTITIONS_PER_STEP:
            since_pause = 0
            yield None
        partitions += len(topic.partitions)
        for partition in topic.partitions:
            if partition.leader < 0:
                offline += 1
            elif partition.replicas and partition.leader != partition.replicas[0]:
                imbalance += 1
    yield [len(image.brokers), len(topics), partitions, offline, imbalance]
