"""Topics that lie in the log directories but not in the metadata store: taken on as they are found.

So a broker starts on a data directory that Apache Kafka wrote, or on its own after the store was lost. A topic's
name and partitions are those of the directories, its id that in `partition.metadata`, or a new one.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from odradek.protocol.errors import KafkaError
from odradek.replication.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.controller import Controller, NewTopic
from odradek.replication.topic_names import check_topic_name

logger = logging.getLogger(__name__)


class FoundLog(NamedTuple):
    """A partition's directory; `latest_epoch` is the last leader epoch in its log, -1 if it has none."""

    topic: str
    partition: int
    topic_id: bytes | None
    latest_epoch: int


async def adopt_topics(
    controller: Controller,
    image: ClusterMetadata,
    found: Iterable[FoundLog],
    new_topic_id: Callable[[], bytes],
    internal_configs: Callable[[str], dict[str, str]],
) -> list[str]:
    """Creates the topics that the store does not know yet; their names. Missing partitions are created empty."""
    by_topic: dict[str, list[FoundLog]] = {}
    for log in found:
        if log.topic not in image.topics:
            by_topic.setdefault(log.topic, []).append(log)
    topics = []
    for name, logs in by_topic.items():
        try:
            check_topic_name(name)
        except KafkaError as error:
            logger.error("not serving a directory topic=%s: %s", name, error.message)
            continue
        topics.append(NewTopic(_topic(controller, name, logs, new_topic_id), internal_configs(name)))
    refused = await controller.create_topics(topics)
    for name, reason in refused.items():
        logger.error("a topic found on disk could not be taken on topic=%s: %s", name, reason)
    return [new.topic.name for new in topics if new.topic.name not in refused]


def _topic(
    controller: Controller, name: str, logs: list[FoundLog], new_topic_id: Callable[[], bytes]
) -> TopicMetadata:
    topic_id = next((log.topic_id for log in logs if log.topic_id is not None), None) or new_topic_id()
    epochs = {log.partition: log.latest_epoch for log in logs}
    me = (controller.broker_id,)
    return TopicMetadata(
        name,
        topic_id,
        tuple(
            PartitionMetadata(
                leader=controller.broker_id,
                leader_epoch=epochs.get(index, -1) + 1,
                replicas=me,
                isr=me,
                controller_epoch=controller.epoch,
            )
            for index in range(max(epochs) + 1)
        ),
    )
