"""Start, stop, configuration changes and metadata sessions of a broker in memory."""

import errno
import logging
import signal
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.background.tasks import run_inline
from odradek.log.storage.checkpoints import read_clean_shutdown
from odradek.log.storage.filesystem import LogDirFailure
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.replication.controller.admin.tests.test_topic_admin import create, delete, new
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.server.broker import Broker, BrokerStartError, handle_signals
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.network.writers.write_coalescer import WriteCoalescer
from odradek.server.tests.faults.test_failing_store import FailingServer


def test_a_broker_without_a_log_directory_stops_once_as_failed():
    stops = []
    reactor = SimpleNamespace(stop=lambda: stops.append(1), callLater=lambda delay_s, action: None)
    broker = Broker(BrokerConfig({}), Environment(reactor))
    logs: Any = SimpleNamespace(online_directories=["/other"])
    broker._logs = logs
    broker._is_running = True
    broker._on_directory_failure("/data", [])
    assert (stops, broker.has_failed) == ([], False)
    logs.online_directories.clear()
    for _ in range(2):
        broker._on_directory_failure("/other", [])
    assert (stops, broker.has_failed) == ([1], True)


def test_a_broker_stops_although_its_stores_disk_failed(caplog):
    async def close():
        raise StoreUnavailableError("disk I/O error")

    reactor = SimpleNamespace(stop=lambda: None, callLater=lambda delay_s, action: None)
    broker = Broker(BrokerConfig({}), Environment(reactor))
    store: Any = SimpleNamespace(close=close)
    broker._store = store
    with caplog.at_level(logging.WARNING):
        run_now(broker.stop())
    assert "disk I/O error" in caplog.text


def test_a_broker_stops_although_its_controlled_shutdown_fails(caplog):
    environment = MemoryEnvironment(FailingServer())
    broker = started_on(environment)

    async def leave():
        raise RuntimeError("a mistake")

    broker._membership.leave = leave
    run_now(broker.stop())
    assert "a mistake" in caplog.text
    assert read_clean_shutdown(environment.fs, "/data") is not None


def wait_in_leave(broker):
    """Let the controlled shutdown last until the returned Deferred fires."""
    leaving: Deferred[None] = Deferred()

    async def leave():
        await leaving

    broker._membership.leave = leave
    return leaving


def test_a_log_directory_that_fails_during_a_controlled_shutdown_stops_the_broker_once():
    environment = MemoryEnvironment(FailingServer())
    stops: list[int] = []
    environment.reactor.stop = lambda: stops.append(1)
    broker = started_on(environment)
    leaving = wait_in_leave(broker)
    stopping = Deferred.fromCoroutine(broker.stop())
    broker.services.logs.log_dirs.fail("/data", LogDirFailure("/data", "broken"))
    assert (stops, broker.has_failed) == ([], True)
    leaving.callback(None)
    assert stopping.result is None


def test_the_rest_of_a_controlled_shutdown_can_be_omitted():
    environment = MemoryEnvironment(FailingServer())
    broker = started_on(environment)
    broker.stop_leaving()
    wait_in_leave(broker)
    stopping = Deferred.fromCoroutine(broker.stop())
    assert not stopping.called
    broker.stop_leaving()
    assert stopping.result is None
    assert read_clean_shutdown(environment.fs, "/data") is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_further_signals_are_handled(number):
    called = []
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    handle_signals(lambda: called.append(number))
    try:
        signal.raise_signal(number)
        signal.raise_signal(number)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert called == [number, number]


class Port:
    def getHost(self):  # noqa: N802
        return SimpleNamespace(port=9092)

    def startReading(self):  # noqa: N802
        pass

    def stopReading(self):  # noqa: N802
        pass

    def stopListening(self):  # noqa: N802
        pass


class Reactor(Clock):
    """A clock whose ports accept no connections."""

    write_coalescer = WriteCoalescer()

    def listenTCP(self, *arguments, **options):  # noqa: N802
        return Port()


class MemoryEnvironment(Environment):
    """A broker's environment in memory."""

    fs: MemoryFileSystem

    def __init__(self, server):
        reactor: Any = Reactor()
        super().__init__(reactor, Random(1))
        self.fs = MemoryFileSystem()
        self.server = server

    def now_ms(self):
        return int(self.reactor.seconds() * 1000)

    def monotonic(self):
        return self.reactor.seconds()

    def run_in_thread(self, work, done):
        run_inline(work, done)

    run_request = run_in_thread

    def open_metadata_store(self, directory):
        return self.server.connect()

    def is_writable(self, directory):
        return True


CONFIG = BrokerConfig({"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"})


def started(server):
    return started_on(MemoryEnvironment(server))


def started_on(environment, config=CONFIG):
    broker = Broker(config, environment)
    failures: list[Any] = []
    Deferred.fromCoroutine(broker.start()).addErrback(failures.append)
    assert failures == []
    return broker


def test_a_deletion_that_failed_half_way_is_finished():
    server = FailingServer()
    broker = started(server)
    create(broker.services, new("t"))
    server.refuse_removals()
    [(_, _, code)] = delete(broker.services, topics=[("t", bytes(16))])
    assert code == 0
    server.heal()
    store = broker.services.controller.store
    assert run_now(store.get_children("/brokers/topics")) == ["t"]
    broker._reactor.advance(1)
    assert run_now(store.get_children("/brokers/topics")) == []
    run_now(broker.stop())


def test_a_broker_stops_while_a_deletion_is_unfinished():
    server = FailingServer()
    broker = started(server)
    create(broker.services, new("t"))
    server.refuse_removals()
    delete(broker.services, topics=[("t", bytes(16))])
    server.heal()
    run_now(broker.stop())
    broker._reactor.advance(100)
    assert broker._reactor.getDelayedCalls() == []
    again = started(server)
    assert again.services.metadata.topics == {}
    assert run_now(again.services.controller.store.get_children("/brokers/topics")) == []
    run_now(again.stop())


def test_a_start_that_loses_every_log_directory_fails():
    """Otherwise the broker would run and serve nothing."""
    environment = MemoryEnvironment(FailingServer())
    broker = started_on(environment)
    create(broker.services, new("t"))
    run_now(broker.stop())
    again, fs = MemoryEnvironment(environment.server), environment.fs
    again.fs = fs
    fs.remove_tree("/data/t-0")
    fs.fail("create", error=errno.EIO, path_contains="/data/t-0/")
    broker = Broker(CONFIG, again)
    assert "no log directory can be used" in refused(broker)
    assert broker.listeners.ports == []


def refused(broker):
    """The error of a broker that must not start."""
    failures: list[Any] = []
    Deferred.fromCoroutine(broker.start()).addErrback(failures.append)
    [failure] = failures
    assert isinstance(failure.value, BrokerStartError)
    return str(failure.value)


META_FILE = "/data/meta.properties"


def write_meta(environment, content, path=META_FILE):
    environment.fs.make_directory(path.rpartition("/")[0])
    environment.fs.open(path, create=True).write_pieces(0, [content], len(content))


def test_a_malformed_meta_properties_is_reported_with_its_remedy():
    environment = MemoryEnvironment(FailingServer())
    write_meta(environment, b"version=7\n")
    assert refused(Broker(CONFIG, environment)) == (
        f"no log directory can be used: KAFKA_STORAGE_ERROR: {META_FILE}: unknown version 7; correct the "
        "file, or remove /data from log.dirs"
    )


def test_a_log_directory_with_a_malformed_meta_properties_is_offline():
    environment = MemoryEnvironment(FailingServer())
    write_meta(environment, b"\xff", "/other/meta.properties")
    config = BrokerConfig({"log.dirs": "/data,/other", "listeners": "PLAINTEXT://127.0.0.1:9092"})
    broker = started_on(environment, config)
    assert broker.services.logs.online_directories == ["/data"]
    run_now(broker.stop())


def test_log_directories_of_another_broker_are_refused_with_the_remedy():
    environment = MemoryEnvironment(FailingServer())
    write_meta(environment, b"version=1\nnode.id=5\n")
    assert refused(Broker(CONFIG, environment)) == (
        f"{META_FILE} has node id 5, but this broker's is {CONFIG.node_id}; correct log.dirs or the broker's id"
    )


def test_a_changed_default_is_applied_to_one_log_at_a_time():
    """The properties of thousands of topics may depend on one default."""
    broker = started(FailingServer())
    services = broker.services
    create(services, new("t", 3), new("u", configs={"retention.ms": "5"}))
    logs = services.logs.all_logs()
    held = []
    services.replicas.run_steps = held.append
    run_now(services.controller.put_broker_config(None, {"log.retention.ms": "7", "log.flush.interval.ms": "9"}))
    assert services.logs.default_config.retention_ms == 7
    counts = [sum(log.config.flush_ms == 9 for log in logs)]
    [steps] = held
    for _ in steps:
        counts.append(sum(log.config.flush_ms == 9 for log in logs))
    assert sorted(set(counts)) == [0, 1, 2, 3, 4]
    assert sorted((log.topic, log.config.retention_ms) for log in logs) == [*[("t", 7)] * 3, ("u", 5)]
    assert services.logs.create_log("v", 0, bytes(range(16)), 0).config.retention_ms == 7
    run_now(broker.stop())


def test_a_running_broker_becomes_controller_when_the_controllers_session_expires():
    server = FailingServer()
    first = started(server)
    create(first.services, new("t"))
    config = BrokerConfig({"node.id": "2", "log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9093"})
    second = started_on(MemoryEnvironment(server), config)
    assert not second.services.controller.is_active
    first._is_running = False  # A crash: the broker no longer reacts to events.
    server.expire(first.services.controller.store)
    controller = second.services.controller
    assert (controller.is_active, controller.epoch) == (True, 2)
    assert second.services.metadata.controller_id == 2
    assert sorted(second.services.metadata.brokers) == [2]
    assert [p.leader for p in second.services.metadata.topics["t"].partitions] == [-1]
    create(second.services, new("u"))
    assert second.services.replicas.get("u", 0).is_leader
    run_now(second.stop())


def test_a_broker_whose_session_expires_registers_again_and_keeps_serving():
    server = FailingServer()
    broker = started(server)
    create(broker.services, new("t"))
    before = broker.services.metadata.brokers[broker.config.node_id].epoch
    server.expire(broker.services.controller.store)
    assert broker.services.controller.is_active
    assert broker.services.controller.epoch == 2
    assert broker.services.metadata.brokers[broker.config.node_id].epoch > before
    assert broker.services.metadata.partition("t", 0).leader == broker.config.node_id
    create(broker.services, new("u"))
    assert broker.services.replicas.get("u", 0).is_leader
    run_now(broker.stop())
    assert run_now(server.connect().get_children("/brokers/ids")) == []


def interrupt_join(broker, happen):
    """Make the broker call `happen` after it has registered, before its start ends."""
    join = broker._membership.join

    async def join_and_more(services, registration):
        await join(services, registration)
        happen()

    broker._membership.join = join_and_more


def test_a_session_that_expires_at_the_end_of_a_start_is_renewed():
    server = FailingServer()
    broker = Broker(CONFIG, MemoryEnvironment(server))
    interrupt_join(broker, lambda: server.expire(cast(Any, broker.services.controller.store)))
    assert Deferred.fromCoroutine(broker.start()).called
    assert broker.services.controller.is_active
    assert run_now(server.connect().get_children("/brokers/ids")) == [str(broker.config.node_id)]
    run_now(broker.stop())


def test_a_log_directory_that_fails_at_the_end_of_a_start_is_reported():
    config = BrokerConfig({**CONFIG.explicit, "log.dirs": "/data,/more"})
    broker = Broker(config, MemoryEnvironment(FailingServer()))

    def fail():
        create(broker.services, new("t", 2))
        broker.services.logs.log_dirs.fail("/more", LogDirFailure("/more", "I/O error"))

    interrupt_join(broker, fail)
    assert Deferred.fromCoroutine(broker.start()).called
    leaders = [partition.leader for partition in broker.services.metadata.topics["t"].partitions]
    assert sorted(leaders) == [-1, broker.config.node_id]
    run_now(broker.stop())


def test_many_replicas_that_go_offline_late_are_reported_together(monkeypatch):
    """Each report made the controller send the roles of all replicas of this broker."""
    broker = started(FailingServer())
    reports = []

    async def take_offline(partitions):
        reports.append(partitions)

    monkeypatch.setattr(broker._membership, "take_offline", take_offline)
    for _ in range(2):
        for _ in range(100):
            broker.services.replicas.on_offline()
        broker._reactor.advance(1)
    assert reports == [[], []]
    run_now(broker.stop())


def test_a_broker_that_cannot_register_again_keeps_trying():
    server = FailingServer()
    broker = started(server)
    server.refuse_paths("/brokers/ids/")
    server.expire(broker.services.controller.store)
    assert not broker.services.controller.is_active
    broker._reactor.advance(3)
    assert not broker.services.controller.is_active
    server.heal()
    broker._reactor.advance(1)
    assert broker.services.controller.is_active
    run_now(broker.stop())


def test_transaction_coordinators_are_informed_of_changed_topics(monkeypatch):
    broker = started(FailingServer())
    deltas = []
    monkeypatch.setattr(broker.services.transactions, "metadata_changed", deltas.append)
    create(broker.services, new("t"))
    assert any("t" in delta.topics for delta in deltas)


def test_the_salt_of_an_unknown_user_is_the_same_on_all_listeners_and_after_a_restart():
    """As that of a user with a credential; otherwise an attempt on two listeners would show which users exist."""
    config = BrokerConfig({
        **CONFIG.explicit,
        "listeners": "PLAINTEXT://127.0.0.1:9092,ONE://127.0.0.1:9093,TWO://127.0.0.1:9094",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ONE:SASL_PLAINTEXT,TWO:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    })  # fmt: skip
    server, salts = FailingServer(), set()
    for _ in range(2):
        broker = started_on(MemoryEnvironment(server), config)
        for listener in config.endpoints[1:]:
            authenticate: Any = broker.listeners._make_authentication(listener)
            exchange = authenticate.__self__.mechanisms["SCRAM-SHA-256"].make_exchange()
            salts.add(exchange.evaluate(b"n,,n=nobody,r=x").split(b",")[1])
        run_now(broker.stop())
    assert len(salts) == 1
