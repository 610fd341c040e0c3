"""A consumer of partitions that it assigns itself, with either isolation level."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.consumers.fetching import Fetcher, OutOfRange
from odradek.simulation.clients.consumers.offsets import list_end
from odradek.simulation.clients.consumers.truncation import check_truncation
from odradek.simulation.clients.link import NEEDS_IDS, GaveUp, Link, Versions
from odradek.simulation.history import History, Isolation, Partition

FETCH_WITH_ZSTD: Final = (10, 18)


class AssignedConsumer:
    """Reads from the start or from a random offset, restarts at random times, and lists end offsets."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        isolation: Isolation,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = list(partitions)
        self._link = Link(world, history, name, random, Versions(random, NEEDS_IDS | {1: FETCH_WITH_ZSTD}))
        self._fetcher = Fetcher(self._link, history, random, isolation)
        self._max_wait_ms = random.choice((0, 50, 500))
        self._starts_again = random.choice((0.0, 0.02, 0.2))

    async def run(self) -> None:
        """Work until the world ends."""
        try:
            self._assign()
            while not self._world.is_ending:
                await self._step()
        except GaveUp:
            pass
        self._link.close()

    async def _step(self) -> None:
        random = self._random
        try:
            await self._fetcher.poll(self._max_wait_ms)
        except ConnectionLost:
            await self._link.back_off(1)
        except OutOfRange as error:
            self._out_of_range(error.partition)
        if self._history.settings.is_cluster and self._fetcher.epochs and random.random() < 0.1:
            await self._check_truncation(random.choice(list(self._fetcher.epochs)))
        if random.random() < self._starts_again:
            self._assign()
        if random.random() < 0.1:
            await list_end(self._link, random.choice(self._partitions), random.choice(list(Isolation)))
        await self._link.nap(random.choice((0.001, 0.02, 0.1)))

    async def _check_truncation(self, partition: Partition) -> None:
        position, epoch = self._fetcher.positions[partition], self._fetcher.epochs[partition]
        try:
            await check_truncation(self._link, self._history, partition, position, epoch)
        except ConnectionLost:
            await self._link.back_off(1)

    def _assign(self) -> None:
        """Assign some of the partitions, each from the start or from an offset before its last known end."""
        chosen = self._random.sample(self._partitions, self._random.randint(1, len(self._partitions)))
        ends = self._fetcher.high_watermarks
        positions = {
            partition: self._random.choice((0, self._random.randint(0, ends.get(partition, 0)))) for partition in chosen
        }
        self._fetcher.assign(positions)

    def _out_of_range(self, partition: Partition) -> None:
        """Report a position out of range, unless a crash that lost the tail of the log or retention explains it."""
        if not len(self._history.lossy_crashes(partition[0])) and partition[0] not in self._history.settings.aged:
            position = self._fetcher.positions[partition]
            self._history.note_odd(self.name, f"position {position} of {partition} is out of range")
        self._fetcher.high_watermarks = {}
        self._assign()
