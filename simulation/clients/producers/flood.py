"""A client that pipelines many requests over many connections before it reads a response.

Every request gets one response, in order, which the connection checks. Batches that were produced over one connection
are in the log in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.schema import Message
from odradek.simulation.api import ClientConnection, ConnectionLost, World
from odradek.simulation.clients.link import GROUP, NEEDS_IDS, GaveUp, Link, Versions
from odradek.simulation.clients.producers.batches import batch_of, draw_packing
from odradek.simulation.clients.producers.produce import is_unwritten, parse_produced, produce_request
from odradek.simulation.clients.producers.values import Values
from odradek.simulation.history import Guarantee, History, Outcome, Partition, Send

_MOST_PRODUCED: Final = 15
"""Maximum number of Produce requests per connection, which limits the work of readers and of the checker."""


class _Sent(NamedTuple):
    """A request in flight; `send` is set for Produce."""

    answer: Deferred[Any]
    send: Send | None


def _lost(failure: Any) -> None:
    """Ignore a lost response."""
    failure.trap(ConnectionLost)


class Flood:
    """Floods the broker at random times, until the world ends."""

    def __init__(
        self, world: World, history: History, name: str, random: Random, partitions: Sequence[Partition]
    ) -> None:
        self.name = name
        self._world = world
        self._history = history
        self._random = random
        self._partitions = partitions
        self._values = Values(world, random, name)
        self._packing = draw_packing(random)
        self._versions = Versions(random, NEEDS_IDS | {0: (7, 13)})
        self._link = Link(world, history, name, random, self._versions)
        self._most_requests = random.choice((20, 60, 200))
        self._most_connections = random.choice((1, 3, 10))

    async def run(self) -> None:
        """Work until the world ends."""
        try:
            while not self._world.is_ending:
                try:
                    await self._flood()
                except ConnectionLost:
                    await self._link.back_off(1)
                await self._link.nap(self._random.choice((0.1, 0.5)))
        except GaveUp:
            pass
        self._link.close()

    async def _flood(self) -> None:
        """Flood several connections concurrently; a connection that is not read must not block the others."""
        await self._link.topic_ids([topic for topic, _ in self._partitions])
        floods = []
        try:
            for number in range(self._random.randint(1, self._most_connections)):
                connection = await self._world.connect()
                floods.append(self._world.start(self._flood_one(connection), f"{self.name}-{number}"))
        finally:
            for flood in floods:
                await flood

    async def _flood_one(self, connection: ClientConnection) -> None:
        random = self._random
        sent: list[_Sent] = []
        connection.stop_reading()
        for _ in range(random.randint(1, self._most_requests)):
            sent.append(await self._send(connection, sum(one.send is not None for one in sent)))
            if random.random() < 0.02:
                await self._link.nap(0.001)
        await self._link.nap(random.choice((0.0, 0.01, 0.3, 2.0)))
        if random.random() < 0.15:
            # The client closes without having read anything.
            connection.close()
        else:
            connection.read_again()
        await self._read(sent)
        connection.close()

    async def _send(self, connection: ClientConnection, produced: int) -> _Sent:
        random = self._random
        if produced < _MOST_PRODUCED and random.random() < 0.3:
            partition = random.choice(self._partitions)
            send = self._history.begin_send(
                self.name, partition, self.name, Guarantee.PLAIN, self._values.records(3), -1
            )
            request: Message = await produce_request(self._link, {partition: batch_of(send.records, self._packing)}, -1)
            self._history.attempt_send(send, f"flood {self._packing}")
            return _Sent(self._ask(connection, request), send)
        return _Sent(self._ask(connection, random.choice(_REQUESTS)(self)), None)

    def _ask(self, connection: ClientConnection, request: Message) -> Deferred[Any]:
        answer = connection.request(request, self._versions.of(request), client_id=self.name)
        answer.addErrback(_lost)
        return answer

    async def _read(self, sent: Sequence[_Sent]) -> None:
        """Process the responses in the order of the requests; None is a lost response."""
        last_offsets: dict[Partition, int] = {}
        for answer, send in sent:
            response = await answer
            if send is None:
                code = getattr(response, "error_code", ErrorCode.NONE)
                if code == ErrorCode.UNKNOWN_SERVER_ERROR:
                    self._history.note_odd(self.name, f"{type(response).__name__}: UNKNOWN_SERVER_ERROR")
            elif response is None:
                self._history.end_send(send, Outcome.UNKNOWN)
            else:
                await self._note_produced(send, response, last_offsets)

    async def _note_produced(self, send: Send, response: Any, last_offsets: dict[Partition, int]) -> None:
        produced = (await parse_produced(self._link, response))[send.partition]
        if produced.code != ErrorCode.NONE:
            outcome = Outcome.FAILED if is_unwritten(self._history, produced.code) else Outcome.UNKNOWN
            self._history.end_send(send, outcome, error=ErrorCode(produced.code).name)
            return
        self._history.end_send(send, Outcome.OK, produced.base_offset, produced.log_append_time)
        if produced.base_offset <= last_offsets.get(send.partition, -1):
            self._history.note_odd(
                self.name,
                f"a batch was appended at {produced.base_offset}, before an earlier batch of the same connection",
            )
        last_offsets[send.partition] = produced.base_offset

    # Requests that depend on no earlier response

    def _fetch(self) -> FetchRequest:
        topic, index = self._random.choice(self._partitions)
        topic_id = self._link.known_topic_id(topic)
        row = FetchRequestFetchPartition(
            partition=index, fetch_offset=self._random.choice((0, 0, 1 << 40)), partition_max_bytes=10_000
        )
        # An offset far ahead returns OFFSET_OUT_OF_RANGE at once; the others wait at the end of an empty partition.
        return FetchRequest(
            max_wait_ms=self._random.choice((0, 0, 20)),
            min_bytes=1,
            max_bytes=10_000,
            topics=[FetchRequestFetchTopic(topic=topic, topic_id=topic_id, partitions=[row])],
        )

    def _list_offsets(self) -> ListOffsetsRequest:
        topic, index = self._random.choice(self._partitions)
        timestamp = self._random.choice((-1, -2, -3, 0, self._world.now_ms()))
        row = ListOffsetsRequestListOffsetsPartition(partition_index=index, timestamp=timestamp)
        return ListOffsetsRequest(
            topics=[ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[row])], timeout_ms=1500
        )


_REQUESTS: Final[tuple[Callable[[Flood], Message], ...]] = (
    Flood._fetch,
    Flood._fetch,
    Flood._list_offsets,
    lambda flood: MetadataRequest(topics=None),
    lambda flood: ApiVersionsRequest(client_software_name="flood", client_software_version="1"),
    lambda flood: ListGroupsRequest(),
    lambda flood: HeartbeatRequest(group_id="flood", generation_id=1, member_id="nobody"),
    lambda flood: FindCoordinatorRequest(key=flood.name, key_type=GROUP, coordinator_keys=[flood.name]),
)
