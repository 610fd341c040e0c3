"""Quotas, set by Kafka's tools and APIs, and the throttling of raw and real clients, side by side with Apache Kafka."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse, HeartbeatRequest, HeartbeatResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from compat_tests.apache_kafka import tools
from compat_tests.bad_frames import ClosedError, Connection, batch
from compat_tests.clients.common import wait_until
from compat_tests.plain_requests import wait_for_topics

WINDOW = 3
"""Samples of a second. With Kafka's default of 11 a test would have to wait for the end of a burst of 10 s."""

PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTIONS = "controller_mutation_rate", "connection_creation_rate"
INVALID_REQUEST, UNSUPPORTED_VERSION, THROTTLING_QUOTA_EXCEEDED = 42, 35, 89
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

MOST_DELAY_S = 2.0
"""By which a busy machine may delay a response."""

Entity = dict[str, str | None]


class Client(Connection):
    """A raw connection of a client with an id, which does not observe its throttle times."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(port)
        self._client_id = client_id

    def frame(self, request: Any, version: int) -> bytes:
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(self._correlation_id, self._client_id)
        return bytes(request.encode(version=version, header=True, framed=True))

    def heartbeat(self) -> int:
        """Return the throttle time of a request that does nothing."""
        request = HeartbeatRequest(group_id="group", generation_id=1, member_id="nobody", group_instance_id=None)
        return int(self.ask(request, HeartbeatResponse, 4).throttle_time_ms)

    def produce(self, topic: str, size: int, acks: int = 1) -> int:
        """Produce one record; return the throttle time."""
        data = ProduceRequest.TopicProduceData.PartitionProduceData
        request = ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=5000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    partition_data=[data(index=0, records=batch([(None, b"x" * size)]))],
                )
            ],
        )
        if acks == 0:
            self.send(self.frame(request, 9))
            return 0
        response = self.ask(request, ProduceResponse, 9)
        assert response.responses[0].partition_responses[0].error_code == 0
        return int(response.throttle_time_ms)

    def fetch(self, topic: str, max_bytes: int) -> tuple[int, int]:
        """Fetch from the beginning; return the throttle time and the number of partitions in the response."""
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=0,
            log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 26,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )
        response = self.ask(request, FetchResponse, 11)
        assert response.error_code == 0
        return response.throttle_time_ms, sum(len(topic.partitions) for topic in response.responses)

    def create(self, name: str, partitions: int, version: int) -> tuple[int, int]:
        """Return the throttle time and the error code."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        response = self.ask(request, CreateTopicsResponse, version)
        return response.throttle_time_ms, response.topics[0].error_code

    def grow(self, name: str, count: int, version: int) -> tuple[int, int]:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        response = self.ask(request, CreatePartitionsResponse, version)
        return response.throttle_time_ms, response.results[0].error_code

    def delete(self, name: str, version: int) -> tuple[int, int]:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        response = self.ask(request, DeleteTopicsResponse, version)
        return response.throttle_time_ms, response.responses[0].error_code

    def alter(self, *changes: tuple[Entity, dict[str, float | None]], validate_only: bool = False) -> list[Any]:
        """Return (error code, message) for each entity."""
        entry = AlterClientQuotasRequest.EntryData
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                    ops=[
                        entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()
                    ],
                )
                for entity, quotas in changes
            ],
            validate_only=validate_only,
        )
        response = self.ask(request, AlterClientQuotasResponse, 1)
        return [(entry.error_code, entry.error_message) for entry in response.entries]

    def set(self, entity: Entity, **quotas: float | None) -> None:
        """Set quotas, and wait until the broker has them."""
        assert self.alter((entity, quotas)) == [(0, None)]
        expected = {key: value for key, value in quotas.items() if value is not None}
        components = [(kind, DEFAULT if name is None else EXACT, name) for kind, name in entity.items()]

        def is_set() -> bool:
            found = dict(self.describe(components, strict=True)[2] or [])
            (values,) = found.values() or [{}]
            return {key: values[key] for key in quotas if key in values} == expected

        wait_until(is_set)
        # Apache Kafka's broker describes a quota some time before it applies it.
        time.sleep(0.2)

    def describe(
        self, components: list[tuple[str, int, str | None]], strict: bool = False
    ) -> tuple[int, str | None, list[tuple[tuple[tuple[str, str | None], ...], dict[str, float]]] | None]:
        component = DescribeClientQuotasRequest.ComponentData
        request = DescribeClientQuotasRequest(
            components=[
                component(entity_type=kind, match_type=match_type, match=match)
                for kind, match_type, match in components
            ],
            strict=strict,
        )
        response = self.ask(request, DescribeClientQuotasResponse, 1)
        entries = None
        if response.entries is not None:
            entries = [
                (
                    tuple((part.entity_type, part.entity_name) for part in entry.entity),
                    {value.key: value.value for value in entry.values},
                )
                for entry in response.entries
            ]
        return response.error_code, response.error_message, entries


@pytest.fixture
def connect(start_broker: Callable[..., Any]) -> Iterator[Callable[[str], Client]]:
    """Connect clients to one broker."""
    broker = start_broker({"quota.window.num": str(WINDOW), "auto.create.topics.enable": "false"})
    with ExitStack() as stack:
        yield lambda client_id: stack.enter_context(Client(broker.port, client_id))


def create_topic(client: Client, name: str) -> None:
    assert client.create(name, 1, 7) == (0, 0)

    def has_leader() -> bool:
        try:
            client.produce(name, 1)
        except AssertionError:
            return False
        return True

    wait_until(has_leader, what="the topic has no leader")


def measure(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a call, and the seconds that it took."""
    began_s = time.monotonic()
    result = call(*arguments)
    return result, time.monotonic() - began_s


def assert_waited(seconds: float, throttle_s: float, before_s: float) -> None:
    """Check how long a request waited for the end of a throttle time, of which up to `before_s` had passed before."""
    assert throttle_s - before_s - 0.3 < seconds < throttle_s + MOST_DELAY_S


# -- APIs ----------------------------------------------------------------------------------------------------------

BAD_COMBINATION = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"

ALTERATIONS: list[tuple[Entity, dict[str, float | None], int, str | None]] = [
    ({"user": "a"}, {PRODUCER: 1000.0}, 0, None),
    ({"user": None}, {REQUEST: 50.5}, 0, None),
    ({"user": "a", "client-id": None}, {CONSUMER: 11.0, MUTATION: 2.5}, 0, None),
    ({"user": "<default>"}, {PRODUCER: 3.0}, 0, None),
    ({"user": "CN=a b,O=ü%/*", "client-id": "a/b%c"}, {PRODUCER: 123.0}, 0, None),
    ({"user": "a"}, {}, 0, None),
    ({"user": "nobody"}, {PRODUCER: None}, 0, None),
    ({"user": "a"}, {"unknown": None}, 0, None),
    ({"user": "a"}, {REQUEST: float("inf")}, 0, None),
    ({"ip": "10.0.0.1"}, {CONNECTIONS: 5.0}, 0, None),
    ({"ip": None}, {CONNECTIONS: 7.0}, 0, None),
    ({"ip": "localhost"}, {CONNECTIONS: 5.0}, 0, None),
    ({"ip": "h.invalid"}, {CONNECTIONS: 5.0}, INVALID_REQUEST, "h.invalid is not a valid IP or resolvable host."),
    ({"ip": "10.0.0.2"}, {CONNECTIONS: 1.5}, INVALID_REQUEST, f"{CONNECTIONS} cannot be a fractional value."),
    ({"ip": "1::2"}, {CONNECTIONS: 3e9}, INVALID_REQUEST, f"Proposed value for {CONNECTIONS} is too large for an INT."),
    ({"ip": "10.0.0.2"}, {PRODUCER: 1.0}, INVALID_REQUEST, f"Invalid configuration key {PRODUCER}"),
    ({"ip": "10.0.0.2", "user": "a"}, {PRODUCER: 1.0}, INVALID_REQUEST, BAD_COMBINATION),
    ({"ip": "10.0.0.2", "client-id": "a"}, {PRODUCER: 1.0}, INVALID_REQUEST, BAD_COMBINATION),
    ({}, {PRODUCER: 1.0}, INVALID_REQUEST, "Invalid empty client quota entity"),
    ({"group": "a"}, {PRODUCER: 1.0}, INVALID_REQUEST, "Unhandled client quota entity type: group"),
    ({"": "a"}, {PRODUCER: 1.0}, INVALID_REQUEST, "Unhandled client quota entity type: "),
    ({"user": ""}, {PRODUCER: 1.0}, INVALID_REQUEST, "Empty user not supported"),
    ({"client-id": ""}, {PRODUCER: 1.0}, INVALID_REQUEST, "Empty client-id not supported"),
    ({"ip": ""}, {CONNECTIONS: 1.0}, INVALID_REQUEST, "Empty ip not supported"),
    ({"user": "a"}, {"unknown": 1.0}, INVALID_REQUEST, "Invalid configuration key unknown"),
    ({"user": "a"}, {CONNECTIONS: 1.0}, INVALID_REQUEST, f"Invalid configuration key {CONNECTIONS}"),
    ({"user": "a"}, {"SCRAM-SHA-256": 1.0}, INVALID_REQUEST, "Invalid configuration key SCRAM-SHA-256"),
    ({"user": "a"}, {PRODUCER: 5.0000001}, 0, None),
    ({"user": "a"}, {PRODUCER: -1.0}, INVALID_REQUEST, f"Quota {PRODUCER} must be greater than 0"),
    ({"user": "a"}, {REQUEST: -0.5}, INVALID_REQUEST, f"Quota {REQUEST} must be greater than 0"),
    ({"user": "a"}, {PRODUCER: 1.5}, INVALID_REQUEST, f"{PRODUCER} cannot be a fractional value."),
    ({"user": "a"}, {PRODUCER: 1e19}, INVALID_REQUEST, f"Proposed value for {PRODUCER} is too large for a LONG."),
]

FILTERS: list[tuple[list[tuple[str, int, str | None]], int, str]] = [
    ([("", SPECIFIED, None)], INVALID_REQUEST, "Invalid empty entity type."),
    ([("group", SPECIFIED, None)], UNSUPPORTED_VERSION, "Unsupported entity type group"),
    ([("user", 3, None)], INVALID_REQUEST, "Unknown match type 3"),
    ([("user", -1, None)], INVALID_REQUEST, "Unknown match type -1"),
    ([("user", EXACT, None)], INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    (
        [("user", DEFAULT, "a")],
        INVALID_REQUEST,
        "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
    ),
    (
        [("user", SPECIFIED, "a")],
        INVALID_REQUEST,
        "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
    ),
    (
        [("user", SPECIFIED, None), ("user", DEFAULT, None)],
        INVALID_REQUEST,
        "Entity type user cannot appear more than once in the filter.",
    ),
    (
        [("ip", SPECIFIED, None), ("client-id", SPECIFIED, None)],
        INVALID_REQUEST,
        "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
        "filter component.",
    ),
]


@pytest.mark.side_by_side
def test_alterations_get_the_errors_of_kafka(connect: Callable[[str], Client]) -> None:
    client = connect("admin")
    for entity, quotas, code, message in ALTERATIONS:
        assert client.alter((entity, quotas), validate_only=True) == [(code, message)], (entity, quotas)
    assert client.describe([]) == (0, "", [])
    for components, code, message in FILTERS:
        assert client.describe(components) == (code, message, None)


@pytest.mark.side_by_side
def test_a_change_of_several_entities(connect: Callable[[str], Client]) -> None:
    """An entity with an invalid change is not changed; a repeated one has its first change."""
    client = connect("admin")
    results = client.alter(
        ({"user": "one"}, {PRODUCER: 1.0, CONSUMER: 2.0}),
        ({"user": "two"}, {PRODUCER: 1.0, "unknown": 2.0}),
        ({"client-id": "x", "user": "three"}, {PRODUCER: 3.0}),
        ({"user": "three", "client-id": "x"}, {PRODUCER: 4.0}),
    )
    assert sorted(results, key=str) == [
        (0, None),
        (INVALID_REQUEST, "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=x, user=three})"),
        (INVALID_REQUEST, "Invalid configuration key unknown"),
    ]
    expected = [
        ((("client-id", "x"), ("user", "three")), {PRODUCER: 3.0}),
        ((("user", "one"),), {PRODUCER: 1.0, CONSUMER: 2.0}),
    ]
    wait_until(lambda: sorted(client.describe([])[2] or [], key=str) == expected)
    client.set({"user": "one"}, **{PRODUCER: None, CONSUMER: 5.0})
    assert client.describe([("user", EXACT, "one")], strict=True)[2] == [((("user", "one"),), {CONSUMER: 5.0})]


@pytest.mark.side_by_side
def test_filters_select_entities_as_in_kafka(connect: Callable[[str], Client]) -> None:
    client = connect("admin")
    entities: dict[str, Entity] = {
        "u": {"user": "a"},
        "U": {"user": None},
        "uc": {"user": "a", "client-id": "c"},
        "uC": {"user": "a", "client-id": None},
        "UC": {"user": None, "client-id": None},
        "c": {"client-id": "c"},
        "C": {"client-id": None},
    }
    for number, entity in enumerate(entities.values(), 1):
        client.set(entity, **{PRODUCER: float(number)})
    client.set({"ip": "10.0.0.1"}, **{CONNECTIONS: 8.0})
    client.set({"ip": None}, **{CONNECTIONS: 9.0})
    labels = [*entities, "i", "I"]

    def select(*components: tuple[str, int, str | None], strict: bool = False) -> set[str]:
        found = client.describe(list(components), strict)[2]
        return {labels[int(value) - 1] for _, values in found or [] for value in values.values()}

    user, any_user, default_user = ("user", EXACT, "a"), ("user", SPECIFIED, None), ("user", DEFAULT, None)
    app, any_app, default_app = ("client-id", EXACT, "c"), ("client-id", SPECIFIED, None), ("client-id", DEFAULT, None)
    assert select() == set(labels)
    assert select(strict=True) == set()
    assert select(user) == {"u", "uc", "uC"}
    assert select(user, strict=True) == {"u"}
    assert select(any_user) == {"u", "U", "uc", "uC", "UC"}
    assert select(any_user, strict=True) == {"u", "U"}
    assert select(default_user) == {"U", "UC"}
    assert select(app) == {"c", "uc"}
    assert select(any_app, strict=True) == {"c", "C"}
    assert select(user, app) == {"uc"}
    assert select(any_user, default_app) == {"uC", "UC"}
    assert select(any_user, any_app, strict=True) == {"uc", "uC", "UC"}
    assert select(("user", EXACT, "<default>")) == set()
    assert select(("user", EXACT, "")) == set()
    assert select(("ip", EXACT, "10.0.0.1")) == {"i"}
    assert select(("ip", DEFAULT, None), strict=True) == {"I"}
    assert select(("ip", SPECIFIED, None)) == {"i", "I"}


@pytest.mark.side_by_side
@pytest.mark.usefixtures("kafka_jars")
def test_kafka_configs_sets_describes_and_removes_quotas(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()

    def configs(*arguments: str, check: bool = True) -> str:
        result = tools.run(tools.CONFIGS, "--bootstrap-server", broker.bootstrap_servers, *arguments, check=check)
        return result.stdout

    def describe_alice() -> str:
        # The tool continues with SCRAM credentials, which a broker without SASL does not have.
        return configs("--describe", *alice, check=False)

    alice = ("--entity-type", "users", "--entity-name", "alice")
    both = (*alice, "--entity-type", "clients", "--entity-name", "app")
    defaults = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    configs("--alter", *alice, "--add-config", "producer_byte_rate=1048576,request_percentage=12.5")
    configs("--alter", *both, "--add-config", "consumer_byte_rate=2097152")
    configs("--alter", *defaults, "--add-config", "controller_mutation_rate=3.5")
    configs("--alter", *address, "--add-config", "connection_creation_rate=20")
    described = configs("--describe", "--entity-type", "users", "--entity-type", "clients")
    assert "user-principal 'alice', client-id 'app' are consumer_byte_rate=2097152.0" in described
    assert "default user-principal, the default client-id are controller_mutation_rate=3.5" in described
    described = describe_alice()
    assert "producer_byte_rate=1048576.0" in described
    assert "request_percentage=12.5" in described
    assert "connection_creation_rate=20.0" in configs("--describe", *address)
    configs("--alter", *alice, "--delete-config", "producer_byte_rate")
    described = describe_alice()
    assert "producer_byte_rate" not in described
    assert "request_percentage=12.5" in described


# -- throttling ----------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_a_producer_is_throttled_by_its_bytes_and_its_data_is_kept(connect: Callable[[str], Client]) -> None:
    admin, client = connect("admin"), connect("limited")
    create_topic(admin, "topic")
    admin.set({"client-id": "limited"}, **{PRODUCER: 10_000.0})
    # 50 KB are the quota of 5 s, of which the window permits 2.
    throttle_ms, before_s = measure(client.produce, "topic", 50_000)
    assert throttle_ms == pytest.approx(3000, abs=150)
    assert before_s < throttle_ms / 1000, "the response waits for nothing"
    # A client that does not wait is served only after the throttle time.
    assert_waited(measure(client.heartbeat)[1], 3, before_s)
    # The throttle time applies to the connection; the quota to all connections of the client id.
    began_s = time.monotonic()
    client.produce("topic", 50_000)
    other = connect("limited")
    throttle_ms, seconds = measure(other.produce, "topic", 1)
    assert throttle_ms > 2000 - (time.monotonic() - began_s) * 1000
    assert seconds < throttle_ms / 1000, "the response waits for nothing"
    assert measure(connect("unlimited").produce, "topic", 50_000)[0] == 0


@pytest.mark.side_by_side
def test_a_producer_without_acknowledgements_is_throttled(connect: Callable[[str], Client]) -> None:
    admin, client = connect("admin"), connect("limited")
    create_topic(admin, "topic")
    admin.set({"client-id": "limited"}, **{PRODUCER: 10_000.0})
    _, before_s = measure(client.produce, "topic", 40_000, 0)
    assert_waited(measure(client.heartbeat)[1], 2, before_s)


@pytest.mark.side_by_side
def test_a_consumer_above_its_quota_gets_an_empty_response(connect: Callable[[str], Client]) -> None:
    admin, client = connect("admin"), connect("limited")
    create_topic(admin, "topic")
    for _ in range(4):
        admin.produce("topic", 9000)
    admin.set({"client-id": "limited"}, **{CONSUMER: 10_000.0})
    first, first_s = measure(client.fetch, "topic", 15_000)
    assert first == (0, 1)
    (throttle_ms, partitions), before_s = measure(client.fetch, "topic", 15_000)
    # The time since the first fetch is subtracted.
    assert 1000 - (first_s + before_s) * 1000 - 150 < throttle_ms <= 1150
    assert partitions == 0
    (_, _), seconds = measure(client.fetch, "topic", 1)
    assert_waited(seconds, throttle_ms / 1000, before_s)
    # A throttled fetch does not count, so that a later one succeeds.
    time.sleep(1)
    assert client.fetch("topic", 1) == (0, 1)
    # A fetch returns about as much as the window permits, or else it would be throttled without end.
    assert connect("limited").fetch("topic", 100_000)[0] < 5000


@pytest.mark.side_by_side
def test_changes_of_topics_above_the_quota_are_refused_or_delayed(connect: Callable[[str], Client]) -> None:
    """KIP-599: refused by current versions; made, and followed by a throttle time, by older ones."""
    admin = connect("admin")
    for name in ("strict", "old"):
        admin.set({"client-id": name}, **{MUTATION: 1.0})
    # A burst of 11 is permitted, and a topic may exceed it.
    assert connect("strict").create("a", 15, 7) == (0, 0)
    wait_for_topics(admin_broker(admin), ["a"])
    for result in (
        connect("strict").create("b", 1, 6),
        connect("strict").grow("a", 16, 3),
        connect("strict").delete("a", 5),
    ):
        check_throttled(result, 4000, THROTTLING_QUOTA_EXCEEDED)
    check_throttled(connect("old").create("c", 14, 5), 3000)
    wait_for_topics(admin_broker(admin), ["c"])
    check_throttled(connect("old").grow("c", 15, 2), 4000)
    check_throttled(connect("old").delete("c", 4), 19_000)
    client = connect("old")
    client.create("d", 1, 5)
    assert admin.create("e", 20, 7) == (0, 0)


def check_throttled(result: tuple[int, int], expected_ms: int, code: int = 0) -> None:
    """Check a throttle time, from which the time since the first change is subtracted, and an error code."""
    throttle_ms, error_code = result
    assert error_code == code
    assert expected_ms - 2500 < throttle_ms <= expected_ms


def admin_broker(client: Client) -> Any:
    """Return an object with the port of the broker of a client."""

    class Port:
        port = client.socket.getpeername()[1]

    return Port


@pytest.mark.side_by_side
def test_a_request_quota_throttles_for_at_most_a_sample(connect: Callable[[str], Client]) -> None:
    admin, client = connect("admin"), connect("limited")
    create_topic(admin, "topic")
    admin.set({"client-id": "limited"}, **{REQUEST: 0.0001})
    client.heartbeat()
    throttle_ms, before_s = measure(client.heartbeat)
    assert throttle_ms == 1000
    assert_waited(measure(client.heartbeat)[1], 1, before_s)
    # With acks=0 the time of a request does not count, but the connection is still muted.
    assert admin.heartbeat() == 0


@pytest.mark.side_by_side
def test_connections_of_an_address_above_its_rate_are_closed_after_a_delay(connect: Callable[[str], Client]) -> None:
    admin = connect("admin")
    admin.set({"ip": "127.0.0.1"}, **{CONNECTIONS: 3.0})
    accepted, delays_s = 0, []
    # All are open before the first request: one after the other they would not exceed the rate on a busy machine.
    for began_s, client in [(time.monotonic(), connect("any")) for _ in range(9)]:
        try:
            client.heartbeat()
            accepted += 1
        except ClosedError:
            delays_s.append(time.monotonic() - began_s)
    assert 6 <= accepted < 9
    assert max(delays_s) > 0.05
    admin.set({"ip": "127.0.0.1"}, **{CONNECTIONS: None})
    assert connect("any").heartbeat() == 0


def test_quotas_survive_a_restart(start_broker: Callable[..., Any]) -> None:
    broker = start_broker({"quota.window.num": str(WINDOW)})
    with Client(broker.port, "admin") as admin:
        create_topic(admin, "topic")
        admin.set({"user": "ANONYMOUS", "client-id": "limited"}, **{PRODUCER: 10_000.0})
    broker.restart()
    with Client(broker.port, "limited") as client:
        assert client.produce("topic", 50_000) == pytest.approx(3000, abs=150)


# -- rates of real clients -----------------------------------------------------------------------------------------

RATE = 1_000_000
CLIENTS = 3


def assert_near_quota(rate: float) -> None:
    """Check that clients use their quota, and no more than it and the burst permit."""
    assert RATE / 2 < rate < 1.1 * RATE


class Load:
    """Real clients in threads, and the bytes that they have produced or consumed."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._bytes = [0] * CLIENTS

    def add(self, number: int, size: int) -> None:
        self._bytes[number] += size

    def measure(self, run: Callable[["Load", int], None], window_s: int, measured_s: int) -> float:
        """Run clients; return their rate together, from the start and with the burst that the window permits.

        The quota limits the bytes of any time to those of this time and a window. A busy machine can move a burst into
        a shorter time, in which the rate is higher.
        """
        threads = [threading.Thread(target=run, args=(self, number)) for number in range(CLIENTS)]
        began_s = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(measured_s)
        rate = sum(self._bytes) / (time.monotonic() - began_s + window_s)
        self.stopping.set()
        for thread in threads:
            thread.join()
        return rate


def create_limited(broker: Any, **quotas: float) -> None:
    with Client(broker.port, "admin") as admin:
        assert admin.create("topic", CLIENTS, 7) == (0, 0)
        admin.set({"client-id": "limited"}, **quotas)


@pytest.mark.timeout(120)
def test_producers_share_the_rate_of_their_quota(start_broker: Callable[..., Any]) -> None:
    broker = start_broker({"quota.window.num": str(WINDOW)})
    create_limited(broker, **{PRODUCER: float(RATE)})
    settings = {"client.id": "limited", "batch.size": 20_000, "linger.ms": 0, "queue.buffering.max.messages": 200}

    def produce(load: Load, number: int) -> None:
        def count(error: Any, message: Any) -> None:
            if error is None:
                load.add(number, len(message.value()))

        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
        while not load.stopping.is_set():
            try:
                producer.produce("topic", b"x" * 4000, partition=number, callback=count)
                producer.poll(0)
            except BufferError:
                producer.poll(0.01)
        producer.purge()
        producer.flush(1)

    assert_near_quota(Load().measure(produce, WINDOW, 4 * WINDOW))


@pytest.mark.timeout(180)
def test_consumers_share_the_rate_of_their_quota(start_broker: Callable[..., Any]) -> None:
    """With the default window: in a short one, the rates of Kafka's consumers are well below their quota."""
    broker = start_broker()
    create_limited(broker, **{CONSUMER: float(RATE)})
    # Small batches: a part of a batch at the end of a fetch counts for the quota, but has no message.
    filler = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 5000})
    for number in range(12_000):
        filler.produce("topic", b"x" * 4000, partition=number % CLIENTS)
        if number % 1000 == 0:
            filler.flush()
    filler.flush()
    settings = {"client.id": "limited", "group.id": "group", "fetch.message.max.bytes": 30_000}

    def consume(load: Load, number: int) -> None:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
        consumer.assign([TopicPartition("topic", number, 0)])
        while not load.stopping.is_set():
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                load.add(number, len(message.value() or b""))
        consumer.close()

    assert_near_quota(Load().measure(consume, 11, 22))
