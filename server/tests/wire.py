"""A client connection for tests, which sends the project's own messages unchanged."""

import socket
import struct
import time

from odradek.protocol import codec
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import response_class
from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import build_batch

TIMEOUT_S = 60
"""Limit that only a hang reaches, also on a machine whose cores run other tests too."""

LATEST, EARLIEST = -1, -2


def until(condition, timeout_s=TIMEOUT_S, what="the condition to hold"):
    """Call `condition` until its result is true, and return that; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
    return answer


def request_frame(request, version, correlation_id=1, client_id=b"test"):
    """A request's bytes on the wire, length first."""
    head = struct.pack(">hhih", request.api_key, version, correlation_id, len(client_id)) + client_id
    content = head + (b"\0" if request.is_flexible(version) else b"") + codec.encode(request, version)
    return struct.pack(">i", len(content)) + content


class Wire:
    """One connection. Requests are of `odradek.protocol.messages`, in the latest version unless one is given."""

    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, request, version):
        self._correlation_id += 1
        self.socket.sendall(request_frame(request, version, self._correlation_id))

    def receive(self, request, version):
        (size,) = struct.unpack(">i", self._exactly(4))
        answer = self._exactly(size)
        assert struct.unpack_from(">i", answer) == (self._correlation_id,)
        start = 4 + response_is_flexible(request.api_key, request.is_flexible(version))
        return codec.decode(response_class(request.api_key), version, answer, start)

    def ask(self, request, version=None):
        version = request.last_version if version is None else version
        self.send(request, version)
        return self.receive(request, version)

    def _exactly(self, count):
        data = bytearray()
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return bytes(data)

    # -- common requests ---------------------------------------------------------------------------------------------

    def metadata(self, *topics):
        """Metadata of these topics, or of all topics without names; creates none."""
        asked = [MetadataRequestTopic(name=name) for name in topics] or None
        return self.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 9)

    def create_topic(self, name, partitions=1, **configs):
        """Create a topic; properties are given by name, with _ for the dots."""
        topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        topic.configs = [
            CreateTopicsRequestCreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ]
        (answer,) = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
        assert answer.error_code == 0, answer.error_message
        return answer

    def produce(self, topic, *values, key=b"k", partition=0, acks=-1, timestamp_ms=None, batch=None):
        """Produce one batch of these values. Return the partition's response."""
        if batch is None:
            now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
            batch = build_batch((now_ms, key, value, ()) for value in values)
        data = ProduceRequestPartitionProduceData(index=partition, records=batch)
        topic_data = ProduceRequestTopicProduceData(name=topic, partition_data=[data])
        request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic_data])
        if acks == 0:
            return self.send(request, 9)
        return self.ask(request, 9).responses[0].partition_responses[0]

    def offset(self, topic, timestamp, partition=0):
        """The offset at a timestamp, such as EARLIEST or LATEST."""
        asked = ListOffsetsRequestListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [ListOffsetsRequestListOffsetsTopic(name=topic, partitions=[asked])]
        (answer,) = self.ask(ListOffsetsRequest(topics=topics), 7).topics[0].partitions
        assert answer.error_code == 0
        return answer.offset

    @staticmethod
    def fetch_request(topic, offset, partition=0, max_wait_ms=0, min_bytes=0):
        asked = FetchRequestFetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 24, current_leader_epoch=-1
        )
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 24,
            session_epoch=-1,
            topics=[FetchRequestFetchTopic(topic=topic, partitions=[asked])],
        )

    def fetch(self, topic, offset=0, partition=0):
        """Fetch one partition without a wait. Return the partition's response."""
        return self.ask(self.fetch_request(topic, offset, partition), 11).responses[0].partitions[0]
