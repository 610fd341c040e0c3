"""A consumer that reads whole partitions again and again, and so notices when records that it has read are lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random

from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import Link, Versions
from odradek.simulation.history import History, Isolation, Partition, Poll, name_of
from odradek.simulation.reads.log_reader import NotYetError, read_log


class Scanner:
    """Reads until the world ends. A read over which the leader changes may return records of both leaders."""

    def __init__(self, world: World, history: History, random: Random, partitions: Sequence[Partition]) -> None:
        self.name = "scanner"
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._link = Link(world, history, self.name, random, Versions(random))
        self._pause_s = random.choice((0.05, 0.2, 0.5))

    async def run(self) -> None:
        """Work until the world ends."""
        for number in count():
            if self._world.is_ending:
                break
            await self._link.nap(self._random.expovariate(1 / self._pause_s))
            try:
                await self._scan(self._random.choice(self._partitions), number)
            except (ConnectionLost, NotYetError):
                continue
        self._link.close()

    async def _scan(self, partition: Partition, number: int) -> None:
        connection = await self._link.connection()
        requested_at = self._history.moment()
        isolation = Isolation.READ_UNCOMMITTED
        try:
            log = await read_log(connection, self.name, partition, isolation, is_last_try=False)
        except ValueError as error:
            self._history.note_odd(self.name, f"cannot read {name_of(partition)}: {error}")
            return
        self._history.record_poll(
            Poll(
                self.name, requested_at, partition, isolation, f"{self.name}/{number}", log.start_offset,
                log.end_offset, log.records, log.high_watermark, log.high_watermark,
            )
        )  # fmt: skip
