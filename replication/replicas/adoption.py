"""Adoption: a new metadata store for topics that exist in the log directories.

The directories were written by Apache Kafka, or by an Odradek broker whose store was lost. Topics, ids, partitions and
configurations are taken from Apache Kafka's metadata log (`kraft_metadata`) if there is one. Otherwise a topic's name
and partitions are those of its directories, and its id is that in `partition.metadata`.

No record is deleted because a configuration is unknown: retention and compaction of a topic begin only if they were
configured for it, and are suspended by its own configuration otherwise.

From its first transaction until it has all topics, the store contains a mark that an adoption is in progress, so that a
start after a crash continues the adoption.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from odradek.log.config import LogConfig
from odradek.log.storage.found_directories import FoundLog, format_names
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import StartError
from odradek.replication.controller.states.epoch_floor import NEVER_LED, epoch_of_time, latest_coordinator_epoch
from odradek.replication.controller.topics.changes import NewTopic
from odradek.replication.metadata import znodes
from odradek.replication.metadata.image import ClusterMetadata, PartitionMetadata, TopicMetadata
from odradek.replication.metadata.store import Delete, MetadataStore
from odradek.replication.metadata.topic_names import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from odradek.replication.metadata.kraft_metadata import KraftMetadata, KraftTopic

logger = logging.getLogger(__name__)

SUSPENDED: Final = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""The configuration of a topic that keeps every record."""


async def is_in_progress(store: MetadataStore) -> bool:
    """Return whether an adoption into this store was begun and is not complete."""
    return await store.exists(znodes.ADOPTION) is not None


class Adoption:
    """One adoption. `kraft` is Apache Kafka's metadata, None if there is none."""

    def __init__(
        self, controller: Controller, kraft: "KraftMetadata | None", broker_properties: Mapping[str, str]
    ) -> None:
        self.kraft = kraft
        self._controller = controller
        self._broker_values = dict(broker_properties)
        if kraft is not None:
            for broker_id in (None, controller.broker_id):
                self._broker_values.update(kraft.broker_configs.get(broker_id, {}))

    def add_kraft_metadata(self, image: ClusterMetadata) -> None:
        """Add this broker's topics and configurations from Apache Kafka's metadata to `image`, for loading the logs."""
        if self.kraft is None:
            return
        for topic in self._kraft_topics():
            if topic.name not in image.topics:
                image.put_topic(self._plan_topic(topic.name, topic.topic_id, topic.partition_count))
                image.put_topic_config(topic.name, self.kraft.topic_configs.get(topic.name, {}))
        for broker_id, configs in self._kraft_broker_configs().items():
            image.put_broker_config(broker_id, configs)
        image.publish()

    def _kraft_topics(self) -> "list[KraftTopic]":
        topics = () if self.kraft is None else self.kraft.topics.values()
        return [topic for topic in topics if topic.has_replica_on(self._controller.broker_id)]

    def _kraft_broker_configs(self) -> dict[int | None, dict[str, str]]:
        configs = {} if self.kraft is None else self.kraft.broker_configs
        return {key: configs[key] for key in (None, self._controller.broker_id) if key in configs}

    def has_partition(self, topic: str, partition: int) -> bool:
        """Return whether Kafka's metadata has a replica of the partition on this broker; True for a topic not in it."""
        known = None if self.kraft is None else self.kraft.topics.get(topic)
        if known is None:
            return True
        found = known.partitions.get(partition)
        return found is not None and self._controller.broker_id in found.replicas

    async def adopt(
        self,
        found: Sequence[FoundLog],
        new_topic_id: Callable[[], bytes],
        internal_configs: Callable[[str], dict[str, str]],
        count_partitions: Callable[[str, int], int] = lambda topic, found: found,
    ) -> None:
        """Create the topics that the store lacks; partitions without a directory are created empty.

        `internal_configs` returns the configuration of an internal topic, and an empty one for any other topic.
        `count_partitions` returns the number of partitions of a topic, given the number according to its directories.
        Raises StartError if a topic cannot be adopted: topics before it are in the store, and the next start continues.
        """
        controller = self._controller
        for broker_id, configs in self._kraft_broker_configs().items():
            if controller.image.broker_configs.get(broker_id) != configs:
                await controller.put_broker_config(broker_id, configs)
        topics = []
        suspended = []
        for topic in self._topics(found, new_topic_id, count_partitions):
            if topic.name in controller.image.topics:
                await self._grow(topic)
                continue
            configs, is_suspended = self._configs(topic.name, internal_configs(topic.name))
            topics.append(NewTopic(topic, configs))
            if is_suspended:
                suspended.append(topic.name)
        refused = await controller.create_topics(topics)
        for name, reason in refused.items():
            raise _not_adopted(name, reason)
        if self.kraft is not None and (groups := self.kraft.group_configs):
            logger.warning(
                "configurations of groups are not adopted, because they apply to the consumer group protocol of "
                "KIP-848, which this broker does not have count=%d: %s",
                len(groups),
                format_names(sorted(groups)),
            )
        names = sorted(new.topic.name for new in topics)
        logger.info("adopted topics found in log.dirs count=%d: %s", len(names), format_names(names))
        if names and self.kraft is None:
            logger.warning(
                "ACLs, users, quotas and delegation tokens of the previous metadata are not adopted, because it is not "
                "in log.dirs nor in metadata.log.dir; add them again"
            )
        if suspended:
            logger.warning(
                "retention and compaction of adopted topics are suspended, because their configuration is unknown "
                "count=%d: %s; set retention.ms, retention.bytes and cleanup.policy of each topic, or delete "
                "these configurations to use the broker's defaults",
                len(suspended),
                format_names(sorted(suspended)),
            )

    async def _grow(self, planned: TopicMetadata) -> None:
        """Add partitions to a topic that an earlier start adopted, when perhaps some log directories were missing."""
        current = self._controller.image.topics[planned.name]
        count = len(current.partitions)
        if len(planned.partitions) <= count:
            return
        grown = current._replace(partitions=current.partitions + planned.partitions[count:])
        try:
            await self._controller.add_partitions(grown, count)
        except KafkaError as error:
            raise _not_adopted(planned.name, error) from error
        logger.info("adopted more partitions of topic %s old=%d new=%d", grown.name, count, len(grown.partitions))

    async def finish(self) -> None:
        """Record in the store that the adoption is complete."""
        await self._controller.write([Delete(znodes.ADOPTION)])

    def _topics(
        self,
        found: Sequence[FoundLog],
        new_topic_id: Callable[[], bytes],
        count_partitions: Callable[[str, int], int],
    ) -> list[TopicMetadata]:
        by_topic: dict[str, list[FoundLog]] = {}
        for log in sorted(found, key=lambda log: (log.topic, log.partition)):
            by_topic.setdefault(log.topic, []).append(log)
        # A partition refuses markers with a smaller coordinator epoch than its last one. That epoch may have left no
        # record in the coordinator's own log.
        coordinator_epoch = latest_coordinator_epoch(found)
        if self.kraft is not None:
            self._report_missing(by_topic)
            return [
                self._plan_topic(
                    topic.name,
                    topic.topic_id,
                    topic.partition_count,
                    by_topic.get(topic.name, ()),
                    coordinator_epoch,
                )
                for topic in self._kraft_topics()
            ]
        names_by_id: dict[bytes, str] = {}
        topics = []
        for name, logs in by_topic.items():
            topic_id = self._adopted_id(name, logs)
            if topic_id is None:
                topic_id = next((log.topic_id for log in logs if log.topic_id is not None), None) or new_topic_id()
            other = names_by_id.setdefault(topic_id, name)
            if other != name:
                raise StartError(
                    f"directories of topics {other} and {name} have the same topic id, so one of them is a copy; "
                    "move the copy out of log.dirs"
                )
            count = count_partitions(name, logs[-1].partition + 1)
            topics.append(self._plan_topic(name, topic_id, count, logs, coordinator_epoch))
        self._warn_of_counts([topic.name for topic in topics if not topic.is_internal])
        return topics

    def _adopted_id(self, name: str, logs: Sequence[FoundLog]) -> bytes | None:
        """Return the id of a topic that an earlier start adopted, None for any other. Raises StartError."""
        adopted = self._controller.image.topics.get(name)
        if adopted is None:
            return None
        for log in logs:
            if log.topic_id not in (None, adopted.topic_id):
                raise StartError(
                    f"the directory of {name}-{log.partition} has another topic id than topic {name}, which is already "
                    "adopted; move it out of log.dirs"
                )
        return adopted.topic_id

    def _warn_of_counts(self, names: Sequence[str]) -> None:
        if names:
            logger.warning(
                "the partition counts of adopted topics follow from the directories found; a count is too small if the "
                "directories of the last partitions are missing count=%d: %s; add the missing partitions",
                len(names),
                format_names(sorted(names)),
            )

    def _report_missing(self, found: Mapping[str, Sequence[FoundLog]]) -> None:
        missing = []
        for topic in self._kraft_topics():
            here = {log.partition for log in found.get(topic.name, ())}
            missing += [
                f"{topic.name}-{index}"
                for index in sorted(topic.partitions)
                if index not in here and self.has_partition(topic.name, index)
            ]
        if missing:
            logger.warning(
                "partitions without a directory begin empty count=%d: %s", len(missing), format_names(missing)
            )

    def _plan_topic(
        self,
        name: str,
        topic_id: bytes,
        partition_count: int,
        logs: Sequence[FoundLog] = (),
        coordinator_epoch: int = NEVER_LED,
    ) -> TopicMetadata:
        """Return a topic whose partitions this broker leads, each in an epoch that is larger than all earlier ones.

        A log has no trace of an epoch without records, nor of one whose records were lost. Epochs therefore begin at
        the current time, unless Apache Kafka's metadata has the last one. `coordinator_epoch` is the largest in the
        markers found: the coordinator epoch is the leader epoch of a partition of `__transaction_state`.
        """
        controller = self._controller
        epochs = {log.partition: log.latest_epoch for log in logs}
        least_epoch = coordinator_epoch if name == TRANSACTION_STATE_TOPIC else NEVER_LED
        now = epoch_of_time(controller.context.now_ms())
        me = (controller.broker_id,)
        known = None if self.kraft is None else self.kraft.topics.get(name)
        partitions = []
        for index in range(partition_count):
            stored = None if known is None else known.partitions.get(index)
            stored_epoch = now - 1 if stored is None else stored.leader_epoch
            epoch = max(epochs.get(index, NEVER_LED), stored_epoch, least_epoch) + 1
            partitions.append(PartitionMetadata(me[0], epoch, me, me, controller.epoch))
        return TopicMetadata(name, topic_id, tuple(partitions))

    def _configs(self, topic: str, internal: Mapping[str, str]) -> tuple[dict[str, str], bool]:
        """Return a topic's explicit configuration, and whether it suspends retention."""
        known = None if self.kraft is None else self.kraft.topic_configs.get(topic, {})
        if internal:
            configs = {**internal, **(known or {})}
            if "min.insync.replicas" in configs:
                # The topic has one replica from now on; with a larger value all appends to it would fail.
                configs["min.insync.replicas"] = "1"
            return configs, False
        if known is None:
            return dict(SUSPENDED), True
        suspended = self._suspend_retention(known)
        return {**known, **suspended}, bool(suspended)

    def _suspend_retention(self, configs: Mapping[str, str]) -> dict[str, str]:
        """Return properties that suspend retention of a topic in Kafka's metadata; none if retention is configured."""
        policy = self._find_configured("cleanup.policy", configs)
        if policy is not None and "delete" not in {part.strip() for part in policy.split(",")}:
            return {}
        if self._find_configured("retention.ms", configs) is not None:
            return {}
        names = ["retention.ms"]
        if self._find_configured("retention.bytes", configs) is None:
            names.append("retention.bytes")
        return {name: SUSPENDED[name] for name in names}

    def _find_configured(self, name: str, configs: Mapping[str, str]) -> str | None:
        """Return a value that is set for the topic or for the broker; None if the default applies."""
        synonyms = (synonym.name for synonym in LogConfig.declared()[name].synonyms)
        values = (self._broker_values[synonym] for synonym in synonyms if synonym in self._broker_values)
        return configs.get(name, next(values, None))


def _not_adopted(topic: str, reason: KafkaError) -> StartError:
    return StartError(f"topic {topic}, found in log.dirs, cannot be adopted: {reason.message}; start again")
