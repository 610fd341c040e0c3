"""The few Kafka frames that the benchmarks need, built by hand so that no client's cost is measured.

All frames are built once, before the measurement. Layouts follow the Kafka protocol guide: Produce 11 and Fetch 12
(the newest versions with topic names), and old inflexible versions of the requests that only prepare a run.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 19, 20
OFFSET_COMMIT, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID, END_TXN = 8, 10, 18, 22, 26
CLIENT_ID = b"benchmarks"
TOPIC_ALREADY_EXISTS = 36
UNKNOWN_TOPIC = 3
NO_COORDINATOR = (14, 15, 16)
FETCH_MAX_WAIT_MS = 500
NONE: Mapping[str, str] = MappingProxyType({})

BATCH_OVERHEAD_BYTES = 61
TRANSACTIONAL = 0x10
ABORTED_TRANSACTION_BYTES = 17
BATCH_AFTER_CRC = struct.Struct(">hiqqqhii")


class WireError(Exception):
    """A broker returned an error or an invalid response."""


def unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_unsigned_varint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the value at `position` and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def zigzag(value: int) -> bytes:
    return unsigned_varint((value << 1) ^ (value >> 63))


def record_batch(
    value_bytes: int, records: int, now_ms: int, *, producer_id: int = -1, base_sequence: int = -1
) -> bytes:
    """Return an uncompressed batch (format v2) of `records` keyless records whose values are `value_bytes` long.

    With a producer id it is part of a transaction, and its epoch is 0.
    """
    value = (b"0123456789abcdefghijklmnopqrstuvwxyz" * (value_bytes // 36 + 1))[:value_bytes]
    body = bytearray()
    for index in range(records):
        record = b"\x00\x00" + zigzag(index) + b"\x01" + zigzag(value_bytes) + value + b"\x00"
        body += zigzag(len(record)) + record
    attributes, epoch = (0, -1) if producer_id < 0 else (TRANSACTIONAL, 0)
    checked = BATCH_AFTER_CRC.pack(attributes, records - 1, now_ms, now_ms, producer_id, epoch, base_sequence, records)
    checked += body
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c.crc32c(checked)) + checked


def frame(api_key: int, version: int, body: bytes, *, flexible: bool = False, correlation_id: int = 1) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    if flexible:
        header += b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


def _compact(data: bytes) -> bytes:
    return unsigned_varint(len(data) + 1) + data


def produce_frame(
    topic: str, partition: int, batch: bytes, acks: int = -1, transactional_id: str | None = None
) -> bytes:
    """Produce 11 with one batch for one partition; in a transaction 12, which adds the partition to it."""
    owner = b"\x00" if transactional_id is None else _compact(transactional_id.encode())
    body = owner + struct.pack(">hi", acks, 30_000) + b"\x02" + _compact(topic.encode())
    body += b"\x02" + struct.pack(">i", partition) + _compact(batch) + b"\x00\x00\x00"
    return frame(PRODUCE, 11 if transactional_id is None else 12, body, flexible=True)


def produce_to_all_frame(topic: str, partitions: Sequence[int], batch: bytes) -> bytes:
    """Produce 11 with the same batch for several partitions, acks=all."""
    body = b"\x00" + struct.pack(">hi", -1, 30_000) + b"\x02" + _compact(topic.encode())
    body += unsigned_varint(len(partitions) + 1)
    body += b"".join([struct.pack(">i", index) + _compact(batch) + b"\x00" for index in partitions])
    return frame(PRODUCE, 11, body + b"\x00\x00", flexible=True)


def read_produce_errors(response: bytes, topic: str) -> dict[int, int]:
    """Return the error code of each partition in a response to `produce_to_all_frame`, its size field included."""
    view = memoryview(response)
    count, position = read_unsigned_varint(view, 4 + 4 + 1 + 1 + len(_compact(topic.encode())))
    errors: dict[int, int] = {}
    for _ in range(count - 1):
        index, code = struct.unpack_from(">ih", view, position)
        errors[index] = code
        records, position = read_unsigned_varint(view, position + 4 + 2 + 3 * 8)
        for _ in range(records - 1):
            position = _skip_tags(view, _skip_string(view, position + 4))
        position = _skip_tags(view, _skip_string(view, position))
    return errors


def _skip_string(view: memoryview, position: int) -> int:
    size, position = read_unsigned_varint(view, position)
    return position + max(0, size - 1)


def _skip_tags(view: memoryview, position: int) -> int:
    count, position = read_unsigned_varint(view, position)
    for _ in range(count):
        _, position = read_unsigned_varint(view, position)
        size, position = read_unsigned_varint(view, position)
        position += size
    return position


def produce_error_position(topic: str) -> int:
    """Return the position of the partition's error code in the response to `produce_frame`, its size field included."""
    return 4 + 4 + 1 + 1 + len(_compact(topic.encode())) + 1 + 4


def fetch_frame(
    topic: str, partition: int, *, partition_max_bytes: int, isolation_level: int = 0
) -> tuple[bytearray, int]:
    """Return Fetch 12 without a session, and the position of its big-endian int64 fetch offset."""
    body = (
        struct.pack(">iiiibii", -1, FETCH_MAX_WAIT_MS, 1, 50 * 1024 * 1024, isolation_level, 0, -1)
        + b"\x02"
        + _compact(topic.encode())
    )
    body += b"\x02" + struct.pack(">ii", partition, -1)
    after = struct.pack(">qiqi", 0, -1, -1, partition_max_bytes) + b"\x00\x00\x01\x01\x00"
    whole = frame(FETCH, 12, body + after, flexible=True)
    return bytearray(whole), len(whole) - len(after)


class FetchedRecords(NamedTuple):
    error_code: int
    start: int
    size_bytes: int


def locate_records(response: memoryview, topic: str) -> FetchedRecords:
    """Locate the records of the one partition in a complete Fetch 12 response, its size field included."""
    if response[13] or response[14]:
        return FetchedRecords(int.from_bytes(response[13:15], "big"), 0, 0)
    position = 4 + 4 + 1 + 4 + 2 + 4 + 1 + len(_compact(topic.encode())) + 1 + 4
    error_code = int.from_bytes(response[position : position + 2], "big")
    aborted, position = read_unsigned_varint(response, position + 2 + 24)
    position += max(aborted - 1, 0) * ABORTED_TRANSACTION_BYTES
    size_bytes, position = read_unsigned_varint(response, position + 4)
    return FetchedRecords(error_code, position, max(size_bytes - 1, 0))


def init_producer_id_frame(transactional_id: str) -> bytes:
    """InitProducerId 4 of a new producer."""
    body = _compact(transactional_id.encode()) + struct.pack(">iqh", 60_000, -1, -1) + b"\x00"
    return frame(INIT_PRODUCER_ID, 4, body, flexible=True)


def end_txn_frame(transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> bytes:
    """EndTxn 5, whose response has the next epoch."""
    body = _compact(transactional_id.encode()) + struct.pack(">qh?", producer_id, epoch, commit) + b"\x00"
    return frame(END_TXN, 5, body, flexible=True)


class ProducerAnswer(NamedTuple):
    error_code: int
    producer_id: int
    epoch: int


def read_producer_answer(response: bytes) -> ProducerAnswer:
    """Read the response to one of the two frames above, its size field included."""
    return ProducerAnswer(*struct.unpack_from(">hqh", response, 4 + 4 + 1 + 4))


# Requests that prepare a run: one at a time, over a plain blocking connection.


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Admin:
    """One blocking connection for topics and offsets; a context manager. Raises WireError and OSError.

    connect: makes the connection if it is not plaintext
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout_s: float = 30.0,
        connect: Callable[[], socket.socket] | None = None,
    ) -> None:
        if connect is None:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        else:
            self._socket = connect()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, api_key: int, version: int, body: bytes) -> bytes:
        """Return the response's bytes after its correlation id (inflexible versions only)."""
        return self.exchange(frame(api_key, version, body))[8:]

    def exchange(self, request: bytes) -> bytes:
        """Return the complete response to a frame, its size field included."""
        self._socket.sendall(request)
        size = self._receive(4)
        return size + self._receive(int.from_bytes(size, "big"))

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self._socket.recv(size - len(received))
            if not chunk:
                raise WireError("the broker closed the connection")
            received += chunk
        return bytes(received)

    def metadata(self, topics: list[str]) -> bytes:
        """Request Metadata 1 for `topics`; for none if the list is empty."""
        return self.call(METADATA, 1, struct.pack(">i", len(topics)) + b"".join(map(_string, topics)))

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] = NONE) -> None:
        """Create a topic with one replica for each partition, and wait for its leaders, which this broker has."""
        self.send_creation(topic, partitions, configs)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if all(self.end_offset(topic, partition) >= 0 for partition in range(partitions)):
                    return
            except WireError:
                time.sleep(0.05)
        raise WireError(f"topic {topic} has no leader after 20 s")

    def send_creation(
        self, topic: str, partitions: int, configs: Mapping[str, str] = NONE, *, replicas: int = 1
    ) -> None:
        """Create a topic; its partitions may have no leaders yet when this returns."""
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihii", partitions, replicas, 0, len(configs))
        body += b"".join(_string(name) + _string(value) for name, value in configs.items())
        body += struct.pack(">ib", 30_000, 0)
        error_code = self._single_error(CREATE_TOPICS, 4, body, topic)
        if error_code not in (0, TOPIC_ALREADY_EXISTS):
            raise WireError(f"topic {topic} not created: error {error_code}")

    def delete_topic(self, topic: str) -> None:
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">i", 30_000)
        error_code = self._single_error(DELETE_TOPICS, 3, body, topic)
        if error_code not in (0, UNKNOWN_TOPIC):
            raise WireError(f"topic {topic} not deleted: error {error_code}")

    def _single_error(self, api_key: int, version: int, body: bytes, topic: str) -> int:
        answer = self.call(api_key, version, body)
        position = 4 + 4 + 2 + len(topic.encode())
        return int.from_bytes(answer[position : position + 2], "big", signed=True)

    def await_transactions(self, transactional_id: str) -> None:
        """Return once the id has a coordinator; the first request creates the transaction topic."""
        deadline = time.monotonic() + 30
        body = _string(transactional_id) + b"\x01"
        while (code := int.from_bytes(self.call(FIND_COORDINATOR, 1, body)[4:6], "big")) != 0:
            if time.monotonic() > deadline:
                raise WireError(f"no coordinator for transactions: error {code}")
            time.sleep(0.05)

    def commit_offset(self, group: str, topic: str) -> None:
        """Commit offset 0 of partition 0 of a topic for a group without members (OffsetCommit 2)."""
        body = _string(group) + struct.pack(">i", -1) + _string("") + struct.pack(">qi", -1, 1)
        body += _string(topic) + struct.pack(">iiqh", 1, 0, 0, -1)
        deadline_s = time.monotonic() + 20
        while (error := int.from_bytes(self.call(OFFSET_COMMIT, 2, body)[-2:], "big", signed=True)) in NO_COORDINATOR:
            if time.monotonic() > deadline_s:
                break
            # Creates the topic of the offsets.
            self.call(FIND_COORDINATOR, 0, _string(group))
            time.sleep(0.1)
        if error:
            raise WireError(f"OffsetCommit of {group}: error {error}")

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset of the next record (ListOffsets 1, timestamp -1)."""
        body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">iiq", 1, partition, -1)
        answer = self.call(LIST_OFFSETS, 1, body)
        position = 4 + 2 + len(topic.encode()) + 4 + 4
        error_code, _, offset = struct.unpack_from(">hqq", answer, position)
        if error_code:
            raise WireError(f"no end offset of {topic}-{partition}: error {error_code}")
        return int(offset)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
