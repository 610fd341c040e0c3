"""The interface that scenarios use for every client library."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Self, TypeVar

from compat_tests import limits

Result = TypeVar("Result")
Partition = tuple[str, int]
Headers = tuple[tuple[str, bytes | None], ...]

EARLIEST = "earliest"
LATEST = "latest"


class Code(IntEnum):
    """The broker's error codes that scenarios expect."""

    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    REBALANCE_IN_PROGRESS = 27
    INVALID_TIMESTAMP = 32
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90


class ClientError(Exception):
    """An error that the broker returned, regardless of the library's exception."""

    def __init__(self, code: int, text: object = "") -> None:
        super().__init__(f"[{code}] {text}")
        self.code = code


class Message(NamedTuple):
    """A record to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Sent(NamedTuple):
    """Partition and offset of a sent record; the offset is -1 without a response (acks 0)."""

    partition: int
    offset: int


class Received(NamedTuple):
    """A record as returned by a consumer; timestamp_type 0 is CreateTime and 1 LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass
class ProducerOptions:
    """Options of a producer."""

    acks: int | str = "all"
    compression: str | None = None
    idempotent: bool = False
    linger_ms: int = 5
    max_request_bytes: int = 1_000_000
    partitioner: Callable[[bytes | None, Sequence[int]], int] | None = None
    timeout_ms: int = 20_000
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


@dataclass
class ConsumerOptions:
    """Options of a consumer. assignor: range, roundrobin or cooperative; committed_only: read_committed."""

    group: str | None = None
    instance_id: str | None = None
    assignor: str = "range"
    session_timeout_ms: int = 10_000
    heartbeat_ms: int = 500
    reset: str = "earliest"
    max_partition_bytes: int = 1_048_576
    fetch_wait_ms: int = 100
    client_id: str = "compat"
    committed_only: bool = False


class TopicConfig(NamedTuple):
    """A topic property's value and whether it is the default."""

    value: str | None
    is_default: bool


class GroupMember(NamedTuple):
    member_id: str
    client_id: str
    instance_id: str | None


class Group(NamedTuple):
    """A group's description; the state as Kafka writes it (Stable, Empty, Dead ...)."""

    state: str
    protocol: str
    members: tuple[GroupMember, ...]


class Cluster(NamedTuple):
    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[tuple[int, str, int], ...]


class Closing(ABC):
    """A context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class Producer(Closing):
    @abstractmethod
    def produce(self, topic: str, messages: Iterable[Message]) -> list[Sent]:
        """Send all messages, wait for all responses, and return the results in order. Raises the first ClientError."""

    # With a transactional id; a new producer fences its predecessors.

    @abstractmethod
    def begin(self) -> None: ...
    @abstractmethod
    def commit(self) -> None: ...
    @abstractmethod
    def abort(self) -> None: ...
    @abstractmethod
    def send_offsets(self, offsets: Mapping[Partition, int], consumer: "Consumer") -> None:
        """Commit offsets of the consumer's group within the transaction."""


class Consumer(Closing):
    @abstractmethod
    def subscribe(self, topics: Sequence[str], listener: Callable[[str, list[Partition]], None] | None) -> None:
        """Join the group. listener("assigned" | "revoked" | "lost", partitions) is called at every change."""

    @abstractmethod
    def assign(self, partitions: Sequence[Partition]) -> None: ...
    @abstractmethod
    def poll(self, timeout_s: float) -> list[Received]: ...
    @abstractmethod
    def seek(self, partition: Partition, offset: int) -> None: ...
    @abstractmethod
    def position(self, partition: Partition) -> int: ...
    @abstractmethod
    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        """Commit offsets, each with its metadata text, and wait for the response."""

    @abstractmethod
    def committed(self, partition: Partition) -> int | None: ...
    @abstractmethod
    def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]: ...
    @abstractmethod
    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the earliest and the latest offset that the broker returns."""


class Admin(Closing):
    @abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None: ...
    @abstractmethod
    def delete_topic(self, name: str) -> None: ...
    @abstractmethod
    def create_partitions(self, topic: str, total: int) -> None: ...
    @abstractmethod
    def topics(self) -> set[str]: ...
    @abstractmethod
    def partition_count(self, topic: str) -> int: ...
    @abstractmethod
    def describe_configs(self, topic: str) -> dict[str, TopicConfig]: ...
    @abstractmethod
    def set_config(self, topic: str, name: str, value: str) -> None: ...
    @abstractmethod
    def groups(self) -> set[str]: ...
    @abstractmethod
    def describe_group(self, group: str) -> Group: ...
    @abstractmethod
    def group_offsets(self, group: str) -> dict[Partition, int]: ...
    @abstractmethod
    def delete_records(self, partition: Partition, before: int) -> int:
        """Delete records below an offset (-1: all); return the new earliest offset."""

    @abstractmethod
    def describe_cluster(self) -> Cluster: ...

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    def delete_group_offsets(self, group: str, partition: Partition) -> None:
        raise NotImplementedError

    def alter_config(self, topic: str, name: str, operation: str, value: str | None) -> None:
        """Change a value incrementally; `operation` is SET, DELETE, APPEND or SUBTRACT."""
        raise NotImplementedError

    def list_offset(self, partition: Partition, which: str) -> int:
        """Return an offset; `which` is earliest, latest or max_timestamp."""
        raise NotImplementedError


def numbers(records: Iterable[Received]) -> list[int]:
    """Return the values of records, each a number as text."""
    return [int(record.value or b"") for record in records]


def read(consumer: Consumer, count: int, timeout_s: float = limits.CONDITION_S) -> list[Received]:
    """Poll until `count` records have arrived. Raises AssertionError if they do not arrive in time."""
    records: list[Received] = []
    give_up_at = time.monotonic() + timeout_s
    while len(records) < count:
        records += consumer.poll(0.2)
        assert time.monotonic() < give_up_at, f"{len(records)} of {count} records in {timeout_s} s"
    return records


def commit_in_group(consumer: Consumer, offsets: Mapping[Partition, tuple[int, str]]) -> None:
    """Commit offsets, after a rebalance if one is in progress; all records have been read.

    A client whose thread was not scheduled for long joins its group again; kafka-python refuses commits meanwhile.
    """

    def is_committed() -> bool:
        try:
            consumer.commit(offsets)
        except ClientError as error:
            assert error.code == Code.REBALANCE_IN_PROGRESS, error
            consumer.poll(0.1)
            return False
        return True

    wait_until(is_committed)


def repeat(action: Callable[[], Result], is_transient: Callable[[Exception], bool], timeout_s: float) -> Result:
    """Return the result of an action, which is repeated after errors that are transient. Raises its last error."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            return action()
        except Exception as error:
            if not is_transient(error) or time.monotonic() > give_up_at:
                raise
        time.sleep(0.05)


def wait_until(
    condition: Callable[[], Any], timeout_s: float = limits.CONDITION_S, what: str | Callable[[], Any] = ""
) -> Any:
    """Return the condition's first true value. Raises AssertionError if there is none in time.

    `what` is a part of the error; a function is called when the error is raised.
    """
    give_up_at = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {timeout_s} s: {what() if callable(what) else what or condition}")
        time.sleep(0.05)
    return value
