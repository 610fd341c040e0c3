"""The parts of a cluster member that its configuration determines."""

import struct
from typing import Any

from twisted.internet.defer import Deferred

from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.replication.controller.registration import prepare_store
from odradek.replication.controller.repetition import FIRST_REPETITION_MS
from odradek.replication.metadata.image import BrokerMetadata, Endpoint, PartitionMetadata
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import SessionEvent, StoreUnavailableError, run_now
from odradek.replication.metadata.znodes import (
    encode_state,
    encode_topic,
    partition_path,
    partitions_path,
    state_path,
    topic_path,
)
from odradek.replication.replicas.leader_state import DOUBTFUL_AFTER_SESSION_MS
from odradek.replication.replicas.partition import Partition
from odradek.server import broker_ids
from odradek.server.broker import Broker
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.membership import cluster
from odradek.server.tests.broker_network import FakeNetwork

MIB = 1 << 20
TOPIC_PATHS = topic_path("t"), partitions_path("t"), partition_path("t", 0), state_path("t", 0)


def make_broker(network, **properties):
    """A broker of a cluster in memory, not started."""
    reactor: Any = network.clock
    reactor.connectTCP = network.connect
    named = {name.replace("_", "."): str(value) for name, value in properties.items()}
    config = BrokerConfig({"zookeeper.connect": "none:2181", **named})
    return Broker(config, Environment(reactor))


def begin_response(size_bytes, **properties):
    """The connection to another broker, after the first bytes of a response."""
    network = FakeNetwork()
    membership: Any = make_broker(network, broker_id=1, **properties)._membership
    other = BrokerMetadata(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "there", 9092),))
    channel = membership._channels.open(other, client_id="1", timeout_ms=1000)
    Deferred.fromCoroutine(channel.send(HeartbeatRequest(), HeartbeatResponse, 4)).addErrback(lambda failure: None)
    link = network.accept()
    link.deliver(struct.pack(">ii", size_bytes, 1))
    return link


def test_a_fetch_response_may_have_the_configured_size():
    """Otherwise followers would close each connection, and never join the ISR."""
    assert begin_response(600 * MIB).is_aborted
    assert not begin_response(600 * MIB, replica_fetch_response_max_bytes=550 * MIB).is_aborted


def test_a_fetch_response_may_have_the_largest_batch_that_a_producer_may_send():
    assert not begin_response(600 * MIB, socket_request_max_bytes=550 * MIB).is_aborted


def test_a_generated_id_leaves_no_parts_without_the_id(monkeypatch):
    """The image would inform both memberships of each change."""

    async def settle(environment, config):
        return config.with_generated_id(1001)

    monkeypatch.setattr(broker_ids, "settle_broker_id", settle)
    broker = make_broker(FakeNetwork())
    count = len(broker._image.listeners)
    run_now(broker._settle_id())
    assert broker.config.node_id == 1001
    assert len(broker._image.listeners) == count > 0


def open_membership(network, monkeypatch):
    """Return the membership of a broker that has opened a store in memory, and a function that ends its session."""
    membership: Any = make_broker(network, broker_id=1)._membership
    server = MemoryMetadataServer()
    store: Any = server.connect()

    async def open_store(environment, config):
        return store

    async def lay_out(environment, directories, store):
        await prepare_store(store, "a-cluster")
        return "a-cluster"

    monkeypatch.setattr(cluster, "open_zookeeper_store", open_store)
    monkeypatch.setattr(cluster, "lay_out_store", lay_out)
    opened = Deferred.fromCoroutine(membership.open())
    assert opened.called
    return membership, lambda: server.expire(store)


async def do_nothing(*arguments):
    """Stand for a part of a membership that a test does not need."""


def test_leaderships_are_doubtful_until_some_time_after_a_request_to_the_next_registration(monkeypatch):
    """The store notifies its listeners of the end of a session, but not of the begin of the next one."""
    network = FakeNetwork()
    membership, expire = open_membership(network, monkeypatch)
    replication, now_ms = membership.replication, 0
    replication.monotonic_ms = lambda: now_ms
    assert not replication.is_doubtful()
    expire()
    network.clock.advance(0)
    assert replication.is_doubtful()
    membership._controller.rejoin = membership._start_configs = membership._load_features = do_nothing
    run_now(membership.rejoin())
    now_ms += DOUBTFUL_AFTER_SESSION_MS
    assert replication.is_doubtful()
    replication.on_controller_request(membership.broker_epoch + 1)
    assert replication.is_doubtful()
    now_ms += DOUBTFUL_AFTER_SESSION_MS
    assert not replication.is_doubtful()


def test_a_leadership_is_confirmed_by_the_state_in_the_metadata_store(monkeypatch):
    membership, expire = open_membership(FakeNetwork(), monkeypatch)
    store = membership._store
    state = PartitionMetadata(1, 3, (1, 2), (1, 2))
    put_topic(store, b"t" * 16, state)
    partition = Partition("t", b"t" * 16, 0, 1)
    partition.apply(state._replace(partition_epoch=0), None)

    def is_confirmed():
        return run_now(membership.confirm_leadership(partition))

    assert is_confirmed()
    changed = state._replace(leader=2, leader_epoch=4)
    run_now(store.set(state_path("t", 0), encode_state(changed)))
    assert not is_confirmed()
    partition.apply(changed._replace(partition_epoch=1), None)
    assert not is_confirmed()
    partition.apply(state._replace(leader_epoch=5, partition_epoch=1), None)
    assert is_confirmed()
    # Another topic of the name, whose state has the same version.
    for path in reversed(TOPIC_PATHS):
        run_now(store.delete(path))
    assert not is_confirmed()
    put_topic(store, b"u" * 16, state)
    run_now(store.set(state_path("t", 0), encode_state(state)))
    assert not is_confirmed()
    run_now(store.set(topic_path("t"), b"damaged"))
    assert not is_confirmed()
    expire()
    assert not is_confirmed()


def put_topic(store, topic_id, state):
    """Create the nodes of a topic with one partition."""
    data = encode_topic(topic_id, (state,)), None, None, encode_state(state)
    for path, content in zip(TOPIC_PATHS, data, strict=True):
        run_now(store.create(path, content))


def test_failed_reads_of_configurations_and_features_are_repeated(monkeypatch):
    network = FakeNetwork()
    membership, _ = open_membership(network, monkeypatch)
    reads: list[str] = []

    async def fail():
        raise StoreUnavailableError("access is denied")

    async def follow():
        reads.append("configurations")

    async def load_features():
        reads.append("features")

    membership._configs.follow = follow
    membership._load_features = load_features
    membership._post("configurations changed", fail)
    network.clock.pump([0, 0, FIRST_REPETITION_MS / 1000, 0, 0])
    assert reads == ["configurations", "features"]


def test_a_session_that_expires_during_the_start_is_renewed_after_it():
    """The controller relies on it: `Controller.start` is no error then."""
    broker: Any = make_broker(FakeNetwork(), broker_id=1)
    rejoined: list[bool] = []

    async def rejoin():
        rejoined.append(broker._is_running)

    broker._membership.rejoin = rejoin
    for event in (SessionEvent.DISCONNECTED, SessionEvent.EXPIRED, SessionEvent.CONNECTED):
        broker._on_store_session(event)
    assert rejoined == []
    broker._is_running = True
    broker._handle_missed_events()
    assert rejoined == [True]
