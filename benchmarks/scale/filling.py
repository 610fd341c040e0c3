"""Topics, groups and other objects of a broker, in few requests. Layouts follow the Kafka protocol guide."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from benchmarks import wire
from benchmarks.fairness import frames
from odradek.testing import OdradekBroker

CREATE_ACLS, ALTER_CLIENT_QUOTAS, ALTER_USER_SCRAM_CREDENTIALS = 30, 49, 51
WIDE = "bench-wide"
PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "transaction.state.log.replication.factor": "1",
}
_AT_ONCE = 500
_RECORDS = 100
_TOPIC, _LITERAL, _ANY_HOST, _READ, _ALLOW = 2, 3, "*", 3, 3
_SCRAM_SHA_256, _ITERATIONS = 1, 4096
_TIMEOUT_MS = 120_000
T = TypeVar("T")


class Size(NamedTuple):
    """Numbers of objects.

    groups: also the number of transactional ids, users and quotas; there is one ACL for each topic
    wide_partitions: partitions of the topic `WIDE`, all of which have an offset of the group `WIDE`
    """

    topics: int
    groups: int
    wide_partitions: int

    def __str__(self) -> str:
        return f"{self.topics:,} topics, {self.groups:,} groups, a topic of {self.wide_partitions:,} partitions"


def name_of(number: int) -> str:
    """Return the name of a topic, group, transactional id or user."""
    return f"bench-{number:05}"


def fill(broker: OdradekBroker, before: Size, after: Size) -> None:
    """Create what a broker with the objects of `before` lacks. The topic `WIDE` grows, and some topics have records."""
    with wire.Admin(broker.port, timeout_s=_TIMEOUT_MS / 1000) as admin:
        _widen(admin, before.wide_partitions, after.wide_partitions)
        topics = [name_of(number) for number in range(before.topics, after.topics)]
        groups = [name_of(number) for number in range(before.groups, after.groups)]
        create_topics(admin, topics)
        if not before.topics:
            _produce(admin, topics[:1])
        for group in groups:
            commit(admin, group, name_of(int(group[-5:]) % after.topics), [0])
        commit(admin, WIDE, WIDE, range(after.wide_partitions))
        # Makes a reader of each partition.
        admin.exchange(frames.waiting_fetch(WIDE, after.wide_partitions, 0))
        if groups:
            admin.await_transactions(groups[0])
        for name in groups:
            answer = wire.read_producer_answer(admin.exchange(wire.init_producer_id_frame(name)))
            _check(answer.error_code, f"InitProducerId of {name}")
        for part in _divide(topics):
            _create_acls(admin, part)
        for part in _divide(groups):
            _create_users(admin, part)
            _create_quotas(admin, part)


def create_topics(admin: wire.Admin, names: Sequence[str], partitions: int = 1) -> None:
    """Create topics of one replica, and wait for the leaders of the last one."""
    for part in _divide(names):
        rows = [_string(name) + struct.pack(">ihii", partitions, 1, 0, 0) for name in part]
        body = struct.pack(">i", len(rows)) + b"".join(rows) + struct.pack(">ib", _TIMEOUT_MS, 0)
        answer = admin.call(wire.CREATE_TOPICS, 4, body)
        position = 8
        for name in part:
            position += 2 + len(name)
            code, message_size = struct.unpack_from(">hh", answer, position)
            _check(code, f"creation of {name}")
            position += 4 + max(message_size, 0)
    for name in names[-1:]:
        _await_leader(admin, name, partitions - 1)


def commit(admin: wire.Admin, group: str, topic: str, partitions: Iterable[int]) -> None:
    """Commit offset 0 of partitions of a topic for a group without members."""
    request = frames.offset_commit(group, topic, partitions, 0)
    give_up_s = time.monotonic() + 30
    while (code := _read_code(admin.exchange(request)[-2:])) in wire.NO_COORDINATOR and time.monotonic() < give_up_s:
        # Creates the topic of the offsets.
        admin.call(wire.FIND_COORDINATOR, 0, _string(group))
        time.sleep(0.1)
    _check(code, f"OffsetCommit of {group}")


def _widen(admin: wire.Admin, before: int, after: int) -> None:
    if not before:
        create_topics(admin, [WIDE], after)
    elif after > before:
        answer = admin.exchange(frames.create_partitions(WIDE, after))
        _check(_read_code(answer[16 + 2 + len(WIDE) :][:2]), "CreatePartitions")
        _await_leader(admin, WIDE, after - 1)


def _produce(admin: wire.Admin, names: Iterable[str]) -> None:
    batch = wire.record_batch(100, _RECORDS, wire.now_ms())
    for name in names:
        position = wire.produce_error_position(name)
        _check(_read_code(admin.exchange(wire.produce_frame(name, 0, batch))[position:][:2]), f"Produce to {name}")


def _create_acls(admin: wire.Admin, names: Sequence[str]) -> None:
    rows = [
        struct.pack(">b", _TOPIC)
        + _string(name)
        + struct.pack(">b", _LITERAL)
        + _string(f"User:{name}")
        + _string(_ANY_HOST)
        + struct.pack(">bb", _READ, _ALLOW)
        for name in names
    ]
    answer = admin.call(CREATE_ACLS, 1, struct.pack(">i", len(rows)) + b"".join(rows))
    _check(_read_code(answer[8:10]), "CreateAcls")


def _create_users(admin: wire.Admin, names: Sequence[str]) -> None:
    salted = wire.unsigned_varint(33) + bytes(range(32))
    rows = [_compact(name) + struct.pack(">bi", _SCRAM_SHA_256, _ITERATIONS) + salted * 2 + b"\0" for name in names]
    body = b"\x01" + wire.unsigned_varint(len(rows) + 1) + b"".join(rows) + b"\0"
    answer = admin.exchange(wire.frame(ALTER_USER_SCRAM_CREDENTIALS, 0, body, flexible=True))
    count, position = wire.read_unsigned_varint(memoryview(answer), 4 + 4 + 1 + 4)
    assert count
    _check(_read_code(answer[position + len(_compact(names[0])) :][:2]), "AlterUserScramCredentials")


def _create_quotas(admin: wire.Admin, names: Sequence[str]) -> None:
    rows = [
        struct.pack(">i", 1)
        + _string("user")
        + _string(name)
        + struct.pack(">i", 1)
        + _string("producer_byte_rate")
        + struct.pack(">db", 1e9, 0)
        for name in names
    ]
    answer = admin.call(ALTER_CLIENT_QUOTAS, 0, struct.pack(">i", len(rows)) + b"".join(rows) + b"\0")
    _check(_read_code(answer[8:10]), "AlterClientQuotas")


def _await_leader(admin: wire.Admin, topic: str, partition: int) -> None:
    give_up_s = time.monotonic() + 60
    while True:
        try:
            admin.end_offset(topic, partition)
            return
        except wire.WireError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.05)


def _divide(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, _AT_ONCE)):
        yield part


def _check(code: int, what: str) -> None:
    if code:
        raise wire.WireError(f"{what}: error {code}")


def _read_code(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(text: str) -> bytes:
    return wire.unsigned_varint(len(text) + 1) + text.encode()
