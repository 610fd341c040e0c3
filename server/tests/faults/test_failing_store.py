"""Requests on a metadata store that fails sometimes: each topic has its own outcome, and image and store agree.

Requests are frames on a connection of a broker whose metadata store is in memory and refuses changes on demand.
"""

import itertools
from random import Random
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol import codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import response_class
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.tests.support import Cluster, log_keys, memory_logs
from odradek.server.dispatch import Dispatch
from odradek.server.image_cache import ImageCache
from odradek.server.network.connection import Connection
from odradek.server.network.tests.test_connection import Transport
from odradek.server.request import RequestContext
from odradek.server.tests.wire import request_frame
from odradek.server.work.delayed_tasks import DelayedTasks
from odradek.server.work.slices import Slices

E = ErrorCode
MARK = "/admin/delete_topics/"


class FailingStore(MemoryMetadataStore):
    """A store that refuses the changes for which `refuses(operations)` of its FailingServer is true."""

    failing: "FailingServer"

    def _carry_out(self, operations):
        if self.failing.refuses(operations):
            raise StoreUnavailableError("database or disk is full")
        return super()._carry_out(operations)

    async def transaction(self, operations):
        results = await super().transaction(operations)
        if self.failing.answers is not None:
            answer = Deferred()
            self.failing.answers.append(answer)
            await answer
        return results


class FailingServer(MemoryMetadataServer):
    """The server of FailingStores. Unless `answers` is None, a change waits after its commit for a Deferred in it."""

    def __init__(self):
        super().__init__()
        self.refuses = lambda operations: False
        self.answers = None

    def connect(self):
        self._last_session_id += 1
        store = FailingStore(self, self._last_session_id)
        store.failing = self
        return store

    def heal(self):
        self.refuses = lambda operations: False

    def refuse_paths(self, text):
        self.refuses = lambda operations: any(text in operation.path for operation in operations)

    def refuse_nth(self, number):
        count = itertools.count(1)
        self.refuses = lambda operations: next(count) == number

    def refuse_removals(self):
        """Refuse the second step of a deletion, and other changes until `heal`."""
        self.refuses = lambda operations: not all(MARK in one.path for one in operations[1:])


class DeferredExecutor:
    """An executor of the controller's events, which wait for Deferreds."""

    def start(self, work):
        Deferred.fromCoroutine(work)

    def waiter(self):
        return Deferred()

    async def pause(self):
        pass


class Broker:
    """One run of a broker on a store and a disk that outlive it."""

    def __init__(self, server=None, fs=None, directories=("/data",)):
        self.server = server or FailingServer()
        self.fs = fs or MemoryFileSystem()
        self.clock = Clock()
        probe = Cluster(server=MemoryMetadataServer())
        logs = memory_logs(probe.configs, directories, self.fs)
        self.tasks = DelayedTasks(self.clock)
        self.cluster = cluster = Cluster(server=self.server, logs=logs)
        cluster.controller.deletion.run_later = self.tasks.run_later
        cluster.controller.run_on(DeferredExecutor())
        slices = Slices(self.clock, self.clock.seconds)
        services = SimpleNamespace(
            topics=cluster.topics,
            config_admin=cluster.config_admin,
            metadata=cluster.image,
            config=SimpleNamespace(auto_create_topics_enable=False),
            slices=slices,
            first_metadata=None,
            metadata_bodies=ImageCache(cluster.image, slices),
        )
        self._dispatch = Dispatch(services)
        self.connect()

    def connect(self):
        self.transport = Transport()
        self.connection = Connection(self.transport, self._dispatch, RequestContext("host", "PLAINTEXT"))

    def ask(self, request):
        version = request.last_version
        self.connection.frames_received([request_frame(request, version)])
        self.transport.iterate()
        answer = self.transport.writer.sent.pop()
        start = 8 + response_is_flexible(request.api_key, request.is_flexible(version))
        return codec.decode(response_class(request.api_key), version, answer, start)

    def create(self, *names, partitions=2):
        topics = [
            CreateTopicsRequestCreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ]
        answers = self.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000)).topics
        self.messages = {one.name: one.error_message for one in answers}
        return {one.name: one.error_code for one in answers}

    def delete(self, *names):
        topics = [DeleteTopicsRequestDeleteTopicState(name=name) for name in names]
        answers = self.ask(DeleteTopicsRequest(topics=topics, timeout_ms=1000)).responses
        return {one.name: one.error_code for one in answers}

    def grow(self, count, *names):
        topics = [
            CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None) for name in names
        ]
        answers = self.ask(CreatePartitionsRequest(topics=topics, timeout_ms=1000)).results
        return {one.name: one.error_code for one in answers}

    def alter(self, value, *names):
        answers = self.ask(alteration(value, *names)).responses
        return {one.resource_name: one.error_code for one in answers}

    def listed(self):
        return sorted(topic.name for topic in self.ask(MetadataRequest(topics=None)).topics)

    def wait(self, seconds):
        """Let time pass, a second at a time."""
        for _ in range(seconds):
            self.clock.advance(1)

    def restart(self):
        self.tasks.stop()
        store = self.cluster.store
        refuses, self.server.refuses = self.server.refuses, lambda operations: False
        self.server.expire(store)
        self.server.refuses = refuses
        self.fs.crash()
        return Broker(self.server, self.fs)

    def assert_agrees_with_store(self):
        """Assert that a start would load the served image, and that store and logs have nothing else."""
        loaded = ClusterMetadata()
        run_now(load_image(self.cluster.store, loaded))
        assert loaded.contents() == self.cluster.image.contents()
        topics = sorted(self.cluster.image.topics)
        assert run_now(self.cluster.store.get_children("/brokers/topics")) == topics
        assert run_now(self.cluster.store.get_children("/config/topics")) == topics
        assert run_now(self.cluster.store.get_children("/admin/delete_topics")) == []
        expected = [(name, index) for name in topics for index in range(len(loaded.topics[name].partitions))]
        assert log_keys(self.cluster) == expected


def alteration(value, *names):
    config = IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value=str(value))
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
            for name in names
        ]
    )


@pytest.fixture
def broker():
    return Broker()


def test_a_topic_is_deleted_although_the_second_step_fails(broker):
    broker.create("t", "other")
    broker.server.refuse_removals()
    assert broker.delete("t") == {"t": 0}
    assert broker.listed() == ["other"]
    assert log_keys(broker.cluster) == [("other", 0), ("other", 1)]
    assert broker.delete("t") == {"t": E.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_second_step_is_retried_in_the_background(broker):
    broker.create("t")
    broker.server.refuse_removals()
    broker.delete("t")
    broker.wait(3)
    broker.server.heal()
    broker.wait(4)
    broker.assert_agrees_with_store()
    assert broker.clock.getDelayedCalls() == []
    assert broker.create("t") == {"t": 0}
    broker.assert_agrees_with_store()


def test_the_pause_between_attempts_grows_to_a_minute(broker):
    broker.create("t")
    tries = []

    def refuses(operations):
        is_removal = not all(MARK in one.path for one in operations[1:])
        if is_removal:
            tries.append(broker.clock.seconds())
        return is_removal

    broker.server.refuses = refuses
    broker.delete("t")
    broker.wait(400)
    assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [1, 2, 4, 8, 16, 32, *[60] * 5]


def test_a_new_topic_of_the_same_name_finishes_the_deletion_first(broker):
    broker.create("t")
    old_id = broker.cluster.image.topics["t"].topic_id
    broker.server.refuse_removals()
    broker.delete("t")
    assert broker.create("t", "u") == {"t": E.KAFKA_STORAGE_ERROR, "u": E.KAFKA_STORAGE_ERROR}
    assert "was deleted" in broker.messages["t"]
    assert "database or disk is full" in broker.messages["t"]
    broker.server.heal()
    assert broker.create("t", "u") == {"t": 0, "u": 0}
    assert broker.cluster.image.topics["t"].topic_id != old_id
    broker.assert_agrees_with_store()
    broker.wait(100)
    assert broker.listed() == ["t", "u"]
    broker.assert_agrees_with_store()


def test_a_restart_finishes_the_deletion_or_keeps_trying(broker):
    broker.create("t", "other")
    broker.server.refuse_removals()
    broker.delete("t")
    broker.server.refuse_paths(MARK)
    again = broker.restart()
    assert again.listed() == ["other"]
    assert again.create("t") == {"t": E.KAFKA_STORAGE_ERROR}
    again.server.heal()
    assert again.create("t") == {"t": 0}
    again.assert_agrees_with_store()
    broker.server.refuse_removals()
    again.delete("t")
    again.server.heal()
    third = again.restart()
    assert third.listed() == ["other"]
    third.assert_agrees_with_store()


def test_a_topic_that_cannot_be_removed_affects_no_other(broker):
    names = ["a", "b", "c", "d"]
    broker.create(*names, "kept")
    # The unexpected node makes the removal of its topic fail.
    run_now(broker.cluster.store.create("/brokers/topics/b/unexpected"))
    assert broker.delete(*names) == dict.fromkeys(names, 0)
    assert broker.listed() == ["kept"]
    assert run_now(broker.cluster.store.get_children("/brokers/topics")) == ["b", "kept"]
    assert broker.create("a", "b", "c") == {"a": 0, "b": E.KAFKA_STORAGE_ERROR, "c": 0}
    run_now(broker.cluster.store.delete("/brokers/topics/b/unexpected"))
    broker.wait(60)
    broker.assert_agrees_with_store()


def test_a_topic_that_cannot_be_marked_is_not_deleted_and_others_are(broker, monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.topics.deletion.MAX_OPERATIONS", 2)
    names = ["a", "b", "c", "d", "e"]
    broker.create(*names)
    broker.server.refuse_paths(MARK + "c")
    assert broker.delete(*names) == {"a": 0, "b": 0, "c": E.KAFKA_STORAGE_ERROR, "d": E.KAFKA_STORAGE_ERROR, "e": 0}
    assert broker.listed() == ["c", "d"]
    broker.assert_agrees_with_store()
    broker.server.heal()
    assert broker.delete("c", "d") == {"c": 0, "d": 0}
    broker.assert_agrees_with_store()


def test_a_topic_that_is_marked_already_is_deleted(broker):
    broker.create("a", "b")
    run_now(broker.cluster.store.create(MARK + "a"))
    assert broker.delete("a", "b") == {"a": 0, "b": 0}
    broker.assert_agrees_with_store()


def test_a_topic_with_more_partitions_than_a_transaction_allows_is_deleted(broker, monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.context.MAX_OPERATIONS", 5)
    broker.create("t", partitions=9)
    removals = itertools.count()
    broker.server.refuses = lambda operations: "/brokers/topics/t" in operations[1].path and next(removals) == 2
    assert broker.delete("t") == {"t": 0}
    assert broker.listed() == []
    assert broker.create("t") == {"t": 0}
    broker.assert_agrees_with_store()


def test_logs_that_cannot_be_deleted_do_not_stop_the_deletion_of_others():
    broker = Broker(directories=("/data/a", "/data/b"))
    names = ["r", "s", "t"]
    broker.create(*names, "kept", partitions=2)
    broker.fs.fail("rename", path_contains="/data/a/")
    assert broker.delete(*names) == dict.fromkeys(names, 0)
    assert broker.listed() == ["kept"]
    assert broker.cluster.logs.online_directories == ["/data/b"]
    assert all(topic == "kept" for topic, _ in log_keys(broker.cluster))
    assert run_now(broker.cluster.store.get_children("/brokers/topics")) == ["kept"]
    assert broker.create(*names) == dict.fromkeys(names, 0)


def test_each_topic_grows_and_changes_independently(broker):
    names = ["a", "b", "c"]
    broker.create(*names)
    # The store refuses the change of one topic, first because a node exists, then because the disk is full.
    run_now(broker.cluster.store.create("/brokers/topics/b/partitions/2"))
    assert broker.grow(3, *names) == {"a": 0, "b": E.UNKNOWN_SERVER_ERROR, "c": 0}
    run_now(broker.cluster.store.delete("/brokers/topics/b/partitions/2"))
    broker.server.refuse_paths("topics/b")
    assert broker.grow(4, *names) == {"a": 0, "b": E.KAFKA_STORAGE_ERROR, "c": 0}
    assert broker.alter(1000, *names) == {"a": 0, "b": E.KAFKA_STORAGE_ERROR, "c": 0}
    broker.assert_agrees_with_store()
    broker.server.heal()
    assert broker.grow(4, "b") == broker.alter(1000, "b") == {"b": 0}
    broker.assert_agrees_with_store()


def test_a_failed_read_of_the_store_does_not_end_the_controllers_term(broker, monkeypatch):
    broker.create("t")
    load = broker.cluster.store._table.load

    def fail(path):
        raise StoreUnavailableError("disk I/O error")

    monkeypatch.setattr(broker.cluster.store._table, "load", fail)
    assert broker.delete("t") == {"t": E.KAFKA_STORAGE_ERROR}
    monkeypatch.setattr(broker.cluster.store._table, "load", load)
    assert broker.delete("t") == {"t": 0}
    broker.assert_agrees_with_store()


@pytest.mark.parametrize("number", range(1, 24))
def test_image_and_store_agree_whichever_change_fails(number, monkeypatch):
    monkeypatch.setattr("odradek.replication.controller.context.MAX_OPERATIONS", 3)
    monkeypatch.setattr("odradek.replication.controller.topics.changes.MAX_OPERATIONS", 20)
    broker = Broker()
    broker.server.refuse_nth(number)
    broker.create("a", "b", "c")
    broker.create("d", partitions=12)
    broker.alter(5, "a", "c")
    broker.grow(4, "b", "c")
    broker.delete("a", "d", "b")
    broker.create("a", "e")
    broker.delete("e", "c")
    broker.wait(5)
    broker.assert_agrees_with_store()
    topics = broker.listed()
    again = broker.restart()
    assert again.listed() == topics
    again.assert_agrees_with_store()


@pytest.mark.parametrize("seed", range(20))
def test_image_and_store_agree_after_random_requests(seed):
    random, broker = Random(seed), Broker()
    for _ in range(80):
        action = random.randrange(8)
        names = random.sample("abcdef", random.randrange(1, 4))
        if action == 0:
            chance = random.random()
            broker.server.refuses = lambda operations, chance=chance: random.random() < chance
        elif action == 1:
            broker.server.heal()
        elif action <= 3:
            broker.create(*names)
        elif action <= 5:
            before = set(broker.listed())
            deleted = {name for name, code in broker.delete(*names).items() if code == 0}
            assert set(broker.listed()) == before - deleted
        elif action == 6:
            broker.grow(random.randrange(2, 5), *names)
        else:
            broker.alter(random.randrange(1000), *names)
            broker.wait(random.randrange(3))
    topics = broker.listed()
    broker.server.heal()
    broker.wait(61)
    assert broker.listed() == topics
    broker.assert_agrees_with_store()


@pytest.mark.parametrize("answered", range(3))
@pytest.mark.parametrize("change", ["create", "delete", "grow", "alter"])
def test_a_change_is_completed_although_the_client_disconnects(broker, change, answered):
    """The store has the change: if the broker did not complete it, the image would differ until the next start."""
    broker.create("t", "u")
    requests = {
        "create": CreateTopicsRequest(
            topics=[CreateTopicsRequestCreatableTopic(name="v", num_partitions=1, replication_factor=1)]
        ),
        "delete": DeleteTopicsRequest(topics=[DeleteTopicsRequestDeleteTopicState(name="t")]),
        "grow": CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequestCreatePartitionsTopic(name=name, count=5, assignments=None) for name in "tu"
            ]
        ),
        "alter": alteration(5, "t", "u"),
    }
    answers = broker.server.answers = []
    broker.connection.frames_received([request_frame(requests[change], requests[change].last_version)])
    broker.transport.iterate()
    for _ in range(answered):
        if answers:
            answers.pop().callback(None)
    broker.connection.connection_lost()
    while answers:
        answers.pop().callback(None)
    broker.server.answers = None
    broker.connect()
    assert broker.listed() == {"create": ["t", "u", "v"], "delete": ["u"]}.get(change, ["t", "u"])
    broker.assert_agrees_with_store()
