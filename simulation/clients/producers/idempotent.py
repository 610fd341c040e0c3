"""An idempotent producer: up to five requests in flight, and retries with the same sequence numbers (KIP-98, KIP-360).

After a lost connection all batches without a response are sent again, in order. An error of one batch makes the
following ones fail as out of order; in this case as well all are sent again after the last response. If the broker
lacks the sequence before the first of them, which a power loss may cause, the partition restarts at sequence 0 in a new
epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any, Final

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.simulation.api import ConnectionLost, World
from odradek.simulation.clients.link import NEEDS_IDS, RETRIABLE, ClientDied, GaveUp, Link, Versions
from odradek.simulation.clients.producers.batches import batch_of, draw_packing
from odradek.simulation.clients.producers.produce import Produced, is_unwritten, parse_produced, produce_request
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import Guarantee, History, Outcome, Partition, Send

MOST_IN_FLIGHT: Final = 5
_MOST_ATTEMPTS: Final = 60


class _Batch:
    """A batch without a final outcome, with the producer id, epoch and sequence with which it is sent."""

    __slots__ = ("answer", "epoch", "is_doubtful", "producer_id", "send", "sequence")

    def __init__(self, send: Send, producer_id: int, epoch: int, sequence: int) -> None:
        self.send = send
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        self.answer: Deferred[Any] | None = None
        self.is_doubtful = False


class IdempotentProducer:
    """A sequence of instances, until the world ends; each has its own producer id."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        *,
        are_keyed: bool = False,
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._values = Values(world, random, name, are_keyed=are_keyed)

    async def run(self) -> None:
        """Work until the world ends."""
        for number in count(1):
            instance = _Instance(
                self._world, self._history, f"{self.name}#{number}", self._random, self._partitions, self._values
            )
            try:
                await instance.run()
            except (ClientDied, GaveUp):
                self._history.note(self.name, "starts again")
            instance.end()
            if self._world.is_ending:
                return


class _Instance:
    """One instance, from its start to its end."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        random: Random,
        partitions: Sequence[Partition],
        values: Values,
    ) -> None:
        self._world = world
        self._history = history
        self._name = name
        self._random = random
        self._partitions = partitions
        self._values = values
        self._link = Link(world, history, name, random, Versions(random, NEEDS_IDS | {0: (7, 13)}))
        self._packing = draw_packing(random)
        self._pause_s = random.choice((0.0, 0.0, 0.02, 0.1))
        self._dies_after = random.choice((3, 20, 100, 1 << 30))
        self._producer_id = self._epoch = self._first_epoch = -1
        self._next_sequence: dict[Partition, int] = {}
        self._identity: dict[Partition, tuple[int, int]] = {}
        self._acknowledged: dict[Partition, int] = {}
        self._queue: deque[_Batch] = deque()

    async def run(self) -> None:
        """Send until the world or this instance ends."""
        await self._take_producer_id()
        sent = attempt = 0
        while self._queue or not self._world.is_ending:
            while len(self._queue) < MOST_IN_FLIGHT and not self._world.is_ending and self._random.random() < 0.7:
                self._enqueue()
                sent += 1
            if sent > self._dies_after:
                raise ClientDied(self._name)
            try:
                await self._send_unsent()
                is_progress = await self._settle_first()
            except ConnectionLost:
                self._discard_responses()
                is_progress = False
            attempt = 0 if is_progress else attempt + 1
            if attempt > _MOST_ATTEMPTS:
                raise GaveUp(self._name)
            if not is_progress:
                await self._link.back_off(attempt)
            await self._link.nap(self._pause_s * self._random.random() + 0.002)

    def end(self) -> None:
        """End the instance; batches without a final outcome become UNKNOWN."""
        self._link.close()
        for batch in self._queue:
            self._history.end_send(batch.send, Outcome.UNKNOWN)
        self._queue.clear()

    async def _take_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = await self._link.request_until(lambda: request, lambda answer: int(answer.error_code))
        if response.error_code != ErrorCode.NONE:
            self._history.note_odd(self._name, f"InitProducerId: error {response.error_code}")
            raise GaveUp(self._name)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._first_epoch = self._epoch
        self._history.note_producer_id(self._name, self._producer_id, self._epoch, self._name)

    def _enqueue(self) -> None:
        """Add a new batch. A partition changes to a new epoch only when no batch of the old epoch is in flight."""
        partition = self._random.choice(self._partitions)
        current = self._producer_id, self._epoch
        if self._identity.get(partition) != current and all(
            batch.send.partition != partition for batch in self._queue
        ):
            self._identity[partition] = current
            self._next_sequence[partition] = self._acknowledged[partition] = 0
        records = self._values.records()
        send = self._history.begin_send(self._name, partition, self._name, Guarantee.IDEMPOTENT, records)
        self._queue.append(_Batch(send, *self._identity[partition], self._next_sequence[partition]))
        self._next_sequence[partition] += len(records)

    async def _send_unsent(self) -> None:
        """Send the batches that are not in flight, in order, over one connection."""
        for batch in self._queue:
            if batch.answer is None:
                identity = batch.producer_id, batch.epoch, batch.sequence
                data = batch_of(batch.send.records, self._packing, identity)
                request = await produce_request(self._link, {batch.send.partition: data}, -1)
                connection = await self._link.connection()
                if any(other.answer is not None and other.answer.called for other in self._queue):
                    # A response or the end of the connection has arrived and is processed first.
                    return
                self._history.attempt_send(batch.send, f"identity {identity} {self._packing}")
                batch.answer = self._link.send(request, connection)
                batch.answer.addErrback(lambda failure: failure.value)

    async def _settle_first(self) -> bool:
        """Wait for the first response; return whether it settles a batch. Raises ConnectionLost."""
        if not self._queue:
            return True
        first = self._queue[0]
        if first.answer is None:
            return False
        answer = await self._answer_of(first)
        if answer.code == ErrorCode.NONE or answer.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._queue.popleft()
            self._succeed(first, answer)
            return True
        await self._drain()
        if answer.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if first.sequence != self._acknowledged[first.send.partition]:
                # The broker has later batches: it has either no state of this batch left, or lost this batch alone.
                raise GaveUp(self._name)
            self._begin_epoch(first)
        elif answer.code not in RETRIABLE:
            certain = is_unwritten(self._history, answer.code) and not first.is_doubtful
            self._queue.popleft()
            self._history.end_send(
                first.send, Outcome.FAILED if certain else Outcome.UNKNOWN, error=ErrorCode(answer.code).name
            )
            raise GaveUp(self._name)
        first.is_doubtful |= not is_unwritten(self._history, answer.code)
        return False

    async def _answer_of(self, batch: _Batch) -> Produced:
        assert batch.answer is not None
        response = await batch.answer
        if isinstance(response, Exception):
            raise ConnectionLost(str(response))
        return (await parse_produced(self._link, response))[batch.send.partition]

    def _succeed(self, batch: _Batch, answer: Produced) -> None:
        self._history.end_send(batch.send, Outcome.OK, answer.base_offset, answer.log_append_time)
        end = batch.sequence + len(batch.send.records)
        self._acknowledged[batch.send.partition] = max(end, self._acknowledged[batch.send.partition])

    async def _drain(self) -> None:
        """Wait for all responses in flight and settle the successful batches."""
        kept: deque[_Batch] = deque()
        for batch in self._queue:
            answer = None
            if batch.answer is not None and batch is not self._queue[0]:
                answer = await self._answer_of(batch)
            if answer is not None and answer.code == ErrorCode.NONE:
                self._succeed(batch, answer)
            else:
                kept.append(batch)
                batch.is_doubtful |= answer is not None and not is_unwritten(self._history, answer.code)
        self._queue = kept
        self._discard_responses(is_lost=False)

    def _begin_epoch(self, first: _Batch) -> None:
        """Restart the partition at sequence 0 in the next epoch, since the broker has lost earlier batches.

        An out-of-order error implies that neither the batch nor a later one is in the log. Batches for other partitions
        keep their epoch until they are settled.
        """
        partition = first.send.partition
        # No crash gives a partition state of a producer that has not written to it.
        is_first = self._epoch == first.epoch == self._first_epoch and first.sequence == 0
        if is_first or (first.sequence > 0 and not len(self._history.lossy_crashes(partition[0]))):
            self._history.note_odd(self._name, f"sequence {first.sequence} is out of order in {partition}")
        self._epoch += 1
        self._history.note(self._name, f"begins epoch {self._epoch}")
        self._identity[partition] = self._producer_id, self._epoch
        self._acknowledged[partition] = sequence = 0
        for batch in self._queue:
            if batch.send.partition == partition:
                batch.producer_id, batch.epoch, batch.sequence = self._producer_id, self._epoch, sequence
                sequence += len(batch.send.records)
        self._next_sequence[partition] = sequence

    def _discard_responses(self, is_lost: bool = True) -> None:
        """Mark all queued batches to be sent again."""
        for batch in self._queue:
            batch.is_doubtful |= is_lost and batch.answer is not None
            batch.answer = None
