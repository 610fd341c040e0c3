"""The loads: requests of one client before and during the measurement of another one's delays."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks import wire
from benchmarks.brokers import RestartableBroker
from benchmarks.fairness import frames

TOPIC = "fairness"
LEAST_ACT_S = 3.0
ANSWER_TIMEOUT_S = 300.0
RECEIVE_BYTES = 1 << 20
BURST = 500


class FairnessLoad(NamedTuple):
    """One load. `act` runs during the measurement, repeatedly for `LEAST_ACT_S` if `repeats`.

    Each load gets a new broker.
    """

    name: str
    title: str
    act: Callable[[RestartableBroker], None]
    prepare: Callable[[RestartableBroker], None] = lambda broker: None
    repeats: bool = False


def connect(broker: RestartableBroker) -> wire.Admin:
    return wire.Admin(broker.port, timeout_s=ANSWER_TIMEOUT_S)


@contextlib.contextmanager
def raw_connections(broker: RestartableBroker, count: int) -> Iterator[list[socket.socket]]:
    """Open plain sockets; a frame is sent, and a response received, completely or the time limit ends the load."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_TIMEOUT_S))
            for _ in range(count)
        ]


def ask(broker: RestartableBroker, *requests: bytes) -> None:
    """Send each request and wait for its response; a connection that the broker closes counts as one."""
    with connect(broker) as client, contextlib.suppress(wire.WireError, ConnectionError):
        for request in requests:
            client.exchange(request)


def drain(connections: Sequence[socket.socket], answers: int) -> None:
    """Receive `answers` responses on each of the connections."""
    pending = {one.fileno(): (one, bytearray(), answers) for one in connections}
    give_up_s = time.monotonic() + ANSWER_TIMEOUT_S
    while pending:
        if time.monotonic() > give_up_s:
            raise wire.WireError(f"{len(pending)} connections without their responses")
        for fd in select.select(list(pending), [], [], 1.0)[0]:
            connection, buffer, left = pending[fd]
            received = connection.recv(RECEIVE_BYTES)
            if not received:
                raise wire.WireError("the broker closed a connection")
            buffer += received
            while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
                del buffer[:size]
                left -= 1
            if left:
                pending[fd] = connection, buffer, left
            else:
                del pending[fd]


def create(partitions: int, **configs: str) -> Callable[[RestartableBroker], None]:
    """Prepare `TOPIC`; names of configurations have _ for the dot."""

    def prepare(broker: RestartableBroker) -> None:
        with connect(broker) as admin:
            admin.create_topic(TOPIC, partitions, {name.replace("_", "."): value for name, value in configs.items()})

    return prepare


# -- batches of many records -------------------------------------------------------------------------------------------

EQUAL_RECORDS, RECORDS, LATENESS_MS = 14_000_000, 3_000_000, 100_000
BASE_MS = wire.now_ms()


def _huge_batch(record: bytes, count: int, last_offset_delta: int) -> bytes:
    now_ms = wire.now_ms()
    batch = frames.repeated_record(record, count, last_offset_delta, now_ms, now_ms + 1000)
    return wire.produce_frame(TOPIC, 0, batch)


def _produce_huge(record: bytes, count: int, last_offset_delta: int) -> Callable[[RestartableBroker], None]:
    return lambda broker: ask(broker, _huge_batch(record, count, last_offset_delta))


def _prepare_lookup(broker: RestartableBroker) -> None:
    create(1, max_message_bytes="100000000")(broker)
    ask(broker, wire.produce_frame(TOPIC, 0, frames.late_record(RECORDS, BASE_MS, LATENESS_MS)))


def _look_up(broker: RestartableBroker) -> None:
    ask(broker, frames.list_offsets(TOPIC, BASE_MS + LATENESS_MS // 2))


# -- topics ------------------------------------------------------------------------------------------------------------


def _create_large(broker: RestartableBroker) -> None:
    ask(broker, frames.create_topic(TOPIC, 4000))


def _grow_large(broker: RestartableBroker) -> None:
    ask(broker, frames.create_partitions(TOPIC, 4000))


def _flood_metadata(broker: RestartableBroker) -> None:
    with raw_connections(broker, 1) as (flooding,):
        flooding.sendall(frames.metadata_of_all() * 4000)
        time.sleep(LEAST_ACT_S)


def _ask_all_metadata(broker: RestartableBroker) -> None:
    ask(broker, *[frames.metadata_of_all()] * 20)


# -- requests that are expensive to decode -----------------------------------------------------------------------------


def _send_tags(broker: RestartableBroker) -> None:
    ask(broker, frames.header_of_tags(4_000_000))


def _send_empty_names(broker: RestartableBroker) -> None:
    ask(broker, frames.metadata_of_empty_names(10_000_000))


# -- groups ------------------------------------------------------------------------------------------------------------

GROUPS, COMMITTERS = 2000, 200


def _await_groups(broker: RestartableBroker) -> None:
    create(1000)(broker)
    with connect(broker) as admin:
        give_up_s = time.monotonic() + 60
        while admin.call(wire.FIND_COORDINATOR, 1, struct.pack(">h", 1) + b"g\0")[4:6] != b"\0\0":
            if time.monotonic() > give_up_s:
                raise wire.WireError("no group coordinator after 60 s")
            time.sleep(0.05)
        time.sleep(1.0)


def _fill_offsets(broker: RestartableBroker) -> None:
    """About 21 MB in all partitions of __consumer_offsets, and a broker that has to load it."""
    _await_groups(broker)
    requests = [frames.offset_commit(f"group-{number}", TOPIC, range(1000), number) for number in range(210)]
    ask(broker, *requests)


def _restart(broker: RestartableBroker) -> None:
    broker.restart()
    time.sleep(LEAST_ACT_S)


def _commit_much(broker: RestartableBroker) -> None:
    with raw_connections(broker, COMMITTERS) as committers:
        for number, committer in enumerate(committers):
            committer.sendall(frames.offset_commit(f"group-{number}", TOPIC, range(50), 1) * 10)
        drain(committers, 10)


def _make_groups(broker: RestartableBroker) -> None:
    _await_groups(broker)
    ask(broker, *[frames.offset_commit(f"group-{number}", TOPIC, [0], 1) for number in range(GROUPS)])


def _delete_groups(broker: RestartableBroker) -> None:
    ask(broker, frames.delete_groups([f"group-{number}" for number in range(GROUPS)]))


# -- fetches and producers ---------------------------------------------------------------------------------------------

WAITING_FETCHES, FETCHED_PARTITIONS, PRODUCERS = 20, 1500, 60_000


def _fetch_and_produce(broker: RestartableBroker) -> None:
    fetch = frames.waiting_fetch(TOPIC, FETCHED_PARTITIONS, int(2 * LEAST_ACT_S * 1000))
    produce = wire.produce_frame(TOPIC, 0, wire.record_batch(100, 1, wire.now_ms()))
    with raw_connections(broker, WAITING_FETCHES) as waiting, connect(broker) as producer:
        for one in waiting:
            one.sendall(fetch)
        end_s = time.monotonic() + LEAST_ACT_S
        while time.monotonic() < end_s:
            producer.exchange(produce)
            time.sleep(0.01)


def _write_with_many_producers(broker: RestartableBroker) -> None:
    create(1, segment_bytes="1048576")(broker)
    with raw_connections(broker, 1) as connections:
        for first in range(0, PRODUCERS, BURST):
            ids = range(first + 1000, first + 1000 + BURST)
            batches = [frames.idempotent_batch(producer_id, wire.now_ms()) for producer_id in ids]
            connections[0].sendall(b"".join(wire.produce_frame(TOPIC, 0, batch) for batch in batches))
            drain(connections, BURST)


def _describe_producers(broker: RestartableBroker) -> None:
    ask(broker, frames.describe_producers(TOPIC))


def _roll_segments(broker: RestartableBroker) -> None:
    ask(broker, *[wire.produce_frame(TOPIC, 0, wire.record_batch(1024, 900, wire.now_ms()))] * 10)


# -- records that are on the disk only ---------------------------------------------------------------------------------

COLD_BATCHES, COLD_BATCH_RECORDS = 1_000, 900


def _fill_cold(broker: RestartableBroker) -> None:
    """Write 1 GB, and drop it from the page cache."""
    create(1, segment_bytes="104857600")(broker)
    batch = wire.record_batch(1024, COLD_BATCH_RECORDS, wire.now_ms())
    ask(broker, *[wire.produce_frame(TOPIC, 0, batch)] * COLD_BATCHES)
    for path in broker.data_dir.rglob(f"{TOPIC}-0/*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_cold(broker: RestartableBroker) -> None:
    """Read all batches in order, one with each fetch."""
    request, position = wire.fetch_frame(TOPIC, 0, partition_max_bytes=1_048_576)
    with connect(broker) as consumer:
        for number in range(COLD_BATCHES):
            struct.pack_into(">q", request, position, number * COLD_BATCH_RECORDS)
            consumer.exchange(bytes(request))


LOADS: tuple[FairnessLoad, ...] = (
    FairnessLoad("idle", "no load at all", lambda broker: time.sleep(LEAST_ACT_S)),
    FairnessLoad(
        "lookup", "ListOffsets by timestamp in a batch of 3M records", _look_up, _prepare_lookup, repeats=True
    ),
    FairnessLoad(
        "produce-14m",
        "produce a batch of 14M records",
        _produce_huge(frames.NULL_KEY_RECORD, EQUAL_RECORDS, EQUAL_RECORDS - 1),
        create(1),
    ),
    FairnessLoad(
        "produce-wrong",
        "produce a batch of 3M records with a wrong last offset delta",
        _produce_huge(frames.NULL_KEY_RECORD, RECORDS, RECORDS),
        create(1),
    ),
    FairnessLoad(
        "produce-compacted",
        "produce a batch of 3M records to a compacted topic",
        _produce_huge(frames.KEYED_RECORD, RECORDS, RECORDS - 1),
        create(1, cleanup_policy="compact"),
    ),
    FairnessLoad("create-4000", "create a topic of 4,000 partitions", _create_large),
    FairnessLoad("grow-4000", "grow a topic to 4,000 partitions", _grow_large, create(1)),
    FairnessLoad(
        "metadata-flood", "4,000 pipelined Metadata requests, responses unread", _flood_metadata, create(1000)
    ),
    FairnessLoad("metadata-all", "Metadata of all of 2,000 partitions", _ask_all_metadata, create(2000), repeats=True),
    FairnessLoad("loading", "start and load 50 group coordinator shards of 21 MB", _restart, _fill_offsets),
    FairnessLoad(
        "waiting-fetches",
        "20 waiting fetches of 1,500 partitions and a producer",
        _fetch_and_produce,
        create(FETCHED_PARTITIONS),
    ),
    FairnessLoad(
        "commits", "200 connections, ten pipelined commits of 50 offsets", _commit_much, _await_groups, repeats=True
    ),
    FairnessLoad("delete-groups", "delete 2,000 groups in one request", _delete_groups, _make_groups),
    FairnessLoad("header-tags", "20 MB of unknown header tags", _send_tags),
    FairnessLoad("empty-names", "20 MB of empty names in Metadata", _send_empty_names),
    FairnessLoad(
        "describe-producers",
        "DescribeProducers with 60,000 producer ids",
        _describe_producers,
        _write_with_many_producers,
        repeats=True,
    ),
    FairnessLoad("cold-read", "a consumer of 1 GB that is on the disk only", _read_cold, _fill_cold),
    FairnessLoad("roll", "segment rolls with 60,000 producer ids", _roll_segments, _write_with_many_producers),
)
