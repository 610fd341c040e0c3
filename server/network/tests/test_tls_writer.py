"""TlsWriter and TlsTransport, with a client that decrypts what the socket gets."""

import gc
import weakref
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odradek.log.storage.filesystem import FileRegion
from odradek.server.config.broker import BrokerConfig
from odradek.server.measurements.socket_counts import SocketCounts
from odradek.server.network import tls
from odradek.server.network.tls import TlsTransport, TlsTransportFactory, TlsWriter
from odradek.server.network.transport import READ_BYTES
from odradek.server.network.writers import region_loader
from odradek.server.network.writers.socket_writer import ITERATION_LIMIT_BYTES, SocketWriter
from odradek.server.security.tls.certificates import write_test_certificates
from odradek.server.security.tls.contexts import make_client_context, make_server_context
from odradek.server.security.tls.layer import TlsLayer
from odradek.server.security.tls.settings import TlsSettings
from odradek.server.security.tls.tests.support import tls_properties

PART_BYTES = tls._PART_BYTES
LOADED_BYTES = region_loader.PART_BYTES


class Socket:
    """A SocketWriter that accepts everything, or nothing while it is full.

    fills: whether it is full after each send
    """

    def __init__(self, on_drained: Any) -> None:
        self.on_drained = on_drained
        self.has_progressed = False
        self.is_full = self.is_aborted = self.waits_for_room = False
        self.fills = False
        self.sent: list[bytes] = []
        self.small: list[bytes] = []
        self.unsent_bytes = 0

    @property
    def is_idle(self) -> bool:
        return not self.is_full and not self.is_aborted

    def send_one(self, data: bytearray) -> None:
        self.small.append(bytes(data))

    def send(self, pieces: list[Any]) -> None:
        self.flush()
        self.sent += map(bytes, pieces)
        self.is_full = self.is_full or self.fills

    def flush(self) -> None:
        self.sent += self.small
        self.small = []

    def wait_for_room(self) -> None:
        self.waits_for_room = True

    def drain(self) -> None:
        self.is_full = self.waits_for_room = False
        self.on_drained()

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_aborted = True


class Data:
    """A file whose reads are recorded. It is not read ahead unless `end` is set."""

    path = "/segment"

    def __init__(self, size_bytes: int) -> None:
        self.content = bytes(range(256)) * (size_bytes // 256 + 1)
        self.size = size_bytes
        self.reads: list[int] = []
        self.missing_bytes = 0
        self.cached_to = self.size
        self.end = 0
        self.loads: list[tuple[int, int]] = []

    def size_bytes(self) -> int:
        return self.end

    def is_cached(self, position: int, size: int) -> bool:
        return position + size <= self.cached_to

    def read_cached(self, position: int, size: int) -> bytes | None:
        if position + size > min(self.cached_to, self.size - self.missing_bytes):
            return None
        return self.pread(position, size)

    def load(self, position: int, size: int) -> None:
        self.loads.append((position, size))
        self.cached_to = max(self.cached_to, position + size)

    def pread(self, position: int, size: int) -> bytes:
        self.reads.append(size)
        return self.content[position : min(position + size, self.size - self.missing_bytes)]


def tls_settings(directory: Path) -> TlsSettings:
    return BrokerConfig(tls_properties(directory)).tls_settings("SSL")


class Connected:
    """A writer of a connection after the handshake, and its client."""

    def __init__(self, directory: Path) -> None:
        settings = tls_settings(directory)
        self.layer = TlsLayer(make_server_context(settings))
        self.client = TlsLayer(make_client_context(settings), server_name="localhost", is_server=False)
        self.drained: list[bool] = []
        self.socket: Any = None

        def make(on_drained: Any) -> Any:
            self.socket = Socket(on_drained)
            return self.socket

        self.counts = SocketCounts()
        self.threads: list[tuple[Any, Any]] = []
        self.now_s = 0.0
        files: Any = SimpleNamespace(
            run_read=lambda work, done: self.threads.append((work, done)), monotonic=lambda: self.now_s
        )
        self.writer = TlsWriter(self.layer, make, files, lambda: self.drained.append(True), self.counts)
        self.client.begin()
        for _ in range(3):
            self.layer.receive(self.client.take_output())
            self.writer.send_output()
            self.receive()

    def receive(self) -> bytes:
        """Return what the client decrypts of what the socket has got."""
        data = b"".join(self.socket.sent)
        self.socket.sent.clear()
        return self.client.receive(data)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    write_test_certificates(path, datetime.now(UTC))
    return path


@pytest.fixture
def connected(directory: Path) -> Connected:
    return Connected(directory)


def region(data: Data) -> Any:
    return FileRegion(data, 0, data.size)  # type: ignore[arg-type] # the used part of a file


def test_pieces_arrive_in_order(connected: Connected) -> None:
    data = Data(100_000)
    connected.writer.send_one(bytearray(b"small 1 "))
    connected.writer.send_one(bytearray(b"small 2 "))
    connected.writer.send([b"head ", region(data), memoryview(b" tail")])
    connected.writer.send_one(bytearray(b" small 3"))
    connected.writer.flush()
    assert connected.receive() == b"small 1 small 2 head " + data.content[: data.size] + b" tail small 3"
    assert connected.writer.is_idle


def test_plaintext_is_counted(connected: Connected) -> None:
    connected.writer.send_one(bytearray(b"small"))
    connected.writer.send([b"head", region(Data(100_000))])
    while not connected.writer.is_idle:
        connected.socket.drain()
    assert (connected.counts.responses, connected.counts.sent_bytes) == (2, 100_009)


def test_a_region_is_read_in_parts_as_the_socket_accepts_them(connected: Connected) -> None:
    """Otherwise the records of a large fetch would be in memory as a whole."""
    data = Data(10 * PART_BYTES)
    connected.socket.is_full = True
    connected.writer.send([b"head", region(data)])
    assert data.reads == []
    received = b""
    for _ in range(11):
        connected.socket.is_full = False

        def send(pieces: list[Any]) -> None:
            connected.socket.sent += pieces
            connected.socket.is_full = True

        connected.socket.send = send
        connected.socket.drain()
        received += connected.receive()
    assert received == b"head" + data.content[: data.size]
    assert max(data.reads) <= PART_BYTES
    assert len(data.reads) == 11, "one part each time"
    connected.socket.drain()
    assert connected.drained == [True]


def test_an_iteration_encrypts_a_bounded_amount(connected: Connected) -> None:
    data = Data(3 * ITERATION_LIMIT_BYTES)
    connected.writer.send([region(data)])
    assert connected.socket.waits_for_room
    assert sum(data.reads) == ITERATION_LIMIT_BYTES
    assert not connected.writer.is_idle
    assert connected.writer.unsent_bytes == 2 * ITERATION_LIMIT_BYTES
    connected.socket.drain()
    connected.socket.drain()
    assert connected.receive() == data.content[: data.size]
    assert connected.drained == [True]


def test_an_iteration_encrypts_a_bounded_number_of_pieces(connected: Connected) -> None:
    """A response may have two small pieces for each of thousands of partitions."""
    data = Data(100)
    connected.writer.send([b"head", region(data)] * 5_000)
    received, steps = b"", []
    while not connected.writer.is_idle:
        steps.append(len(data.reads))
        data.reads.clear()
        received += connected.receive()
        connected.socket.drain()
    assert received + connected.receive() == (b"head" + data.content[:100]) * 5_000
    assert 100 < max(steps) < 2_000
    assert connected.drained == [True]


def test_small_pieces_share_the_records_of_tls(connected: Connected) -> None:
    connected.writer.send([b"head", region(Data(100))] * 100)
    assert sum(map(len, connected.socket.sent)) < 104 * 100 + 100


def test_a_file_that_ends_early_closes_the_connection(connected: Connected) -> None:
    data = Data(100_000)
    data.missing_bytes = 50_000
    connected.writer.send([region(data)])
    for _ in range(2):
        ((work, done),) = connected.threads
        connected.threads.clear()
        work()
        done(None)
        connected.socket.drain()
    assert connected.socket.is_aborted


def test_the_end_is_announced(connected: Connected) -> None:
    connected.writer.send_one(bytearray(b"last"))
    connected.writer.end()
    connected.writer.flush()
    assert connected.receive() == b"last"
    assert connected.client.has_ended


def test_bytes_that_are_not_tls_are_refused(directory: Path) -> None:
    connected = Connected(directory)
    refusals: list[str] = []
    plain: Any = SimpleNamespace(writer=connected.writer, refuse=refusals.append, dataReceived=None)
    TlsTransport(plain, connected.layer).dataReceived(b"\x00\x00\x00\x0d\x00\x12\x00\x00")
    assert [one.partition(":")[0] for one in refusals] == ["TLS failed"]
    assert connected.socket.sent, "an alert"


def test_a_response_after_the_end_is_dropped(connected: Connected) -> None:
    """An error would reset the connection, so that responses before the end would be lost."""
    connected.writer.send_one(bytearray(b"last"))
    connected.writer.end()
    connected.writer.send_one(bytearray(b"late"))
    connected.writer.send([b"later"])
    connected.writer.flush()
    assert not connected.socket.is_aborted
    assert connected.receive() == b"last"
    assert connected.client.has_ended


def test_parts_that_are_on_the_disk_only_are_read_in_a_thread(connected: Connected) -> None:
    data = Data(3 * LOADED_BYTES)
    data.cached_to = LOADED_BYTES
    connected.writer.send([region(data), b"tail"])
    received = b""
    for part in (1, 2):
        received += connected.receive()
        assert received == data.content[: part * LOADED_BYTES]
        assert not connected.writer.is_idle
        assert not connected.socket.waits_for_room
        ((work, done),) = connected.threads
        connected.threads.clear()
        work()
        done(None)
        assert connected.socket.waits_for_room
        connected.socket.drain()
    received += connected.receive()
    assert received == data.content[: data.size] + b"tail"
    assert data.loads == [(LOADED_BYTES, LOADED_BYTES), (2 * LOADED_BYTES, LOADED_BYTES)]
    assert connected.writer.is_idle


def test_the_next_parts_are_read_while_the_client_receives_one(connected: Connected) -> None:
    data = Data(5 * LOADED_BYTES)
    data.cached_to, data.end = 0, data.size
    connected.socket.fills = True
    connected.writer.send([region(data)])
    waits = 0
    while not connected.writer.is_idle:
        waits += connected.writer.is_loading
        for work, done in connected.threads:
            work()
            done(None)
        connected.threads.clear()
        connected.socket.drain()
    assert waits == 1, "only for the first part"
    assert data.loads == [(position, LOADED_BYTES) for position in range(0, data.size, LOADED_BYTES)]
    assert sum(data.reads) == data.size


def test_an_empty_region_does_not_count_as_one_that_is_loaded(connected: Connected) -> None:
    connected.writer.send([b"head", region(Data(0)), b"tail"])
    assert connected.receive() == b"headtail"
    assert connected.writer.is_idle


def test_a_failed_read_in_a_thread_closes_the_connection(connected: Connected) -> None:
    data = Data(PART_BYTES)
    data.cached_to = 0
    connected.writer.send([region(data)])
    ((_, done),) = connected.threads
    done(OSError("the disk fails"))
    connected.socket.drain()
    assert connected.socket.is_aborted
    assert not data.reads


def test_a_closed_writer_reads_nothing_in_a_thread(connected: Connected) -> None:
    data = Data(PART_BYTES)
    data.cached_to = 0
    connected.writer.send([region(data)])
    connected.writer.close()
    ((work, done),) = connected.threads
    work()
    done(None)
    assert not data.loads
    assert not connected.socket.waits_for_room


def test_a_closed_writer_is_freed_without_the_garbage_collector(directory: Path) -> None:
    """The collector runs rarely; OpenSSL's state of a connection has some 100 kB."""
    transport: Any = SimpleNamespace(getHandle=lambda: None)
    files: Any = SimpleNamespace(send_file=None, run_read=None, monotonic=None)
    layer = Connected(directory).layer
    writer = TlsWriter(layer, lambda drained: SocketWriter(transport, Any, files, drained), files, lambda: None)  # type: ignore[arg-type]
    freed = weakref.ref(writer)
    gc.collect()
    gc.disable()
    try:
        writer.close()
        del writer
        assert freed() is None
    finally:
        gc.enable()


def test_large_frames_are_read_in_small_parts(directory: Path) -> None:
    plain: Any = SimpleNamespace()
    factory: Any = SimpleNamespace(build=lambda address, make_writer: plain, hold=lambda address: None)
    context = make_server_context(tls_settings(directory))
    assert TlsTransportFactory(factory, lambda: context, Any).buildProtocol(None) is not None  # type: ignore[arg-type]
    assert plain.large_read_bytes == READ_BYTES
