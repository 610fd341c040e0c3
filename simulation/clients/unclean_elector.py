"""An operator who prefers availability: elects leaders outside the ISR for partitions without a leader (KIP-460).

It elects them on request, and enables and disables unclean.leader.election.enable.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersRequestTopicPartitions
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients import topic_admin
from odradek.simulation.clients.link import RETRIABLE, Link, Versions
from odradek.simulation.history import History, Partition, name_of

_TIMEOUT_MS: Final = 1_500
_UNCLEAN: Final = 1
_FIRST_WITH_TYPE: Final = 1
_PERMITTED: Final = RETRIABLE | {
    ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
}  # fmt: skip


class UncleanElector:
    """Works until the world ends."""

    def __init__(self, world: World, history: History, random: Random, partitions: Sequence[Partition]) -> None:
        self.name = "elector"
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        versions = topic_admin.VERSIONS | {ElectLeadersRequest.api_key: (_FIRST_WITH_TYPE, 2)}
        self._link = Link(world, history, self.name, random, Versions(random, versions))
        self._pause_s = random.choice((0.1, 0.3, 1.0))

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            await self._link.nap(self._random.expovariate(1 / self._pause_s))
            action = self._random.choice((self._elect, self._elect, self._elect, self._configure))
            try:
                await action(self._random.choice(self._partitions))
            except ConnectionLost:
                continue
        self._link.close()

    async def _elect(self, partition: Partition) -> None:
        topic, index = partition
        rows = [ElectLeadersRequestTopicPartitions(topic=topic, partitions=[index])]
        request = ElectLeadersRequest(election_type=_UNCLEAN, topic_partitions=rows, timeout_ms=_TIMEOUT_MS)
        answer = await self._link.request(request)
        codes = [row.error_code for result in answer.replica_election_results for row in result.partition_result]
        self._check(f"elect a leader of {name_of(partition)}", [answer.error_code, *codes])

    async def _configure(self, partition: Partition) -> None:
        configs = {"unclean.leader.election.enable": self._random.choice(("true", "true", "false"))}
        code = await topic_admin.alter_topic(self._link, partition[0], configs)
        self._check(f"configure {partition[0]}: {configs}", [code])

    def _check(self, what: str, codes: Sequence[int]) -> None:
        text = f"{what}: {', '.join(ErrorCode(code).name for code in codes)}"
        if _PERMITTED.issuperset(codes):
            self._history.note(self.name, text)
        else:
            self._history.note_odd(self.name, text)
