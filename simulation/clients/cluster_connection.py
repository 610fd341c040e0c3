"""A client's connection to a cluster: each request goes to the broker that serves it, as in Kafka's clients.

Requests for partitions go to their leader, requests of groups and transactions to their coordinator, changes of topics
to the controller, all others to the broker from which the metadata was read. A request for partitions of several
leaders is divided, and its responses are merged.

Half of the connections state the leader epoch of the metadata in fetches and lookups of offsets (KIP-320).

Routes do not change: after an error that shows that one is out of date, and after the loss of a connection, all
connections are closed. The client connects again, which reads the metadata from any broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted.internet.defer import Deferred

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_records import DeleteRecordsRequest
from odradek.protocol.messages.fetch import FetchRequest, FetchRequestFetchTopic
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.list_offsets import ListOffsetsRequest
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from odradek.protocol.messages.produce import ProduceRequest, ProduceRequestTopicProduceData
from odradek.protocol.schema import Message, Struct
from odradek.simulation.api import ClientConnection, ConnectionLost

if TYPE_CHECKING:
    from random import Random

    from odradek.simulation.world import World

Address = tuple[str, int]

_GROUP, _TRANSACTION = 0, 1
_METADATA_VERSION: Final = 9
_FIND_COORDINATOR_VERSION: Final = 4
_EPOCHS_SHARE: Final = 0.5
_FETCH_WITH_EPOCHS: Final = 9
_LIST_OFFSETS_WITH_EPOCHS: Final = 4
_CLIENT_ID: Final = "router"
_TO_CONTROLLER: Final = frozenset({19, 20, 37, 43, 45, 57})
"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, AlterPartitionReassignments, UpdateFeatures."""

_OUT_OF_DATE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Errors after which Kafka's clients request metadata, or find a coordinator, again.

After REQUEST_TIMED_OUT they only do so when their metadata is old (metadata.max.age.ms). It is the response of a leader
that has been replaced while it was separated from ZooKeeper.
"""


class _Call:
    """A request, and the Deferred of its response, None if it gets none."""

    __slots__ = ("answer", "client_id", "message", "version")

    def __init__(self, message: Message, version: int, client_id: str, answer: Deferred[Any] | None) -> None:
        self.message = message
        self.version = version
        self.client_id = client_id
        self.answer = answer


class _Part(NamedTuple):
    """A part of a request, for one broker."""

    address: Address
    message: Message


async def connect_to_cluster(world: World, random: Random) -> ClusterConnection:
    """Connect to any broker and read the metadata. Raises ConnectionLost."""
    address = random.choice([broker.address for broker in world.brokers])
    connection = await world.connect(address)
    metadata = await connection.request(MetadataRequest(topics=None), _METADATA_VERSION, client_id=_CLIENT_ID)
    return ClusterConnection(world, random, address, connection, metadata)


class ClusterConnection:
    """Implementation of `api.ClientConnection`. Requests to one broker keep their order."""

    def __init__(
        self, world: World, random: Random, address: Address, connection: ClientConnection, metadata: Any
    ) -> None:
        self._world = world
        self._random = random
        self._bootstrap = address
        self._connections: dict[Address, ClientConnection] = {address: connection}
        self._coordinators: dict[tuple[str, int], Address] = {}
        self._queue: deque[_Call] = deque()
        self._in_flight: dict[_Call, None] = {}
        self._is_serving = False
        self._is_lost = False
        self._epochs: dict[tuple[str, int], int] = {}
        if random.random() < _EPOCHS_SHARE:
            self._epochs = {
                (topic.name, row.partition_index): row.leader_epoch
                for topic in metadata.topics
                for row in topic.partitions
            }
        brokers = {row.node_id: (row.host, row.port) for row in metadata.brokers}
        self._controller: Address = brokers.get(metadata.controller_id, address)
        self._leaders: dict[tuple[str, int], Address] = {
            (topic.name, row.partition_index): brokers.get(row.leader_id, address)
            for topic in metadata.topics
            for row in topic.partitions
        }

    @property
    def is_lost(self) -> bool:
        """True if a connection was lost, a route is out of date, or the client has closed it."""
        return self._is_lost

    def request(self, message: Message, version: int, *, client_id: str) -> Deferred[Any]:
        """Send a request; return a Deferred of its response, which fails with ConnectionLost."""
        answer: Deferred[Any] = Deferred()
        if self.is_lost:
            answer.errback(ConnectionLost("the connection is closed"))
            return answer
        self._submit(_Call(message, version, client_id, answer))
        return answer

    def send_without_answer(self, message: Message, version: int, *, client_id: str) -> None:
        """Send a request that gets no response."""
        if not self.is_lost:
            self._submit(_Call(message, version, client_id, None))

    def stop_reading(self) -> None:
        """Stop reading from all brokers."""
        for connection in self._connections.values():
            connection.stop_reading()

    def read_again(self) -> None:
        """Resume reading."""
        for connection in self._connections.values():
            connection.read_again()

    def close(self) -> None:
        """Close all connections; requests in flight fail with ConnectionLost."""
        self._is_lost = True
        for connection in self._connections.values():
            connection.close()
        failed = [*self._in_flight, *self._queue]
        self._in_flight.clear()
        self._queue.clear()
        for call in failed:
            if call.answer is not None:
                call.answer.errback(ConnectionLost("the connection was lost"))

    # Requests in their order

    def _submit(self, call: _Call) -> None:
        self._queue.append(call)
        if not self._is_serving:
            self._is_serving = True
            self._world.start(self._serve(), "router")

    async def _serve(self) -> None:
        """Send the requests of the queue in their order; responses are awaited elsewhere."""
        while self._queue:
            call = self._queue[0]
            try:
                self._state_epochs(call)
                parts = await self._divide(call.message)
                sent = [(await self._connection(part.address), part.message) for part in parts]
            except ConnectionLost:
                self.close()
                break
            if self._is_lost:
                break
            self._queue.popleft()
            self._send(call, sent)
        self._is_serving = False

    def _send(self, call: _Call, parts: list[tuple[ClientConnection, Message]]) -> None:
        if call.answer is None:
            for connection, message in parts:
                connection.send_without_answer(message, call.version, client_id=call.client_id)
            return
        self._in_flight[call] = None
        responses: list[Any] = []

        def received(response: Any) -> None:
            responses.append(response)
            if len(responses) == len(parts) and call in self._in_flight:
                del self._in_flight[call]
                self._respond(call, _merge(responses))

        def lost(failure: Any) -> None:
            failure.trap(ConnectionLost)
            self.close()

        for connection, message in parts:
            connection.request(message, call.version, client_id=call.client_id).addCallbacks(received, lost)

    def _respond(self, call: _Call, response: Any) -> None:
        assert call.answer is not None
        if not _OUT_OF_DATE.isdisjoint(_error_codes(response)):
            self._is_lost = True
        call.answer.callback(response)
        if self._is_lost:
            self.close()

    async def _connection(self, address: Address) -> ClientConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = await self._world.connect(address)
            self._connections[address] = connection
        if connection.is_lost or self._is_lost:
            connection.close()
            raise ConnectionLost("the connection was lost")
        return connection

    # Routes

    async def _divide(self, message: Message) -> list[_Part]:
        """Return the parts of a request with the brokers that serve them."""
        if isinstance(message, ProduceRequest):
            return self._divide_produce(message)
        if isinstance(message, FetchRequest):
            return [self._choose_fetch(message)]
        if isinstance(message, ListOffsetsRequest):
            topic = message.topics[0]
            return [_Part(self._leader(topic.name, topic.partitions[0].partition_index), message)]
        if isinstance(message, DeleteRecordsRequest):
            (cut,) = message.topics
            return [_Part(self._leader(cut.name, cut.partitions[0].partition_index), message)]
        if isinstance(message, OffsetForLeaderEpochRequest):
            (asked,) = message.topics
            return [_Part(self._leader(asked.topic, asked.partitions[0].partition), message)]
        if message.api_key in _TO_CONTROLLER:
            return [_Part(self._controller, message)]
        key = _coordinator_key(message)
        address = self._bootstrap if key is None else await self._coordinator(*key)
        return [_Part(address, message)]

    def _state_epochs(self, call: _Call) -> None:
        """Put the leader epochs of the metadata into a request whose version has them."""
        message = call.message
        if isinstance(message, FetchRequest) and call.version >= _FETCH_WITH_EPOCHS:
            for wanted in message.topics:
                for one in wanted.partitions:
                    one.current_leader_epoch = self._epochs.get((wanted.topic, one.partition), -1)
        elif isinstance(message, ListOffsetsRequest) and call.version >= _LIST_OFFSETS_WITH_EPOCHS:
            for listed in message.topics:
                for row in listed.partitions:
                    row.current_leader_epoch = self._epochs.get((listed.name, row.partition_index), -1)

    def _leader(self, topic: str, index: int) -> Address:
        return self._leaders.get((topic, index), self._bootstrap)

    def _divide_produce(self, message: ProduceRequest) -> list[_Part]:
        by_leader: dict[Address, dict[str, ProduceRequestTopicProduceData]] = {}
        for topic in message.topic_data:
            for row in topic.partition_data:
                topics = by_leader.setdefault(self._leader(topic.name, row.index), {})
                data = topics.setdefault(
                    topic.name,
                    ProduceRequestTopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[]),
                )
                data.partition_data.append(row)
        return [
            _Part(
                address,
                ProduceRequest(
                    transactional_id=message.transactional_id,
                    acks=message.acks,
                    timeout_ms=message.timeout_ms,
                    topic_data=list(topics.values()),
                ),
            )
            for address, topics in by_leader.items()
        ]

    def _choose_fetch(self, message: FetchRequest) -> _Part:
        """Return the part of a fetch for one of the leaders, without a session, which each broker has separately."""
        by_leader: dict[Address, dict[str, FetchRequestFetchTopic]] = {}
        for topic in message.topics:
            for row in topic.partitions:
                topics = by_leader.setdefault(self._leader(topic.topic, row.partition), {})
                wanted = topics.setdefault(
                    topic.topic, FetchRequestFetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[])
                )
                wanted.partitions.append(row)
        address = self._random.choice(list(by_leader)) if by_leader else self._bootstrap
        part = FetchRequest(
            max_wait_ms=message.max_wait_ms,
            min_bytes=message.min_bytes,
            max_bytes=message.max_bytes,
            isolation_level=message.isolation_level,
            session_id=0,
            session_epoch=-1,
            topics=list(by_leader[address].values()) if by_leader else [],
        )
        return _Part(address, part)

    async def _coordinator(self, key: str, key_type: int) -> Address:
        """Return the coordinator of a group or transactional id; any broker if there is none."""
        known = self._coordinators.get((key, key_type))
        if known is not None:
            return known
        connection = await self._connection(self._bootstrap)
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        answer = await connection.request(request, _FIND_COORDINATOR_VERSION, client_id=_CLIENT_ID)
        (found,) = answer.coordinators
        if found.error_code != ErrorCode.NONE:
            return self._bootstrap
        self._coordinators[key, key_type] = address = found.host, found.port
        return address


def _coordinator_key(message: Any) -> tuple[str, int] | None:
    """Return the group or transactional id of a request that its coordinator serves, with the type of the key."""
    match message.api_key:
        case 8 | 11 | 12 | 13 | 14 | 28 | 47:
            return message.group_id, _GROUP
        case 9:
            return (message.groups[0].group_id if message.groups else message.group_id), _GROUP
        case 15:
            return message.groups[0], _GROUP
        case 42:
            return message.groups_names[0], _GROUP
        case 22 if message.transactional_id is not None:
            return message.transactional_id, _TRANSACTION
        case 24:
            return message.v3_and_below_transactional_id, _TRANSACTION
        case 25 | 26:
            return message.transactional_id, _TRANSACTION
    return None


def _merge(responses: list[Any]) -> Any:
    """Return one response from those of several brokers to the parts of a produce request."""
    first, *others = responses
    for other in others:
        first.responses.extend(other.responses)
    return first


def _error_codes(value: Any) -> Iterator[int]:
    """Iterate over all error codes of a response."""
    if isinstance(value, Struct):
        for item in value.fields:
            found = getattr(value, item.name)
            if item.name.endswith("error_code"):
                yield found
            elif isinstance(found, (list, Struct)):
                yield from _error_codes(found)
    elif isinstance(value, list):
        for one in value:
            yield from _error_codes(one)
