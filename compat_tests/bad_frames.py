"""Hand-made frames and record batches, in which every field can be wrong.

Requests are encoded by kafka-python's protocol classes; parts that clients never send are built here.
"""

import gzip
import socket
import struct
import time
import uuid
import zlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import crc32c
from kafka.protocol.producer import ProduceRequest, ProduceResponse

Record = tuple[bytes | None, bytes | None]

BATCH = struct.Struct(">qiibIhiqqqhii")
CRC_STARTS_AT = 21
CONTROL = 0x20
TRANSACTIONAL = 0x10
LOG_APPEND_TIME = 0x08
TIMEOUT_S = 60


class ClosedError(Exception):
    """The broker closed the connection without a response."""


class Connection:
    """A raw connection that sends and receives whole frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes unchanged, without a length prefix."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Return the next frame without its length. Raises ClosedError, or TimeoutError if there is none."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                raise ClosedError from None
            if not more:
                raise ClosedError
            data += more
        return bytes(data)

    def frame(self, request: Any, version: int) -> bytes:
        """Return a request's frame with its length and the next correlation id."""
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(self._correlation_id, "bad-frames")
        return bytes(request.encode(version=version, header=True, framed=True))

    def ask(self, request: Any, response: Any, version: int) -> Any:
        """Send a request and decode its response."""
        self.send(self.frame(request, version))
        return response.decode(self.receive(), version=version, header=True)

    def is_closed(self) -> bool:
        """Return whether the broker closes the connection, within a time limit, without another response."""
        try:
            self.receive()
        except ClosedError:
            return True
        except TimeoutError:
            return False
        return False


def varint(number: int) -> bytes:
    """Return the zigzag varint of a number, as in records."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest & ~0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(key: bytes | None, value: bytes | None, *, offset_delta: int = 0, headers: bytes = b"\0") -> bytes:
    """Return one record of a batch; `headers` are encoded headers, count included."""
    body = b"\0" + varint(0) + varint(offset_delta) + sized(key) + sized(value) + headers
    return varint(len(body)) + body


def batch(
    records: Iterable[Record] = ((b"key", b"value"),),
    *,
    payload: bytes | None = None,
    compress: int = 0,
    length: int | None = None,
    crc: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int | None = None,
) -> bytes:
    """Return a record batch that is valid except for the given fields; `payload` replaces the encoded records."""
    listed = list(records)
    encoded = b"".join(record(key, value, offset_delta=n) for n, (key, value) in enumerate(listed))
    payload = encoded if payload is None else payload
    if compress == 1:
        payload = gzip.compress(payload)
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    fields = (
        attributes | compress,
        len(listed) - 1 if last_offset_delta is None else last_offset_delta,
        now,
        now,
        producer_id,
        producer_epoch,
        base_sequence,
        len(listed) if record_count is None else record_count,
    )
    size = BATCH.size - 12 + len(payload)
    head = BATCH.pack(base_offset, size if length is None else length, leader_epoch, magic, 0, *fields)
    made = bytearray(head + payload)
    right = crc32c.crc32c(bytes(made[CRC_STARTS_AT:]))
    struct.pack_into(">I", made, 17, right if crc is None else crc)
    return bytes(made)


def legacy_message(magic: int, value: bytes = b"value") -> bytes:
    """Return a message set of one message in the format of Kafka 0.8 (magic 0) or 0.10 (magic 1)."""
    stamp = struct.pack(">q", int(time.time() * 1000)) if magic else b""
    body = struct.pack(">bb", magic, 0) + stamp + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def produce_request(
    topic: str | uuid.UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> Any:
    """Return a Produce request with one partition; by topic id from version 13 on."""
    topic_data = ProduceRequest.TopicProduceData
    name: dict[str, Any] = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic}
    data = topic_data(partition_data=[topic_data.PartitionProduceData(index=partition, records=records)], **name)
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=5000, topic_data=[data])


def produce(
    connection: Connection, topic: str | uuid.UUID, records: bytes | None, *, version: int = 9, **options: Any
) -> tuple[int, int]:
    """Produce to one partition; return (error code, base offset)."""
    request = produce_request(topic, records, **options)
    answer = connection.ask(request, ProduceResponse, version)
    (partition,) = answer.responses[0].partition_responses
    return partition.error_code, partition.base_offset


def plain_frame(key: int, version: int, body: bytes = b"", *, correlation_id: int = 1) -> bytes:
    """Return a frame with a request header of the old kind (not flexible) and any body."""
    content = struct.pack(">hhih", key, version, correlation_id, 3) + b"bad" + body
    return struct.pack(">i", len(content)) + content
