"""A client that commits offsets with a short retention time, which old versions of OffsetCommit can set.

It commits and fetches with pauses in which offsets expire, deletes its group, and sometimes runs two operations
concurrently over two connections.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.group_admin import delete_group
from odradek.simulation.clients.link import GROUP, GaveUp, Link, Versions
from odradek.simulation.clients.producers.produce import NEVER_EXPECTED
from odradek.simulation.history import History, Outcome, Partition

_LIMITS: Final = {8: (2, 4), 9: (8, 9), 10: (1, 6)}
"""Versions with a retention time in OffsetCommit, and topic names in OffsetFetch."""


class BriefCommitter:
    """The only client of its group."""

    def __init__(self, world: World, history: History, name: str, random: Random, partition: Partition) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partition = partition
        self._link = Link(world, history, name, random, Versions(random, _LIMITS))
        self._second_link = Link(world, history, name, random, Versions(random, _LIMITS))
        self._retention_ms = random.choice((100, 400, 2_000))
        self._committed = 0

    async def run(self) -> None:
        """Work until the world ends."""
        random = self._random
        try:
            while not self._world.is_ending:
                await self._link.find_coordinator(self.name, GROUP)
                try:
                    await self._step()
                except ConnectionLost:
                    await self._link.back_off(1)
                wait_s = self._retention_ms / 1000 * random.uniform(0.5, 1.5) if random.random() < 0.4 else 0.01
                await self._link.nap(wait_s)
        except GaveUp:
            pass
        self._link.close()
        self._second_link.close()

    async def _step(self) -> None:
        chance = self._random.random()
        if chance < 0.45:
            await self._commit()
        elif chance < 0.9:
            await self._fetch()
        elif chance < 0.95:
            await delete_group(self._link, self.name)
        else:
            deletion = self._world.start(delete_group(self._second_link, self.name), f"{self.name}-second")
            try:
                await self._commit()
            finally:
                await deletion

    async def _commit(self) -> None:
        history, partition = self._history, self._partition
        await self._link.connection()
        self._committed += 1
        commit = history.begin_commit(
            self.name, self.name, partition, self._committed, retention_ms=self._retention_ms
        )
        row = OffsetCommitRequestPartition(
            partition_index=partition[1], committed_offset=self._committed, committed_metadata=""
        )
        topic = OffsetCommitRequestTopic(name=partition[0], partitions=[row])
        request = OffsetCommitRequest(group_id=self.name, retention_time_ms=self._retention_ms, topics=[topic])
        outcome, error = Outcome.UNKNOWN, "no response"
        try:
            answer = await self._link.request(request)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            error = code.name
            if code == ErrorCode.NONE:
                outcome = Outcome.OK
            elif code in NEVER_EXPECTED:
                history.note_odd(self.name, f"OffsetCommit: {error}")
        finally:
            history.end_commit(commit, outcome, error=error)

    async def _fetch(self) -> None:
        topic = OffsetFetchRequestTopics(name=self._partition[0], partition_indexes=[self._partition[1]])
        group = OffsetFetchRequestGroup(group_id=self.name, topics=[topic])
        await self._link.connection()
        requested_at = self._history.moment()
        answer: Any = (await self._link.request(OffsetFetchRequest(groups=[group], require_stable=True))).groups[0]
        if answer.error_code == ErrorCode.NONE and answer.topics:
            row = answer.topics[0].partitions[0]
            if row.error_code == ErrorCode.NONE:
                self._history.record_fetch(
                    self.name, requested_at, self.name, self._partition, row.committed_offset, stable=True
                )
