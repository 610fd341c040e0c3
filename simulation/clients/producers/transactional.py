"""Transactional producers, their crashes, and zombies: instances that sleep while the next one takes over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

from twisted.internet.defer import Deferred

from odradek.simulation.api import World
from odradek.simulation.clients.link import ClientDied, GaveUp
from odradek.simulation.clients.producers.transaction_session import (
    FencedProducer,
    Flow,
    MustAbort,
    TransactionalSession,
)
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import History, Partition

_TIMEOUTS_MS: Final = (300, 1_000, 5_000)


class TransactionalProducer:
    """A sequence of instances with one transactional id, until the world ends."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        flow: Flow,
        *,
        are_keyed: bool = False,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._flow = flow
        self._timeout_ms = random.choice(_TIMEOUTS_MS)
        self._values = Values(world, random, name, are_keyed=are_keyed)
        self._instances: list[Deferred[None]] = []

    async def run(self) -> None:
        """Work until the world and all instances have ended."""
        for number in count(1):
            instance = _Instance(self, f"{self.name}#{number}")
            self._instances.append(Deferred.fromCoroutine(instance.run()))
            await instance.is_gone
            if self._world.is_ending:
                break
            await self._world.sleep(self._random.choice((0.0, 0.01, 0.3)))
        for running in self._instances:
            await running

    def session(self, name: str) -> TransactionalSession:
        """Return the session of a new instance."""
        return TransactionalSession(
            self._world, self._history, name, self._random, self.name, self._flow, self._timeout_ms
        )


class _Instance:
    """An instance. `is_gone` fires when it has ended, or sleeps so long that it is regarded as dead."""

    def __init__(self, producer: TransactionalProducer, name: str) -> None:
        self.is_gone: Deferred[None] = Deferred()
        self._producer = producer
        self._name = name
        self._session = producer.session(name)
        self._transactions_left = producer._random.choice((2, 10, 1 << 30))

    async def run(self) -> None:
        """Run transactions until the world or this instance ends."""
        producer = self._producer
        try:
            await self._session.start()
            self._session.link.chance_of_death = producer._random.choice((0.0, 0.005, 0.03))
            while not producer._world.is_ending and self._transactions_left > 0:
                await self._transaction()
                self._transactions_left -= 1
                await producer._world.sleep(producer._random.choice((0.0, 0.0, 0.02, 0.1)))
        except (FencedProducer, ClientDied, GaveUp) as end:
            producer._history.note(self._name, f"ends: {type(end).__name__} {end}")
        self._session.abandon()
        if not self.is_gone.called:
            self.is_gone.callback(None)

    async def _transaction(self) -> None:
        random, session = self._producer._random, self._session
        session.begin()
        try:
            for _ in range(random.choice((0, 1, 1, 2, 4))):
                await self._write()
                await self._perhaps_sleep()
            if random.random() < 0.03:
                raise ClientDied(self._name)
            if random.random() < 0.3:
                raise MustAbort("voluntarily")
            await session.commit()
        except MustAbort as reason:
            self._producer._history.note(self._name, f"aborts: {reason}")
            await session.abort()

    async def _write(self) -> None:
        producer = self._producer
        count_ = producer._random.randint(1, min(3, len(producer._partitions)))
        chosen = producer._random.sample(producer._partitions, count_)
        await self._session.write({partition: producer._values.records(4) for partition in chosen})

    async def _perhaps_sleep(self) -> None:
        """Sometimes sleep: briefly, until the transaction times out, or until another instance takes over."""
        producer = self._producer
        chance = producer._random.random()
        if producer._world.is_ending or chance > 0.08:
            return
        if chance < 0.02 and not self.is_gone.called:
            producer._history.note(self._name, "falls asleep")
            self.is_gone.callback(None)
            await producer._world.sleep(producer._random.uniform(0.2, 3.0))
        elif chance < 0.04:
            await producer._world.sleep(producer._timeout_ms / 1000 * producer._random.uniform(0.5, 2.0))
        else:
            await producer._world.sleep(producer._random.uniform(0.0, 0.3))
