"""A consumer in a group: reads its assigned partitions from the committed offsets, and commits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

from odradek.protocol.errors import ErrorCode
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.consumers.fetching import Fetcher, OutOfRange
from odradek.simulation.clients.consumers.membership import (
    LIMITS,
    LOST_MEMBERSHIP,
    STATIC_LIMITS,
    FencedMember,
    Membership,
)
from odradek.simulation.clients.consumers.offsets import commit, fetch_committed
from odradek.simulation.clients.link import ClientDied, GaveUp, Link, Versions
from odradek.simulation.history import History, Isolation, Partition


class GroupConsumer:
    """A sequence of members, until the world ends; static members (KIP-345) keep the instance id."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        group: str,
        partitions: Sequence[Partition],
        isolation: Isolation,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._group = group
        self._partitions = partitions
        self._isolation = isolation
        self._instance_id = name if random.random() < 0.25 else None

    async def run(self) -> None:
        """Work until the world ends."""
        for number in count(1):
            limits = LIMITS if self._instance_id is None else LIMITS | STATIC_LIMITS
            versions = Versions(self._random, limits)
            link = Link(self._world, self._history, f"{self.name}#{number}", self._random, versions)
            membership = Membership(link, self._group, self._partitions, self._random, self._instance_id)
            fetcher = Fetcher(link, self._history, self._random, self._isolation, self._group)
            try:
                await _Member(self._world, self._random, link, membership, fetcher).run()
            except (ClientDied, GaveUp, FencedMember) as end:
                self._history.note(link.name, f"ends: {type(end).__name__}")
            link.close()
            if self._world.is_ending:
                return
            await self._world.sleep(self._random.choice((0.001, 0.1, 0.5)))


class _Member:
    """A member from its first join to its end."""

    def __init__(
        self, world: World, random: Random, link: Link, membership: Membership, fetcher: Fetcher
    ) -> None:
        self._world = world
        self._random = random
        self._link = link
        self._membership = membership
        self._fetcher = fetcher
        self._committed: dict[Partition, int] = {}
        self._commit_chance = random.choice((0.05, 0.5))
        self._leaves_after = random.choice((10, 100, 1 << 30))
        self._polls = 0

    async def run(self) -> None:
        """Join, read, and rejoin."""
        link = self._link
        link.chance_of_death = self._random.choice((0.0, 0.003, 0.02))
        while not self._world.is_ending and self._polls < self._leaves_after:
            await self._begin(await self._membership.join())
            while not self._world.is_ending and self._polls < self._leaves_after and await self._step():
                self._polls += 1
        link.chance_of_death = 0.0
        await self._commit()
        await self._membership.leave()

    async def _begin(self, owned: list[Partition]) -> None:
        """Start a generation from the committed offsets."""
        positions = {}
        if owned:
            self._committed = await fetch_committed(self._link, self._membership.group, owned)
            positions = {partition: max(0, offset) for partition, offset in self._committed.items()}
        self._fetcher.assign(positions)

    async def _step(self) -> bool:
        """Send a heartbeat, poll, and sometimes commit; return False if the member has to rejoin."""
        random = self._random
        try:
            code = await self._membership.heartbeat()
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                await self._commit()
                return False
            if code in LOST_MEMBERSHIP:
                self._membership.forget(code)
                return False
            if self._fetcher.positions:
                await self._fetcher.poll(random.choice((0, 50)))
        except ConnectionLost:
            await self._link.back_off(1)
            return True
        except OutOfRange as error:
            return self._out_of_range(error.partition)
        if random.random() < self._commit_chance and not await self._commit():
            return False
        if random.random() < 0.01:
            # Long enough to be removed from the group; the member then continues as if it were still in it.
            await self._link.nap(self._membership.session_timeout_ms / 1000 * random.uniform(0.5, 2.0))
            return random.random() < 0.5 or await self._commit()
        await self._link.nap(random.choice((0.005, 0.02, 0.1)))
        return True

    async def _commit(self) -> bool:
        """Commit the positions that have changed; return False if the member has to rejoin."""
        moved = {
            partition: position
            for partition, position in self._fetcher.positions.items()
            if self._committed.get(partition) != position
        }
        if not moved:
            return True
        membership = self._membership
        code = await commit(self._link, membership.group, moved, membership)
        if code == ErrorCode.NONE:
            self._committed.update(moved)
            return True
        if code in LOST_MEMBERSHIP:
            membership.forget(code)
        return code not in LOST_MEMBERSHIP and code != ErrorCode.REBALANCE_IN_PROGRESS

    def _out_of_range(self, partition: Partition) -> bool:
        history = self._link.history
        if not len(history.lossy_crashes(partition[0])):
            history.note_odd(self._link.name, f"{self._fetcher.positions[partition]} is out of range in {partition}")
        self._fetcher.assign(self._fetcher.positions | {partition: 0})
        return True
