"""Requests that operators write into the metadata store of a cluster, as with Kafka's tools before KIP-455 and KIP-460.

`/admin/reassign_partitions` exists until its reassignments are finished or replaced,
`/admin/preferred_replica_election` until the leaders are elected. Requests that cannot be decoded, and invalid rows,
are removed with a log line.
"""

import logging
from collections.abc import Callable

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.context import ControllerContext
from odradek.replication.controller.events import EventKind, Work
from odradek.replication.controller.partitions.elections import Elections
from odradek.replication.controller.partitions.reassignment import Reassignments
from odradek.replication.controller.states.assignment import check_replicas
from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import (
    ANY_VERSION,
    Delete,
    NoNodeError,
    Operation,
    SetData,
    StoreDamagedError,
    TransactionError,
    WatchEvent,
)

logger = logging.getLogger(__name__)

Post = Callable[[EventKind, str, Work[None]], None]
Targets = dict[tuple[str, int], tuple[int, ...]]


class OperatorRequests:
    """Watches the nodes and executes the requests. `post` submits an event."""

    def __init__(
        self, context: ControllerContext, reassignments: Reassignments, elections: Elections, post: Post
    ) -> None:
        self._context = context
        self._reassignments = reassignments
        self._elections = elections
        self._post = post
        # The targets of which the reassignment was begun or refused, as long as they are in the node.
        self._begun: Targets = {}
        reassignments.on_finished.append(self._on_finished)

    async def execute(self) -> None:
        """Execute the present requests and watch for others. Called in an event, after the controller's election."""
        if self._context.store.is_shared:
            await self._reassign()
            await self._elect()

    # Reassignments

    def _on_reassignments(self, event: WatchEvent) -> None:
        self._post(EventKind.TOPICS, "an operator requested reassignments", self._reassign)

    async def _reassign(self) -> None:
        context = self._context
        if not context.is_active:
            return
        if await context.store.exists(znodes.REASSIGN_PARTITIONS, self._on_reassignments) is None:
            self._begun = {}
            return
        targets, _ = await self._read_targets()
        by_topic: dict[str, dict[int, tuple[int, ...] | None]] = {}
        for (name, index), target in targets.items():
            try:
                self._check(name, index, target)
            except KafkaError as error:
                logger.error("refused reassignment topic=%s partition=%d replicas=%s: %s", name, index, target, error)
                continue
            if not self._reassignments.is_in_progress(name, index, target):
                by_topic.setdefault(name, {})[index] = target
        for name, wanted in by_topic.items():
            try:
                results = await self._reassignments.begin(name, wanted)
            except KafkaError as error:
                if error.code is not ErrorCode.POLICY_VIOLATION:
                    raise
                # Nothing was changed. An error would end each takeover, so that the cluster had no controller.
                logger.error("refused reassignments topic=%s partitions=%d: %s", name, len(wanted), error)
                continue
            for index, refused in results.items():
                if refused is not None:
                    logger.error("refused reassignment topic=%s partition=%d: %s", name, index, refused)
        self._begun = targets
        await self._settle()

    async def _read_targets(self) -> tuple[Targets, int]:
        """Return the requested reassignments, and the version of their node."""
        try:
            return await read_node(
                self._context.store,
                znodes.REASSIGN_PARTITIONS,
                lambda node: (znodes.decode_reassignments(node.data), node.stat.version),
            )
        except (NoNodeError, StoreDamagedError) as error:
            logger.error("a request for reassignments cannot be read: %s", error)
            return {}, ANY_VERSION

    def _check(self, name: str, index: int, target: tuple[int, ...]) -> None:
        """Raise KafkaError for an invalid target."""
        brokers, partition = self._context.image.brokers, self._context.image.partition(name, index)
        assigned = () if partition is None else partition.replicas
        check_replicas(target, lambda broker: broker in brokers or broker in assigned)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist")

    def _on_finished(self) -> None:
        if self._begun:
            self._post(EventKind.TOPICS, "reassignments of an operator are finished", self._settle)

    async def _settle(self) -> None:
        """Remove finished and refused reassignments from the node, and the node after the last one.

        Another tool may write the node at any time: what it requests is begun by the event of its watch.
        """
        context = self._context
        if not context.is_active or await context.store.exists(znodes.REASSIGN_PARTITIONS) is None:
            self._begun = {}
            return
        targets, version = await self._read_targets()
        remaining = {
            (name, index): target
            for (name, index), target in targets.items()
            if self._begun.get((name, index)) != target or self._reassignments.is_in_progress(name, index, target)
        }
        path = znodes.REASSIGN_PARTITIONS
        change: Operation = Delete(path, version)
        if remaining:
            change = SetData(path, znodes.encode_reassignments(remaining), version)
        try:
            if remaining != targets or not remaining:
                await context.write([change])
        except TransactionError as error:
            logger.info("reassignments were requested again path=%s: %s", path, error)
        else:
            self._begun = {key: target for key, target in remaining.items() if self._begun.get(key) == target}

    # Preferred leaders

    def _on_election(self, event: WatchEvent) -> None:
        self._post(EventKind.TOPICS, "an operator requested an election", self._elect)

    async def _elect(self) -> None:
        context = self._context
        if not context.is_active:
            return
        if await context.store.exists(znodes.PREFERRED_ELECTION, self._on_election) is None:
            return
        try:
            partitions, version = await read_node(
                context.store,
                znodes.PREFERRED_ELECTION,
                lambda node: (znodes.decode_partitions(node.data), node.stat.version),
            )
        except (NoNodeError, StoreDamagedError) as error:
            logger.error("a request for an election cannot be read: %s", error)
            partitions, version = [], ANY_VERSION
        await self._elections.elect_preferred(partitions)
        try:
            await context.write([Delete(znodes.PREFERRED_ELECTION, version)])
        except TransactionError as error:
            logger.info("elections were requested again path=%s: %s", znodes.PREFERRED_ELECTION, error)
