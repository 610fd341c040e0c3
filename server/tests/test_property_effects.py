"""Properties with an effect outside of requests: buffer sizes, and the codec of committed offsets."""

import socket
from types import SimpleNamespace

import pytest

from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from odradek.protocol.records import Codec, iter_batches, read_header
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.listeners import BrokerListeners
from odradek.server.tests.wire import Wire, until
from odradek.testing import OdradekBroker


def unused():
    raise AssertionError("no client is served")


def buffer_sizes(properties):
    """SO_SNDBUF and SO_RCVBUF of a connection that a listener with these properties accepts."""
    environment = Environment(SimpleNamespace())
    listeners = BrokerListeners(BrokerConfig(properties), environment, unused, unused, unused)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listeners._set_buffer_sizes(SimpleNamespace(socket=listening))
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                return [accepted.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]


def test_connections_have_the_configured_buffer_sizes():
    # Linux doubles the value for its own needs.
    given = buffer_sizes({"socket.send.buffer.bytes": "50000", "socket.receive.buffer.bytes": "30000"})
    assert given in ([100_000, 60_000], [50_000, 30_000])


@pytest.mark.parametrize("text", ["-1", None])
def test_without_buffer_sizes_the_system_chooses(text):
    names = ("socket.send.buffer.bytes", "socket.receive.buffer.bytes")
    with socket.create_server(("127.0.0.1", 0)) as plain, socket.create_connection(plain.getsockname()):
        accepted, _ = plain.accept()
        with accepted:
            untouched = [accepted.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    assert buffer_sizes({} if text is None else dict.fromkeys(names, text)) == untouched


def test_committed_offsets_are_stored_with_the_configured_codec():
    properties = {"offsets.topic.compression.codec": str(int(Codec.ZSTD)), "offsets.topic.num.partitions": "1"}
    partitions = [OffsetCommitRequestPartition(partition_index=n, committed_offset=n + 10) for n in range(40)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    commit = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    asked = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=list(range(40)))]
    )

    def committed(wire):
        topics = wire.ask(asked, 5).topics  # none while the coordinator loads
        return [one.committed_offset for topic in topics for one in topic.partitions if one.error_code == 0]

    with OdradekBroker(properties) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", 40)
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            until(lambda: wire.ask(find, 4).coordinators[0].error_code == 0)
            until(lambda: wire.ask(commit, 8).topics[0].partitions[0].error_code == 0)
            assert committed(wire) == list(range(10, 50))
        broker.restart()
        with Wire(broker.port) as wire:
            until(lambda: committed(wire) == list(range(10, 50)))
        data = (broker.data_dir / "__consumer_offsets-0" / f"{0:020d}.log").read_bytes()
        assert {read_header(batch).codec for batch in iter_batches(data)} == {Codec.ZSTD}
