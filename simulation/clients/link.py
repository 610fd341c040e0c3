"""A client's connection to the broker, which reconnects when it breaks, and the client's API versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.schema import Message
from odradek.server.apis import APIS
from odradek.simulation.api import ClientConnection, ConnectionLost, World
from odradek.simulation.history import TRANSACTIONS_TOPIC, History

RETRIABLE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors after which Kafka's clients retry."""

GROUP, TRANSACTION = 0, 1
_PRODUCE, _METADATA, _FIND_COORDINATOR = 0, 3, 10
_RETRY_LIMIT_S: Final = 40.0
"""Limit of retries after the end of the faults."""


class ClientDied(Exception):  # noqa: N818 - an event, not a programming error
    """The end of the client's process during an operation; its connection is closed."""


class GaveUp(Exception):  # noqa: N818 - an event, not a programming error
    """No usable response within the client's time limit."""


class Versions:
    """The API versions of a client: the newest or random ones. The version of an API never changes."""

    def __init__(self, random: Random, limits: dict[int, tuple[int, int]] | None = None) -> None:
        self._random = random
        self._limits = limits or {}
        self._is_new = random.random() < 0.4
        self._chosen: dict[int, int] = {}

    def of(self, message: Message) -> int:
        """Return the version of a request."""
        key = message.api_key
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._choose(key, message)
        return chosen

    def _choose(self, key: int, message: Message) -> int:
        served = APIS.get(key)
        first, last = (message.first_version, message.last_version) if served is None else served[2:4]
        least, most = self._limits.get(key, (first, last))
        first, last = max(first, least), min(last, most)
        return last if self._is_new else self._random.randint(first, last)


class Link:
    """The connection of a client. After it breaks, the next request connects again.

    `chance_of_death` is the probability that a client dies after it has sent a request, which may or may not arrive.
    """

    def __init__(self, world: World, history: History, name: str, random: Random, versions: Versions) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.random = random
        self.versions = versions
        self.chance_of_death = 0.0
        self._connection: ClientConnection | None = None
        self._topic_ids: dict[str, bytes] = {}
        self._lookups: dict[tuple[str, int], FindCoordinatorRequest] = {}

    async def connection(self) -> ClientConnection:
        """Return an open connection. Raises ConnectionLost."""
        if self._connection is None or self._connection.is_lost:
            self._connection = None
            connection = await self.world.connect()
            if connection.is_lost:
                raise ConnectionLost("the connection was lost immediately")
            self._connection = connection
        return self._connection

    def send(self, message: Message, connection: ClientConnection) -> Deferred[Any]:
        """Send a request on an open connection; requests can be pipelined."""
        return connection.request(message, self.versions.of(message), client_id=self.name)

    async def request(self, message: Message) -> Any:
        """Send a request and return its response. Raises ConnectionLost, and at random ClientDied."""
        connection = await self.connection()
        answer = self.send(message, connection)
        if self.chance_of_death and not self.world.is_ending and self.random.random() < self.chance_of_death:
            answer.addErrback(lambda failure: failure.value)
            await self.nap(self.random.choice((0.0, 0.001, 0.02)))
            self.close()
            self.history.note(self.name, "dies")
            raise ClientDied(self.name)
        return await answer

    async def request_until(
        self, make: Callable[[], Message], code_of: Callable[[Any], int], retriable: frozenset[ErrorCode] = RETRIABLE
    ) -> Any:
        """Repeat a request until its error code is not retriable. Raises GaveUp after the time limit.

        For requests that are safe to repeat.
        """
        healthy_since_s: float | None = None
        for attempt in count():
            try:
                # `make` records the time of the request, so it is called only once there is a connection.
                await self.connection()
                response = await self.request(make())
            except ConnectionLost:
                await self.back_off(attempt)
                continue
            code = code_of(response)
            if code not in retriable:
                return response
            await self.back_off(attempt)
            if code == ErrorCode.NOT_COORDINATOR:
                await self._find_coordinators_again()
            if healthy_since_s is None and self.world.is_ending:
                healthy_since_s = self.world.clock.seconds()
            if healthy_since_s is not None and self.world.clock.seconds() > healthy_since_s + _RETRY_LIMIT_S:
                break
        self._give_up(f"gave up on {type(make()).__name__}")
        raise GaveUp(self.name)

    async def _find_coordinators_again(self) -> None:
        """Find the coordinators again: their internal topics may have been lost with the metadata store."""
        for request in self._lookups.values():
            with suppress(ConnectionLost):
                await self.send(request, await self.connection())

    def _give_up(self, text: str) -> None:
        """Give up; report it unless a power loss may have lost the coordinator's log but not its effects.

        In Kafka as well a transaction stays undecided if its markers are rejected for a newer epoch of the producer.
        """
        if len(self.history.lossy_crashes(TRANSACTIONS_TOPIC)):
            self.history.note(self.name, text)
        else:
            self.history.note_odd(self.name, text)

    async def back_off(self, attempt: int = 0) -> None:
        """Wait before a retry."""
        await self.nap(min(0.5, 0.02 * 2 ** min(attempt, 6)) * self.random.uniform(0.8, 1.2))

    async def nap(self, seconds: float) -> None:
        """Sleep."""
        await self.world.sleep(seconds)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def topic_ids(self, names: list[str]) -> dict[str, bytes]:
        """Return the ids of topics, requested once. Raises GaveUp."""
        if any(name not in self._topic_ids for name in names):
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
            )
            response = await self.request_until(
                lambda: request, lambda answer: max((topic.error_code for topic in answer.topics), default=0)
            )
            self._topic_ids.update((topic.name, topic.topic_id) for topic in response.topics)
        return self._topic_ids

    def known_topic_id(self, name: str) -> bytes:
        """Return the id of a topic that was requested before."""
        return self._topic_ids[name]

    async def find_coordinator(self, key: str, key_type: int) -> None:
        """Find the coordinator of a group or transactional id, which also creates its internal topic. Raises GaveUp."""
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])

        def code_of(answer: Any) -> int:
            code: int = answer.coordinators[0].error_code if answer.coordinators else answer.error_code
            return code

        await self.request_until(lambda: request, code_of)
        self._lookups[key, key_type] = request


NEEDS_IDS: Final = {_METADATA: (10, 13), _FIND_COORDINATOR: (1, 6)}
"""Version limits for clients that use topic ids and find transaction coordinators."""
