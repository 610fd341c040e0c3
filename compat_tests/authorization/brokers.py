"""Two brokers with the same ACLs: Apache Kafka and Odradek, and clients with and without rights.

All clients are User:ANONYMOUS. Those that connect from `ADMIN_HOST` may do everything, by ACLs; those from
`CLIENT_HOST` may do what a test grants them. Inside Apache Kafka the user admin is a super user.
"""

import functools
import itertools
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from compat_tests import processes
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.sasl_users import PLAIN_MODULE
from odradek.protocol import codec
from odradek.protocol.access_control import Operation, ResourceType
from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import request_class, response_class
from odradek.protocol.schema import ArrayType, Struct, StructType
from odradek.protocol.types import ZERO_UUID
from odradek.server.apis import APIS
from odradek.server.security.authorization.needs import Need
from odradek.server.security.authorization.operations import CLUSTER_NAME
from odradek.testing import OdradekBroker

ADMIN_HOST: Final = "127.0.0.2"
CLIENT_HOST: Final = "127.0.0.1"
PRINCIPAL: Final = "User:ANONYMOUS"
TIMEOUT_S: Final = 30
LITERAL, ANY, ALLOW = 3, 1, 3
UNKNOWN_ID: Final = bytes(range(16))
KEYS: Final = {api.name: api.key for api in APIS.values()}
CLOSED: Final = "the connection was closed"

NOT_READY: Final = frozenset({14, 15, 16})
"""Errors of a coordinator that is not ready."""

NOISE: Final = {
    "assignment", "broker_id", "cluster_id", "controller_id", "current_leader", "documentation", "error_message",
    "eligible_leader_replicas", "host", "isr_nodes", "last_known_elr", "leader_epoch", "leader_id", "log_dir",
    "node_endpoints", "node_id", "nodes", "partition_size", "port", "rack", "replica_nodes", "throttle_time_ms",
    "total_bytes", "transaction_start_time_ms", "usable_bytes", "current_voters", "observers", "offline_replicas",
    "committed_leader_epoch", "preferred_read_replica", "last_stable_offset", "transaction_timeout_ms",
}  # fmt: skip
"""Fields that differ between two brokers, whatever the client may do."""

PRESENCE: Final = {"aborted_transactions", "active_producers", "brokers", "configs", "members", "records", "session_id"}
"""Fields of which only the presence of a value is compared."""

SIGN: Final = {
    "base_offset", "committed_offset", "end_offset", "high_watermark", "log_append_time_ms", "log_start_offset",
    "low_watermark", "offset", "producer_epoch", "producer_id", "timestamp",
}  # fmt: skip
"""Numbers of which only the sign is compared, because a negative one means that there is none."""

SECURITY: Final = {"super.users": "User:admin", "allow.everyone.if.no.acl.found": "true"}
JAAS: Final = f"{PLAIN_MODULE} required username=admin password=x user_admin=x;"


class SecuredKafkaBroker(ApacheKafkaBroker):
    """Apache Kafka whose broker and controller authenticate with each other as a super user."""

    def __init__(self) -> None:
        super().__init__(
            {
                **SECURITY,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,INTERNAL:SASL_PLAINTEXT"
                ),
                "inter.broker.listener.name": "INTERNAL",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": JAAS,
                "listener.name.internal.plain.sasl.jaas.config": JAAS,
                "group.initial.rebalance.delay.ms": "0",
            }
        )
        self._internal_port = processes.lasting_port()

    def _effective_properties(self) -> dict[str, str]:
        properties = super()._effective_properties()
        properties["listeners"] += f",INTERNAL://127.0.0.1:{self._internal_port}"
        return properties


def make_odradek() -> OdradekBroker:
    """Return a broker with an authorizer."""
    return OdradekBroker(
        {
            **SECURITY,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "node.id": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "5",
        }
    )


def build(kind: type[Struct], values: Mapping[str, Any]) -> Any:
    """Return a message with these values; nested structs are given as dictionaries."""
    wires = {field.name: field.wire for field in kind.fields}

    def convert(wire: Any, value: Any) -> Any:
        if isinstance(wire, StructType) and isinstance(value, Mapping):
            return build(wire.cls, value)
        if isinstance(wire, ArrayType) and value is not None:
            return [convert(wire.element, one) for one in value]
        return value

    return kind(**{name: convert(wires[name], value) for name, value in values.items()})


class Client:
    """A connection from one address to a broker."""

    def __init__(self, port: int, host: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=(host, 0))
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, api: str, version: int, values: Mapping[str, Any], *, is_answered: bool = True) -> Any:
        """Send a request and return its response; `CLOSED` if the connection is closed instead."""
        key = KEYS[api]
        kind, answer_kind = request_class(key), response_class(key)
        request = build(kind, values)
        head = struct.pack(">hhih", key, version, 1, 4) + b"test" + (b"\0" if kind.is_flexible(version) else b"")
        content = head + codec.encode(request, version)
        try:
            self._socket.sendall(struct.pack(">i", len(content)) + content)
            if not is_answered:
                return None if self._is_open() else CLOSED
            answer = self._receive()
        except OSError:
            return CLOSED
        if answer is None:
            return CLOSED
        start = 4 + response_is_flexible(key, kind.is_flexible(version))
        return codec.decode(answer_kind, version, answer, start)

    def _receive(self) -> bytes | None:
        size = self._stream.read(4)
        return self._stream.read(int.from_bytes(size, "big")) if len(size) == 4 else None

    def _is_open(self) -> bool:
        """Return whether the broker answers a request after one that gets no response."""
        self._socket.sendall(struct.pack(">ihhih", 10, 18, 0, 2, 0))
        return self._receive() is not None


class Broker:
    """A broker under test, and an administrator's connection to it."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.admin = Client(port, ADMIN_HOST)
        self.ids: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    def bootstrap(self) -> None:
        """Grant the administrator everything, which nobody else may do from then on."""
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        self._create(
            [
                (ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALL, ADMIN_HOST),
                *[(kind, "*", Operation.ALL, ADMIN_HOST) for kind in kinds],
            ]
        )
        self._await_acls(ADMIN_HOST, 4)

    def grant(self, rights: Iterable[tuple[Need, str]]) -> None:
        """Grant the client these rights, and no others."""
        every = {
            "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
            "principal_filter": None, "host_filter": CLIENT_HOST, "operation": ANY, "permission_type": ANY,
        }  # fmt: skip
        answer = self.admin.ask("DeleteAcls", 3, {"filters": [every]})
        assert answer.filter_results[0].error_code == 0
        wanted = [(need.resource_type, name, need.operation, CLIENT_HOST) for need, name in rights]
        if wanted:
            self._await_acls(CLIENT_HOST, 0)
            self._create(wanted)
        self._await_acls(CLIENT_HOST, len(wanted))

    def _create(self, bindings: Iterable[tuple[ResourceType, str, Operation, str]]) -> None:
        creations = [
            {
                "resource_type": kind, "resource_name": name, "resource_pattern_type": LITERAL, "principal": PRINCIPAL,
                "host": host, "operation": operation, "permission_type": ALLOW,
            }
            for kind, name, operation, host in bindings
        ]  # fmt: skip
        answer = self.admin.ask("CreateAcls", 3, {"creations": creations})
        assert {row.error_code for row in answer.results} == {0}, answer

    def _await_acls(self, host: str, count: int) -> None:
        """Wait until the broker has the ACLs: Apache Kafka acknowledges a change before."""
        selected = {
            "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
            "principal_filter": None, "host_filter": host, "operation": ANY, "permission_type": ANY,
        }  # fmt: skip
        for wait_s in _pauses():
            answer = self.admin.ask("DescribeAcls", 3, selected)
            if answer.error_code == 0 and sum(len(resource.acls) for resource in answer.resources) == count:
                return
            time.sleep(wait_s)
        raise AssertionError(f"{self.name} does not show {count} ACLs: {answer}")

    def create_topics(self, *names: str, partitions: int = 1) -> None:
        """Create topics and wait for their leaders."""
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1} for name in names]
        answer = self.admin.ask("CreateTopics", 7, {"topics": topics, "timeout_ms": 30_000})
        assert {row.error_code for row in answer.topics} <= {0, 36}, answer
        for wait_s in _pauses():
            found = self.admin.ask(
                "Metadata", 12, {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
            )
            rows = [row for topic in found.topics for row in (topic, *topic.partitions)]
            if not any(row.error_code for row in rows):
                break
            time.sleep(wait_s)
        for topic in found.topics:
            self.ids[topic.name], self._names[topic.topic_id] = topic.topic_id, topic.name

    def ask_until_ready(
        self, client: Client, api: str, version: int, values: Mapping[str, Any], retried: Collection[int] = NOT_READY
    ) -> Any:
        """Ask again while the response has one of these errors, by default those of coordinators."""
        for wait_s in _pauses():
            answer = client.ask(api, version, values)
            if answer == CLOSED or not _find_codes(answer).intersection(retried):
                break
            time.sleep(wait_s)
        return answer

    def simplify(self, answer: Any) -> Any:
        """Return a response as dictionaries and sorted lists, without the fields that differ between two brokers."""
        if isinstance(answer, Struct):
            return {
                field.name: self._simplify_field(field.name, getattr(answer, field.name))
                for field in answer.fields
                if field.name not in NOISE
            }
        if isinstance(answer, list):
            return sorted((self.simplify(one) for one in answer), key=repr)
        return answer

    def _simplify_field(self, name: str, value: Any) -> Any:
        if name in PRESENCE:
            return bool(value)
        if name in SIGN:
            return "set" if value >= 0 else "unset"
        if name == "topic_id" and value not in (ZERO_UUID, UNKNOWN_ID):
            return f"id of {self._names.get(value, 'another topic')}"
        return self.simplify(value)


def _pauses() -> Iterator[float]:
    end_s = time.monotonic() + TIMEOUT_S
    for wait_s in itertools.chain((0.005, 0.01, 0.02, 0.05), itertools.repeat(0.1)):
        if time.monotonic() > end_s:
            return
        yield wait_s


def _find_codes(answer: Any) -> set[int]:
    if isinstance(answer, list):
        return set().union(*map(_find_codes, answer)) if answer else set()
    if not isinstance(answer, Struct):
        return set()
    codes = {getattr(answer, field.name) for field in answer.fields if field.name.endswith("error_code")}
    return codes.union(*(_find_codes(getattr(answer, field.name)) for field in answer.fields))


@functools.cache
def batch(*, transactional: bool = False) -> bytes:
    """Return a batch of one record; a transactional one is of a producer that does not exist.

    Its time is the present: the brokers' checks of retention, at different times, would delete an older record.
    """
    records = [(int(time.time() * 1000), b"k", b"v", ())]
    if not transactional:
        return build_batch(records)
    return build_batch(records, producer_id=4711, producer_epoch=0, base_sequence=0, transactional=True)


def needs(api: str) -> tuple[Need, ...]:
    """Return the operations that the table of APIs declares."""
    return APIS[KEYS[api]].needs or ()
