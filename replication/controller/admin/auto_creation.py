"""Automatic creation of topics in a cluster, by the broker whose client needs the topic.

As in Kafka 3.9 with ZooKeeper, the broker writes the nodes of the topic itself, whichever broker is the controller. The
controller's watch finds the topic, and elects leaders; the brokers then get its metadata. The client gets
LEADER_NOT_AVAILABLE at once, and retries. If several brokers create a topic at the same time, the first one wins.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.automatic_topics import find_setting, plan_automatic_topic
from odradek.replication.controller.admin.topics import MAX_PARTITIONS_PER_REQUEST, USE_DEFAULT
from odradek.replication.controller.context import as_kafka_error
from odradek.replication.controller.states.assignment import RandomSource, assign_replicas, find_racks
from odradek.replication.controller.topics.ids import random_topic_id
from odradek.replication.metadata import znodes
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.image import NO_LEADER, ClusterMetadata, PartitionMetadata
from odradek.replication.metadata.store import (
    Create,
    MetadataStore,
    MetadataStoreError,
    NodeExistsError,
    Operation,
    SetData,
    TransactionError,
)
from odradek.replication.metadata.topic_names import check_topic_name, colliding_topic, is_internal
from odradek.replication.pauses import Pause, run_with_pauses

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
"""Attempts to create a topic whose configuration's node appears or disappears meanwhile."""


class AutoCreation(Protocol):
    """Creates topics that clients use without having created them, and internal topics."""

    async def auto_create(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Create topics with distinct names; return errors by name.

        If there are more topics or partitions than a request may create, none is created and the result is empty.
        """


class ClusterAutoCreation:
    """Creates topics from any broker of a cluster (`AutoCreation`).

    metadata: the metadata cache of this broker: replicas are assigned to its live brokers
    random: chooses topic ids and the first broker of each assignment
    """

    def __init__(
        self,
        store: MetadataStore,
        metadata: ClusterMetadata,
        configs: BrokerConfigs,
        random: RandomSource,
        pause: Pause,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._configs = configs
        self._random = random
        self._pause = pause
        self._in_progress: set[str] = set()
        self._logged: dict[str, str] = {}
        """The last failure of each internal topic, which clients repeat many times a second."""

    async def auto_create(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Create topics; return errors by name, which is LEADER_NOT_AVAILABLE for a created one.

        A topic that another request is creating has UNKNOWN_TOPIC_OR_PARTITION.
        """
        if self._is_too_large(names):
            logger.warning(
                "automatic creation of topics refused count=%d: a request may create %d partitions at most",
                len(names),
                MAX_PARTITIONS_PER_REQUEST,
            )
            return {}
        errors: dict[str, KafkaError | None] = {}
        mine: list[str] = []
        for name in names:
            await self._pause()
            try:
                self._begin(name)
                mine.append(name)
            except KafkaError as error:
                errors[name] = error
        try:
            if mine:
                errors |= await self._create_all(mine)
        finally:
            self._in_progress.difference_update(mine)
        return errors

    def _is_too_large(self, names: Sequence[str]) -> bool:
        if len(names) > MAX_PARTITIONS_PER_REQUEST:
            return True
        usual = max(1, find_setting(self._configs, "num.partitions", 1))
        internal = [name for name in names if is_internal(name)]
        count = sum(plan_automatic_topic(name, self._configs).num_partitions for name in internal)
        return count + usual * (len(names) - len(internal)) > MAX_PARTITIONS_PER_REQUEST

    def _begin(self, name: str) -> None:
        """Begin a creation. Raises KafkaError."""
        check_topic_name(name)
        if name in self._in_progress:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is being created.")
        self._in_progress.add(name)

    async def _create_all(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        errors: dict[str, KafkaError | None] = {}
        try:
            existing = set(await self._store.get_children(znodes.TOPICS))
        except MetadataStoreError as error:
            return dict.fromkeys(names, as_kafka_error(error))
        for name in names:
            await self._pause()
            try:
                await self._create(name, existing)
                existing.add(name)
                self._logged.pop(name, None)
                errors[name] = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"Topic '{name}' was created.")
            except (KafkaError, MetadataStoreError) as error:
                errors[name] = refusal = as_kafka_error(error)
                self._log_failure(name, refusal)
        return errors

    async def _create(self, name: str, existing: Collection[str]) -> None:
        """Create a topic unless it exists. Raises KafkaError, MetadataStoreError."""
        if name in existing:
            return
        other = colliding_topic(name, existing)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )
        # The controller may still remove the configuration of a deleted topic.
        if await self._store.exists(znodes.deletion_path(name)) is not None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"Topic '{name}' is being deleted.")
        plan = plan_automatic_topic(name, self._configs)
        count, factor = plan.num_partitions, plan.replication_factor
        if count == USE_DEFAULT:
            count = find_setting(self._configs, "num.partitions", 1)
        if factor == USE_DEFAULT:
            factor = find_setting(self._configs, "default.replication.factor", 1)
        partitions = tuple(PartitionMetadata(NO_LEADER, 0, replicas, ()) for replicas in self._assign(count, factor))
        configs = {entry.name: entry.value or "" for entry in plan.configs}
        encoding = znodes.encode_topic_in_steps(random_topic_id(self._random), partitions)
        topic = await run_with_pauses(encoding, self._pause)
        if await self._write(name, znodes.encode_config(configs), topic):
            logger.info(
                "created topic=%s partitions=%d replicas=%d; the controller elects its leaders", name, count, factor
            )

    def _assign(self, count: int, factor: int) -> list[tuple[int, ...]]:
        brokers = sorted(self._metadata.brokers)
        if not brokers:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "no broker is registered")
        start, shift = self._random.randrange(len(brokers)), self._random.randrange(len(brokers))
        racks = find_racks(self._metadata.brokers.values())
        return assign_replicas(brokers, count, factor, start=start, shift=shift, racks=racks)

    async def _write(self, name: str, configs: bytes, topic: bytes) -> bool:
        """Write configuration and topic together; return False if the topic exists. Raises MetadataStoreError.

        A configuration without a topic, which an interrupted creation or deletion left, is replaced.
        """
        path = znodes.topic_config_path(name)
        replaces = False
        for _ in range(_MAX_ATTEMPTS):
            write_configs: Operation = SetData(path, configs) if replaces else Create(path, configs)
            try:
                await self._store.transaction([Create(znodes.topic_path(name), topic), write_configs])
            except TransactionError as error:
                if error.index == 0 and isinstance(error.cause, NodeExistsError):
                    return False
                if error.index == 0:
                    raise
                replaces = not replaces
            else:
                return True
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"Topic '{name}' is being created or deleted.")

    def _log_failure(self, name: str, error: KafkaError) -> None:
        if is_internal(name) and self._logged.get(name) != str(error):
            self._logged[name] = str(error)
            logger.warning("automatic creation of a topic failed topic=%s error=%s", name, error)
