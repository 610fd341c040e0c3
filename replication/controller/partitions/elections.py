"""Elections that the controller starts itself: unclean ones when they are enabled, and returns to preferred replicas.

Leaders of partitions whose leader failed are elected by `topics.changes`, those that clients request by
`admin.elections`.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from odradek.replication.controller.context import UNCLEAN_ELECTION, ControllerContext
from odradek.replication.controller.events import EventKind, Work
from odradek.replication.controller.states.partition_states import elect_preferred_leader
from odradek.replication.controller.topics.changes import TopicChanges
from odradek.replication.metadata.image import MetadataDelta, PartitionMetadata, TopicMetadata
from odradek.replication.pauses import in_slices

logger = logging.getLogger(__name__)

Post = Callable[[EventKind, str, Work[None]], None]

_PARTITIONS_PER_PAUSE: Final = 100


class Elections:
    """Elections on the controller. `post` submits an event."""

    def __init__(self, context: ControllerContext, changes: TopicChanges, post: Post) -> None:
        self._context = context
        self._changes = changes
        self._post = post
        context.image.listeners.append(self._on_metadata)

    def _on_metadata(self, delta: MetadataDelta) -> None:
        """Elect leaders for partitions without one if a changed configuration allows unclean elections."""
        context = self._context
        if not context.is_active:
            return
        configs = context.image.topic_configs
        changed = (name for name in delta.topic_configs if UNCLEAN_ELECTION in configs.get(name, ()))
        is_enabled = any(context.allows_unclean_election(name) for name in changed)
        if is_enabled or (delta.broker_configs and self._is_enabled_by_default()):
            self._post(EventKind.CONFIGURATION, "unclean election was enabled", self._elect_unclean)

    def _is_enabled_by_default(self) -> bool:
        context = self._context
        brokers = context.image.broker_configs
        return any(UNCLEAN_ELECTION in brokers.get(key, ()) for key in (context.broker_id, None))

    async def _elect_unclean(self) -> None:
        if self._context.is_active:
            await self._changes.elect_leaders("unclean election was enabled")

    async def rebalance(self, max_imbalance_percent: int) -> None:
        """Elect preferred leaders for brokers that lead too few of the partitions whose preferred leader they are.

        Runs within an event of the controller.
        """
        context = self._context
        if not context.is_active:
            return
        totals: dict[int, int] = {}
        displaced: dict[int, list[tuple[str, int]]] = {}
        for topic in list(context.image.topics.values()):
            async for index, partition in in_slices(enumerate(topic.partitions), _PARTITIONS_PER_PAUSE, context.pause):
                preferred = partition.replicas[0]
                totals[preferred] = totals.get(preferred, 0) + 1
                if partition.leader != preferred:
                    displaced.setdefault(preferred, []).append((topic.name, index))
        partitions = [
            key
            for preferred, keys in displaced.items()
            if 100 * len(keys) > max_imbalance_percent * totals[preferred]
            for key in keys
        ]
        await self.elect_preferred(partitions)

    async def elect_preferred(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Elect the preferred leaders of partitions (topic, index) that they do not lead, if they are live and in sync.

        Runs within an event of the controller.
        """
        await self._changes.change_states(partial(self._choose_preferred, partitions))

    async def _choose_preferred(self, partitions: Sequence[tuple[str, int]]) -> list[TopicMetadata]:
        context = self._context
        changed: dict[str, list[PartitionMetadata]] = {}
        count = 0
        async for name, index in in_slices(partitions, _PARTITIONS_PER_PAUSE, context.pause):
            topic, partition = context.image.topics.get(name), context.image.partition(name, index)
            if topic is None or partition is None or partition.leader == partition.replicas[0]:
                continue
            elected = elect_preferred_leader(partition, context.staying_brokers, context.epoch)
            if elected is not None:
                states = changed.setdefault(name, list(topic.partitions))
                states[index] = context.change_state(partition, elected, name, index, "preferred leader")
                count += 1
        if changed:
            logger.info("electing preferred leaders partitions=%d", count)
        return [context.image.topics[name]._replace(partitions=tuple(states)) for name, states in changed.items()]
