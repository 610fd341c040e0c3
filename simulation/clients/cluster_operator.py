"""An operator of a cluster: reassigns replicas, elects preferred leaders and changes properties of topics under load.

It also creates, grows and deletes topics of its own, whose records no client reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestReassignablePartition,
    AlterPartitionReassignmentsRequestReassignableTopic,
)
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients import topic_admin
from odradek.simulation.clients.link import Link, Versions
from odradek.simulation.history import History, Partition

_TIMEOUT_MS: Final = 1_500
_PREFERRED: Final = 0

OPERATED_TOPICS: Final = ("operated-1", "operated-2")


_LEAST_REPLICAS: Final = 2
"""With fewer, the failure of one machine would lose records."""
_MOST_REPLICAS: Final = 4
_SAME_NUMBER_SHARE: Final = 0.3
_CANCELLED: Final = 2
"""Number of earlier reassignments, besides the last one, that may be cancelled."""


class ReassignmentRule(Protocol):
    """Permits reassignments that cannot lose committed records together with the faults of a run."""

    def begin_reassignment(self, partition: Partition, target: Sequence[int] | None, /) -> bool:
        """Return whether a request may be sent now."""

    def end_reassignment(self, partition: Partition, target: Sequence[int] | None, /) -> None:
        """Note the response."""


class ClusterOperator:
    """Works until the world ends.

    partitions: those of the topics that it configures
    moved: those whose replicas it reassigns, some of which may not exist
    """

    def __init__(
        self,
        world: World,
        history: History,
        random: Random,
        partitions: Sequence[Partition],
        moved: Sequence[Partition],
        broker_ids: Sequence[int],
        replication_factor: int,
        rule: ReassignmentRule,
    ) -> None:
        self.name = "operator"
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._moved = moved
        self._rule = rule
        self._broker_ids = broker_ids
        self._replication_factor = replication_factor
        self._replica_counts = range(_LEAST_REPLICAS, min(len(broker_ids), _MOST_REPLICAS) + 1)
        self._link = Link(world, history, self.name, random, Versions(random, topic_admin.VERSIONS))
        self._reassigned: list[Partition] = []
        self._pause_s = random.choice((0.1, 0.3, 1.0))
        self._actions = [
            self._reassign, self._reassign, self._cancel, self._elect, self._configure, self._create, self._grow,
            self._delete,
        ]  # fmt: skip

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            await self._link.nap(self._random.expovariate(1 / self._pause_s))
            action = self._random.choice(self._actions)
            try:
                await action()
            except ConnectionLost:
                continue
        self._link.close()

    async def _reassign(self) -> None:
        count = self._replication_factor
        if self._random.random() >= _SAME_NUMBER_SHARE:
            count = self._random.choice(self._replica_counts)
        partition = self._random.choice(self._moved)
        self._reassigned = [*self._reassigned[-_CANCELLED:], partition]
        await self._alter(partition, self._random.sample(self._broker_ids, count))

    async def _cancel(self) -> None:
        if self._reassigned:
            await self._alter(self._random.choice(self._reassigned), None)

    async def _alter(self, partition: Partition, replicas: list[int] | None) -> None:
        if not self._rule.begin_reassignment(partition, replicas):
            self._history.note(self.name, f"no reassignment of {partition}: another replica has lost data")
            return
        row = AlterPartitionReassignmentsRequestReassignablePartition(partition_index=partition[1], replicas=replicas)
        topic = AlterPartitionReassignmentsRequestReassignableTopic(name=partition[0], partitions=[row])
        request = AlterPartitionReassignmentsRequest(timeout_ms=_TIMEOUT_MS, topics=[topic])
        # Without a response it may take effect later.
        answer = await self._link.request(request)
        self._rule.end_reassignment(partition, replicas)
        codes = [answer.error_code, *(row.error_code for topic in answer.responses for row in topic.partitions)]
        self._check(f"reassign {partition} to {replicas}", max(codes))

    async def _elect(self) -> None:
        topic, index = self._random.choice(self._moved)
        rows = [ElectLeadersRequestTopicPartitions(topic=topic, partitions=[index])]
        request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=rows, timeout_ms=_TIMEOUT_MS)
        answer = await self._link.request(request)
        self._check(f"elect the leader of {topic}-{index}", answer.error_code)

    async def _configure(self) -> None:
        topic, _ = self._random.choice(self._partitions)
        configs = {"internal.segment.bytes": str(self._random.choice((700, 3_000, 20_000)))}
        self._check(f"configure {topic}", await topic_admin.alter_topic(self._link, topic, configs))

    # Its own topics

    async def _create(self) -> None:
        name = self._random.choice(OPERATED_TOPICS)
        row = await topic_admin.create_topic(
            self._link, name, self._random.randint(1, 3), {}, self._random.choice(self._replica_counts)
        )
        self._check(f"create {name}", row.error_code)

    async def _grow(self) -> None:
        name, count = self._random.choice(OPERATED_TOPICS), self._random.randint(2, 5)
        self._check(f"grow {name} to {count}", await topic_admin.grow_topic(self._link, name, count))

    async def _delete(self) -> None:
        row = await topic_admin.describe_topic(self._link, self._random.choice(OPERATED_TOPICS))
        if row.error_code == ErrorCode.NONE:
            self._check(f"delete {row.name}", await topic_admin.delete_topic(self._link, row.topic_id))

    def _check(self, what: str, code: int) -> None:
        """Note the result; no request of this client may be answered with an unexpected error of the broker."""
        name = ErrorCode(code).name
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._history.note_odd(self.name, f"{what}: {name}")
        else:
            self._history.note(self.name, f"{what}: {name}")
