"""A network without sockets for channels: connections that a test accepts, answers and breaks."""

import struct
from types import SimpleNamespace

from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from odradek.protocol import codec
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import request_class
from odradek.protocol.messages.api_versions import ApiVersionsResponse, ApiVersionsResponseApiVersion
from odradek.server.work.slices import Slices


class Request(SimpleNamespace):
    """A received request: message, version, correlation_id, client_id."""


def read_request(frame):
    """The request in a frame with its length prefix."""
    size, key, version, correlation_id, length = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    position = 14 + length
    client_id = bytes(frame[14:position]).decode()
    message_type = request_class(key)
    if message_type.is_flexible(version):
        assert frame[position] == 0
        position += 1
    message = codec.decode(message_type, version, frame, position)
    return Request(message=message, version=version, correlation_id=correlation_id, client_id=client_id)


def response_frame(response, version, correlation_id, tags=b"\0"):
    """A response's bytes on the wire, length first."""
    head = struct.pack(">i", correlation_id)
    if response_is_flexible(response.api_key, response.is_flexible(version)):
        head += tags
    content = head + codec.encode(response, version)
    return struct.pack(">i", len(content)) + content


class Link:
    """An attempt to connect, and the connection after `accept`: Twisted's connector and transport."""

    def __init__(self, host, port, factory):
        self.address = (host, port)
        self.bufferSize = 0
        self.is_open = False
        self.is_aborted = False
        self.room_bytes = None
        self._factory = factory
        self._received = bytearray()

    # of the connector

    def disconnect(self):
        self.is_aborted = True
        self._factory.clientConnectionFailed(self, Failure(ConnectionRefusedError()))

    # of the transport

    def setTcpNoDelay(self, enabled):  # noqa: N802
        assert enabled

    def setTcpKeepAlive(self, enabled):  # noqa: N802
        assert enabled

    def getHandle(self):  # noqa: N802
        return self

    def send(self, data):
        """Of the socket: take what there is room for."""
        taken = len(data) if self.room_bytes is None else self.room_bytes
        if not taken:
            raise BlockingIOError
        self.write(data[:taken])
        return taken

    def write(self, data):
        assert isinstance(data, bytes)
        assert self.is_open
        self._received += data

    def abortConnection(self):  # noqa: N802
        self.is_aborted = True
        self.lose()

    # of the test

    def accept(self):
        self.protocol = self._factory.buildProtocol(None)
        self.is_open = True
        self.protocol.makeConnection(self)

    def refuse(self):
        self._factory.clientConnectionFailed(self, Failure(ConnectionRefusedError()))

    def lose(self):
        if self.is_open:
            self.is_open = False
            self.protocol.connectionLost(Failure(ConnectionDone()))

    def take(self):
        """The one request that has arrived."""
        frame, self._received = bytes(self._received), bytearray()
        assert frame, "no request was sent"
        return read_request(frame)

    @property
    def is_silent(self):
        return not self._received

    def deliver(self, data, piece_bytes=None):
        data = bytes(data)
        step = piece_bytes or len(data)
        for start in range(0, len(data), step):
            if self.is_open:
                self.protocol.dataReceived(data[start : start + step])

    def answer(self, response, request=None, **options):
        """Answer a request, by default the one that has arrived. Return it."""
        request = request or self.take()
        self.deliver(response_frame(response, request.version, request.correlation_id), **options)
        return request

    def answer_versions(self, *rows):
        """Answer ApiVersions with rows of key, first and last version."""
        request = self.answer(
            ApiVersionsResponse(
                api_keys=[
                    ApiVersionsResponseApiVersion(api_key=key, min_version=first, max_version=last)
                    for key, first, last in rows
                ]
            )
        )
        assert request.message.api_key == ApiVersionsResponse.api_key


class FakeNetwork:
    """The attempts to connect, in order, and the clock of all channels."""

    def __init__(self):
        self.clock = Clock()
        self.slices = Slices(self.clock, self.clock.seconds, slice_s=0)
        self.links = []

    def connect(self, host, port, factory):
        link = Link(host, port, factory)
        self.links.append(link)
        return link

    def accept(self):
        """Accept the last attempt, which is the only pending one."""
        link = self.links[-1]
        link.accept()
        return link
