"""A producer without idempotence: acks 0, 1 or all, with retries that may write a batch again."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from odradek.protocol.errors import ErrorCode
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import NEEDS_IDS, RETRIABLE, Link, Versions
from odradek.simulation.clients.producers.batches import Packing, batch_of, draw_packing
from odradek.simulation.clients.producers.produce import Produced, is_unwritten, parse_produced, produce_request
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import Guarantee, History, Outcome, Partition, Send


class PlainProducer:
    """Sends batches to some partitions, one request at a time, until the world ends."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        *,
        are_keyed: bool = False,
        times: str = "fresh",
        pauses_s: Sequence[float] = (0.0, 0.01, 0.1),
        packing: Packing | None = None,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._values = Values(world, random, name, are_keyed=are_keyed, times=times)
        self._link = Link(world, history, name, random, Versions(random, NEEDS_IDS | {0: (7, 13)}))
        self._most_attempts = random.choice((1, 3, 8))
        self._packing = packing or draw_packing(random)
        self._pause_s = random.choice(pauses_s)

    async def run(self) -> None:
        """Work until the world ends."""
        while not self._world.is_ending:
            chosen = self._random.sample(self._partitions, self._random.randint(1, len(self._partitions)))
            await self._send_all(chosen, acks=self._random.choice((-1, -1, 1, 0)))
            await self._link.nap(self._pause_s * self._random.random() + 0.001)
        self._link.close()

    async def _send_all(self, partitions: Sequence[Partition], acks: int) -> None:
        """Send one request with a batch for each partition, repeated until all batches are settled."""
        sends = {
            partition: self._history.begin_send(
                self.name, partition, self.name, Guarantee.PLAIN, self._values.records(), acks
            )
            for partition in partitions
        }
        doubtful: set[Partition] = set()
        for attempt in range(self._most_attempts):
            try:
                answers = await self._attempt(sends, acks)
            except ConnectionLost:
                doubtful.update(sends)
                await self._link.back_off(attempt)
                continue
            for partition, answer in answers.items():
                if self._is_settled(sends[partition], answer, partition in doubtful):
                    del sends[partition]
                elif not is_unwritten(self._history, answer.code):
                    doubtful.add(partition)
            if not sends or acks == 0:
                break
            await self._link.back_off(attempt)
        for partition, send in sends.items():
            is_failed = acks != 0 and partition not in doubtful
            self._history.end_send(send, Outcome.FAILED if is_failed else Outcome.UNKNOWN)

    async def _attempt(self, sends: dict[Partition, Send], acks: int) -> dict[Partition, Produced]:
        batches = {partition: batch_of(send.records, self._packing) for partition, send in sends.items()}
        request = await produce_request(self._link, batches, acks)
        connection = await self._link.connection()
        for send in sends.values():
            self._history.attempt_send(send, f"acks {acks} {self._packing}")
        if acks == 0:
            version = self._link.versions.of(request)
            connection.send_without_answer(request, version, client_id=self.name)
            return {}
        return await parse_produced(self._link, await self._link.send(request, connection))

    def _is_settled(self, send: Send, answer: Produced, is_doubtful: bool) -> bool:
        if answer.code == ErrorCode.NONE:
            self._history.end_send(send, Outcome.OK, answer.base_offset, answer.log_append_time)
            return True
        if answer.code in RETRIABLE:
            return False
        outcome = Outcome.FAILED if is_unwritten(self._history, answer.code) and not is_doubtful else Outcome.UNKNOWN
        self._history.end_send(send, outcome, error=ErrorCode(answer.code).name)
        return True
