"""Read-process-write: a group member that copies records and commits its offsets in the same transaction.

As in KIP-447, the group's generation fences a member that has lost its partitions, and the transactional id fences an
instance that was replaced. Each input is therefore copied exactly once, even if an instance dies at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.consumers.fetching import Fetcher, OutOfRange
from odradek.simulation.clients.consumers.membership import LIMITS, LOST_MEMBERSHIP, FencedMember, Membership
from odradek.simulation.clients.consumers.offsets import fetch_committed
from odradek.simulation.clients.link import ClientDied, GaveUp, Link, Versions
from odradek.simulation.clients.producers.transaction_session import (
    GROUP_ERRORS,
    FencedProducer,
    Flow,
    MustAbort,
    TransactionalSession,
)
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import Copy, History, Isolation, Partition, ReadRecord, SentRecord, copied_value

_OFFSET_FETCH = {9: (7, 10)}
"""Versions with require_stable."""
_RECORDS_A_WRITE: Final = 4


class Copier:
    """A sequence of instances with one transactional id, until the world ends."""

    def __init__(
        self, world: World, history: History, name: str, random: Random, job: Copy, flow: Flow
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._job = job
        self._flow = flow
        self._timeout_ms = random.choice((300, 1_000, 5_000))
        self._values = Values(world, random, name)

    async def run(self) -> None:
        """Work until the world ends."""
        for number in count(1):
            instance = self._instance(f"{self.name}#{number}")
            try:
                await instance.run()
            except (ClientDied, GaveUp, FencedProducer, FencedMember) as end:
                self._history.note(f"{self.name}#{number}", f"ends: {type(end).__name__} {end}")
            instance.end()
            if self._world.is_ending:
                return
            await self._world.sleep(self._random.choice((0.001, 0.1, 0.5)))

    def _instance(self, name: str) -> _Instance:
        world, history, random = self._world, self._history, self._random
        link = Link(world, history, name, random, Versions(random, LIMITS | _OFFSET_FETCH))
        session = TransactionalSession(world, history, name, random, self.name, self._flow, self._timeout_ms)
        membership = Membership(link, self._job.group, self._job.inputs, random)
        fetcher = Fetcher(link, history, random, Isolation.READ_COMMITTED, self._job.group, most_bytes=500)
        return _Instance(world, random, self._job, self._values, link, session, membership, fetcher)


class _Instance:
    """One instance, from its start to its end."""

    def __init__(
        self,
        world: World,
        random: Random,
        job: Copy,
        values: Values,
        link: Link,
        session: TransactionalSession,
        membership: Membership,
        fetcher: Fetcher,
    ) -> None:
        self._world = world
        self._random = random
        self._job = job
        self._values = values
        self._link = link
        self._session = session
        self._membership = membership
        self._fetcher = fetcher

    async def run(self) -> None:
        """Copy until the world ends. Raises the exception that ends the instance."""
        await self._session.start()
        chance = self._random.choice((0.0, 0.003, 0.02))
        self._link.chance_of_death = self._session.link.chance_of_death = chance
        while not self._world.is_ending:
            owned = await self._membership.join()
            await self._rewind(owned)
            while not self._world.is_ending and await self._step(owned):
                pass
        self._link.chance_of_death = 0.0
        await self._membership.leave()

    def end(self) -> None:
        """Close all connections; an open transaction stays open."""
        self._session.abandon()
        self._link.close()

    async def _rewind(self, owned: Sequence[Partition]) -> None:
        """Continue from the committed offsets, once no open transaction can change them."""
        positions = {}
        if owned:
            committed = await fetch_committed(self._link, self._job.group, owned)
            positions = {partition: max(0, offset) for partition, offset in committed.items()}
        self._fetcher.assign(positions)

    async def _step(self, owned: Sequence[Partition]) -> bool:
        """Copy the records of one poll; return False if the member has to rejoin."""
        try:
            code = await self._membership.heartbeat()
            if code == ErrorCode.REBALANCE_IN_PROGRESS or code in LOST_MEMBERSHIP:
                self._membership.forget(code)
                return False
            before = dict(self._fetcher.positions)
            records = await self._fetcher.poll(50) if before else []
        except ConnectionLost:
            await self._link.back_off(1)
            return True
        except OutOfRange as error:
            return self._out_of_range(error.partition)
        after = self._fetcher.positions
        moved = {partition: offset for partition, offset in after.items() if before[partition] != offset}
        if moved:
            return await self._copy(owned, records, moved)
        await self._link.nap(self._random.choice((0.01, 0.05)))
        return True

    async def _copy(
        self, owned: Sequence[Partition], records: Sequence[tuple[Partition, ReadRecord]], moved: dict[Partition, int]
    ) -> bool:
        """Copy in one transaction; return False if the group has a new generation."""
        session = self._session
        session.begin()
        try:
            for start in range(0, len(records), _RECORDS_A_WRITE):
                await session.write(self._outputs(records[start : start + _RECORDS_A_WRITE]))
            await self._perhaps_sleep()
            await session.commit_offsets(
                self._job.group, moved, self._membership.generation, self._membership.member_id
            )
            await self._perhaps_sleep()
            if self._random.random() < 0.1:
                raise MustAbort("voluntarily")
            await session.commit()
        except MustAbort as reason:
            self._link.history.note(self._link.name, f"aborts: {reason}")
            await session.abort()
            if str(reason) in {code.name for code in GROUP_ERRORS}:
                self._membership.forget(ErrorCode[str(reason)])
                return False
            await self._rewind(owned)
        return True

    def _outputs(self, records: Sequence[tuple[Partition, ReadRecord]]) -> dict[Partition, list[SentRecord]]:
        """Return the copies by output partition; those of one input partition stay together and in order."""
        outputs: dict[Partition, list[SentRecord]] = {}
        for source, record in records:
            assert record.value is not None
            target = self._job.outputs[self._job.inputs.index(source) % len(self._job.outputs)]
            value = copied_value(self._values.label(), source, record.offset, record.value)
            outputs.setdefault(target, []).append(self._values.record(value))
        return outputs

    async def _perhaps_sleep(self) -> None:
        """Sometimes sleep long enough to lose the partitions, or to let the transaction time out."""
        if self._random.random() < 0.03 and not self._world.is_ending:
            await self._world.sleep(self._random.choice((0.1, 0.5, 2.0)))

    def _out_of_range(self, partition: Partition) -> bool:
        history = self._link.history
        if not len(history.lossy_crashes(partition[0])):
            history.note_odd(self._link.name, f"{self._fetcher.positions[partition]} is out of range in {partition}")
        positions = self._fetcher.positions | {partition: 0}
        self._fetcher.assign(positions)
        return True
