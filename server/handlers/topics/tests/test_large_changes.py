"""Topics with many partitions are created, grown and deleted in steps, between which the broker serves others."""

import itertools
from types import SimpleNamespace

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from odradek.coordinator.transactions.producer_ids import ProducerIdManager
from odradek.log.background.tasks import run_inline
from odradek.log.management.tests.test_closing import Syncs
from odradek.log.storage.checkpoints import read_offsets
from odradek.log.storage.log_directory import ALL_CHECKPOINTS
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.log.tests.managers import folders, opened
from odradek.log.tests.threads import Threads
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
)
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.producer_id_blocks import allocate_block
from odradek.replication.metadata.store import SessionEvent, StoreUnavailableError, TransactionError, run_now
from odradek.replication.tests.support import Cluster, log_keys
from odradek.server.handlers.coordinators.producers import init_producer_id
from odradek.server.request import RequestContext
from odradek.server.stores.sqlite import SETTLE_INTERVAL_S, SqliteMetadataStore, SqliteNodeTable
from odradek.server.stores.tests.test_sqlite_commit import Disk
from odradek.server.work.metadata_pacing import ReactorPacing
from odradek.server.work.slices import SLICE_S, Slices
from odradek.server.work.waits import carry_through

COUNT = 60
"""A number of partitions with more operations than the store carries out at once."""


class Iterations(Clock):
    """A clock that can run a single iteration, without the calls that are scheduled in it."""

    def iterate(self):
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)


class Paced:
    """A cluster of one broker on a SQLite store. Steps wait for the clock, commits for a thread: see `iterate`.

    log_threads: those of `logs`, which `finish` runs
    """

    def __init__(self, directory, logs=None, log_threads=None):
        self.log_threads = log_threads or Threads()
        self.clock = Iterations()
        self.disk = Disk()
        self.threads = []
        self.iterations = 0
        store = self.store = SqliteMetadataStore(
            directory, lambda: 1, call_later=self.clock.callLater, connect=self.disk.connect
        )
        self.cluster = cluster = Cluster(server=self, logs=logs)
        slices = Slices(self.clock, lambda: 0.0, slice_s=0.0)
        pacing = ReactorPacing(self.clock, slices, lambda: 0.0, lambda *work: self.threads.append(work), 0.0)
        cluster.replicas.run_steps = pacing.run_to_stop
        cluster.replicas.make_waiter = pacing.waiter
        cluster.controller.run_on(pacing)
        store.pace(pacing)

    def connect(self):
        return self.store

    def iterate(self, count=1, *, commit=True):
        for _ in range(count):
            self.iterations += 1
            if commit and self.threads:
                run_inline(*self.threads.pop(0))
            self.clock.iterate()

    def finish(self, *requests):
        """Run until all requests are answered. Return their responses."""
        while not all(request.called for request in requests):
            self.log_threads.run()
            self.iterate()
            assert self.iterations < 20_000
        return [request.result for request in requests]

    def create(self, name, count=COUNT):
        topics = [CreateTopicsRequestCreatableTopic(name=name, num_partitions=count, replication_factor=1)]
        request = CreateTopicsRequest(topics=topics, timeout_ms=1000)
        return carry_through(self.cluster.topics.create_topics(request)).addCallback(lambda r: r.topics[0].error_code)

    def grow(self, name, count):
        topics = [CreatePartitionsRequestCreatePartitionsTopic(name=name, count=count, assignments=None)]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=1000)
        grown = carry_through(self.cluster.topics.create_partitions(request))
        return grown.addCallback(lambda response: response.results[0].error_code)

    def delete(self, name):
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)
        deleted = carry_through(self.cluster.topics.delete_topics(request, 5))
        return deleted.addCallback(lambda response: response.responses[0].error_code)

    def alter(self, topic, name, value):
        config = IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=0, value=value)
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        altered = carry_through(self.cluster.config_admin.incremental_alter_configs(request))
        return altered.addCallback(lambda response: response.responses[0].error_code)

    def assert_agrees(self):
        """Assert that a start would load the image, and that the logs are those of the image."""
        loaded = ClusterMetadata()
        run_now(load_image(self.store, loaded))
        assert loaded.contents() == self.cluster.image.contents()
        topics = loaded.topics.values()
        expected = [(topic.name, index) for topic in topics for index in range(len(topic.partitions))]
        assert log_keys(self.cluster) == sorted(expected)
        assert sorted(self.cluster.replicas.partitions) == sorted(expected)
        assert run_now(self.store.get_children("/admin/delete_topics")) == []


@pytest.fixture
def paced(tmp_path):
    paced = Paced(tmp_path)
    yield paced
    close(paced)


def close(paced):
    paced.disk.is_broken = False
    for _ in range(3):
        paced.clock.advance(SETTLE_INTERVAL_S)
    run_now(paced.store.close())


def test_creation_growth_and_deletion_take_many_short_iterations(paced):
    assert paced.finish(paced.create("t")) == [0]
    assert paced.iterations > 3 * COUNT
    paced.assert_agrees()
    assert paced.finish(paced.grow("t", 2 * COUNT)) == [0]
    assert paced.iterations > 6 * COUNT
    paced.assert_agrees()
    assert paced.finish(paced.delete("t")) == [0]
    paced.assert_agrees()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_topic_that_is_created_again_waits_until_a_thread_has_removed_old_checkpoint_entries(tmp_path, is_full):
    """On a full disk the entries remain, and the creation itself tries to remove them."""
    fs, threads = MemoryFileSystem(), Threads()
    logs = opened(fs, ["/data"], run_in_thread=threads)
    paced = Paced(tmp_path, logs, threads)
    assert paced.finish(paced.create("t"), paced.create("u", 1)) == [0, 0]
    for file_name in ALL_CHECKPOINTS:
        logs.checkpoints.write_now(logs.directories["/data"], file_name)
    assert paced.finish(paced.delete("t")) == [0]
    threads.run()
    syncs = Syncs(fs)
    created, deleted = paced.create("t"), paced.delete("u")
    paced.iterate(1000)
    assert not created.called
    assert (syncs.count, log_keys(paced.cluster)) == (0, [("u", 0)])
    assert len(threads.waiting) == 1
    fs.is_full = is_full
    threads.run()
    fs.is_full = False
    assert paced.finish(created, deleted) == [0, 0]
    paced.assert_agrees()
    assert not any(("t", 0) in read_offsets(fs, f"/data/{file_name}") for file_name in ALL_CHECKPOINTS)
    close(paced)


def test_a_topic_may_be_deleted_while_its_creation_waits(tmp_path):
    threads = Threads()
    logs = opened(MemoryFileSystem(), ["/data"], run_in_thread=threads)
    paced = Paced(tmp_path, logs)
    assert paced.finish(paced.create("t", 2)) == [0]
    logs.checkpoints.write_now(logs.directories["/data"], ALL_CHECKPOINTS[0])
    assert paced.finish(paced.delete("t")) == [0]
    created = paced.create("t", 3)
    paced.iterate(1000)
    deleted = paced.delete("t")
    paced.iterate(1000)
    assert not created.called
    threads.run()
    assert paced.finish(created, deleted) == [0, 0]
    assert log_keys(paced.cluster) == []
    paced.assert_agrees()
    close(paced)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_may_be_deleted_while_a_thread_makes_its_files(tmp_path, is_created_again):
    fs, threads = MemoryFileSystem(), Threads()
    logs = opened(fs, ["/data"], run_in_thread=threads)
    paced = Paced(tmp_path, logs, threads)
    created = paced.create("t")
    paced.iterate(1000)
    assert (log_keys(paced.cluster), len(threads.waiting)) == ([], 1)
    requests = [paced.delete("t")]
    if is_created_again:
        requests.append(paced.create("t", 10))
    paced.iterate(1000)
    assert paced.finish(created, *requests) == [0] * (1 + len(requests))
    kept = [("t", index) for index in range(10)] if is_created_again else []
    assert log_keys(paced.cluster) == kept
    assert sorted(name for name in folders(fs, "/data") if not name.endswith("-delete")) == [f"t-{i}" for _, i in kept]
    paced.assert_agrees()
    close(paced)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_thread_makes_the_next_files_while_logs_are_created(tmp_path, is_deleted):
    fs, threads = MemoryFileSystem(), Threads()
    logs = opened(fs, ["/data"], run_in_thread=threads)
    paced = Paced(tmp_path, logs, threads)
    requests = [paced.create("t", 150)]
    paced.iterate(2000)
    threads.run(1)
    assert (len(log_keys(paced.cluster)), len(folders(fs, "/data"))) == (0, 64)
    while len(log_keys(paced.cluster)) < 10:
        paced.iterate()
    if is_deleted:
        requests.append(paced.delete("t"))
        paced.iterate(2000)
        assert not requests[0].called
    threads.run()
    assert (len(log_keys(paced.cluster)), len(folders(fs, "/data"))) == (10, 128)
    assert paced.finish(*requests) == [0] * len(requests)
    paced.assert_agrees()
    assert len(log_keys(paced.cluster)) == (0 if is_deleted else 150)
    assert len([name for name in folders(fs, "/data") if not name.endswith("-delete")]) == len(log_keys(paced.cluster))
    close(paced)


def test_a_small_change_takes_few_iterations(paced):
    assert paced.finish(paced.create("t", 1)) == [0]
    assert paced.finish(paced.alter("t", "retention.ms", "5")) == [0]
    assert paced.iterations <= 10


def test_every_commit_is_made_in_a_thread(paced):
    store = paced.store

    def changes():
        yield paced.create("t", 1)
        yield paced.alter("t", "retention.ms", "5")
        yield paced.grow("t", 2)
        yield Deferred.fromCoroutine(store.create("/n", b"1"))
        yield Deferred.fromCoroutine(store.set("/n", b"2"))
        yield Deferred.fromCoroutine(store.delete("/n"))
        yield paced.delete("t")

    for change in changes():
        paced.iterate(5, commit=False)
        assert not change.called
        assert len(paced.threads) == 1
        paced.finish(change)
    paced.assert_agrees()


def test_a_transactional_producer_waits_for_the_commit_of_a_block_of_ids(paced):
    store, taken = paced.store, []

    def start(steps):
        raise AssertionError("the next block is allocated too early")

    ids = ProducerIdManager(lambda least_id: allocate_block(store, 1, least_id), start, store.ready)

    def run(transactional_id, decide):
        taken.append(ids.take())
        return succeed(InitProducerIdResponse())

    services = SimpleNamespace(producer_ids=ids, transactions=SimpleNamespace(run=run, lacks_producer=bool))
    request = InitProducerIdRequest(transactional_id="x")
    reply = init_producer_id(services, RequestContext("host", "PLAINTEXT"), request)
    paced.iterate(5, commit=False)
    assert not reply.called
    paced.finish(reply)
    assert taken == [0]
    assert init_producer_id(services, RequestContext("host", "PLAINTEXT"), request).called


def test_other_changes_run_between_those_of_a_series(paced):
    done = []

    async def change(name):
        await paced.store.create(f"/{name}")
        for number in range(20):
            await paced.store.set(f"/{name}", b"%d" % number)
            done.append(name)

    async def read():
        assert await paced.store.exists("/a") is not None
        done.append("read")

    paced.finish(*(Deferred.fromCoroutine(work) for work in (change("a"), change("b"), read())))
    assert done.index("read") <= 3
    assert [done[:20].count(name) for name in "ab"] in ([9, 10], [10, 9], [10, 10])


def test_each_iteration_does_one_piece_of_work(paced, monkeypatch):
    rows, load = [], SqliteNodeTable.load

    def counted(self, path):
        rows.append(path)
        return load(self, path)

    monkeypatch.setattr(SqliteNodeTable, "load", counted)
    request = paced.create("t")
    while not request.called:
        rows.clear()
        before = len(log_keys(paced.cluster))
        paced.iterate()
        assert len(rows) <= 12
        assert len(log_keys(paced.cluster)) - before <= 1


@pytest.mark.parametrize("iterations", [0, 5, 60, 125, 135, 180])
def test_one_of_two_creations_of_a_topic_succeeds(paced, iterations):
    first = paced.create("t")
    paced.iterate(iterations)
    second = paced.create("t", 3)
    assert sorted(paced.finish(first, second)) == [0, ErrorCode.TOPIC_ALREADY_EXISTS]
    paced.assert_agrees()


@pytest.mark.parametrize("count", [COUNT, COUNT + 1, 2 * COUNT])
def test_two_growths_of_a_topic_are_made_in_order(paced, count):
    paced.finish(paced.create("t", 1))
    first = paced.grow("t", COUNT)
    paced.iterate(50)
    second = paced.grow("t", count)
    assert paced.finish(first, second) == [0, ErrorCode.INVALID_PARTITIONS if count == COUNT else 0]
    paced.assert_agrees()


@pytest.mark.parametrize("iterations", [0, 30, 125, 130, 160, 200])
def test_a_topic_may_be_deleted_and_created_again_during_its_creation(paced, iterations):
    first = paced.create("t")
    paced.iterate(iterations)
    is_there = "t" in paced.cluster.image.topics
    second = paced.delete("t")
    assert paced.finish(first, second) == [0, 0 if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if is_there:
        assert paced.cluster.image.topics == {}
        assert paced.finish(paced.create("t", 2)) == [0]
    paced.assert_agrees()


def test_changes_requested_during_a_large_one_are_made(paced):
    paced.finish(paced.create("other", 1))
    requests = [paced.create("t")]
    names = ("retention.ms", "segment.ms", "flush.ms", "segment.jitter.ms")
    for number, name in enumerate(names):
        paced.iterate(40)
        requests.append(paced.alter("other", name, str(1000 + number)))
        requests.append(paced.alter("other", "retention.bytes", str(number)))
    assert paced.finish(*requests) == [0] * 9
    configs = paced.cluster.image.topic_configs["other"]
    assert configs == {**{name: str(1000 + n) for n, name in enumerate(names)}, "retention.bytes": "3"}
    paced.assert_agrees()


def test_reads_of_the_store_wait_for_the_change_in_progress(paced):
    request = paced.create("t")
    paced.iterate(20)
    found = Deferred.fromCoroutine(paced.store.exists("/brokers/topics/t"))
    missing = Deferred.fromCoroutine(paced.store.get_children("/brokers/topics"))
    paced.iterate(20)
    assert not found.called
    paced.finish(request, found, missing)
    assert found.result is not None
    assert missing.result == ["t"]


def test_a_refused_change_leaves_nothing(paced):
    paced.finish(Deferred.fromCoroutine(paced.store.ensure_path("/brokers/topics/t")))
    assert paced.finish(paced.create("t")) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    paced.finish(Deferred.fromCoroutine(paced.store.delete("/brokers/topics/t")))
    assert run_now(paced.store.get_children("/config/topics")) == []
    paced.assert_agrees()


@pytest.mark.parametrize("count", [1, COUNT])
@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_with_an_unknown_outcome_is_read_back(paced, is_made, count):
    events = []
    paced.store.add_session_listener(events.append)
    request = paced.create("t", count)
    while not paced.threads:
        paced.iterate(commit=False)
    paced.disk.commits, paced.disk.is_broken = [is_made], True
    assert paced.finish(request) == [ErrorCode.KAFKA_STORAGE_ERROR]
    paced.disk.is_broken = False
    paced.clock.advance(SETTLE_INTERVAL_S)
    assert events == [SessionEvent.DISCONNECTED, SessionEvent.CONNECTED]
    paced.finish(Deferred.fromCoroutine(paced.cluster.controller.reload()))
    paced.finish(Deferred.fromCoroutine(paced.cluster.replicas.applied()))
    assert list(paced.cluster.image.topics) == ["t"] * is_made
    paced.assert_agrees()


@pytest.mark.parametrize("count", [1, COUNT])
def test_a_commit_that_failed_and_was_not_made_changes_nothing(paced, count):
    request = paced.create("t", count)
    while not paced.threads:
        paced.iterate(commit=False)
    paced.disk.commits = [False]
    assert paced.finish(request) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert paced.cluster.image.topics == {}
    assert paced.finish(paced.create("t", 2)) == [0]
    paced.assert_agrees()


def test_a_change_is_completed_although_its_client_has_disconnected(paced):
    for iterations in (0, 60, 130, 160):
        request = paced.create(f"t{iterations}").addErrback(lambda _: None)
        paced.iterate(iterations)
        request.cancel()
    while paced.clock.getDelayedCalls() or paced.threads:
        paced.iterate()
    assert sorted(paced.cluster.image.topics) == ["t0", "t130", "t160", "t60"]
    paced.assert_agrees()


def test_slices_that_stop_undo_the_change(paced):
    slices = Slices(paced.clock, lambda: 0.0, slice_s=0.0)
    paced.store.pace(ReactorPacing(paced.clock, slices, lambda: 0.0, run_inline, 0.0))
    request = paced.create("t").addErrback(lambda failure: failure.type.__name__)
    paced.iterate(60)
    slices.stop()
    paced.iterate()
    assert request.result == "SchedulerStopped"
    assert run_now(paced.store.get_children("/brokers/topics")) == []


def test_a_stop_ends_work_of_the_broker_without_a_log_line(caplog):
    clock = Iterations()
    slices = Slices(clock, lambda: 0.0, slice_s=0.0)
    pacing = ReactorPacing(clock, slices, lambda: 0.0, run_inline, 0.0)

    def steps(error=None):
        yield
        yield
        if error is not None:
            raise error

    waiting = Deferred.fromCoroutine(asking(pacing.run_to_stop(steps())))
    clock.iterate()
    slices.stop()
    assert waiting.called
    assert caplog.records == []
    pacing = ReactorPacing(clock, Slices(clock, lambda: 0.0, slice_s=0.0), lambda: 0.0, run_inline, 0.0)
    waiting = Deferred.fromCoroutine(asking(pacing.run_to_stop(steps(RuntimeError("a defect")))))
    for _ in range(4):
        clock.iterate()
    assert waiting.called
    assert "please report it" in caplog.text


def test_pauses_after_an_event_and_in_the_timers_after_it_end_one_slice():
    clock, polls, now_s, steps = Iterations(), [0], [0.0], []

    async def work():
        for _ in range(20):
            await pacing.pause()
            now_s[0] += SLICE_S / 4
            steps.append(polls[0])

    slices = Slices(clock, lambda: now_s[0])
    pacing = ReactorPacing(clock, slices, lambda: now_s[0], run_inline, count_polls=lambda: polls[0])
    Deferred.fromCoroutine(work())
    for _ in range(4):
        clock.iterate()
        polls[0] += 1
    assert [steps.count(poll) for poll in range(3)] == [5, 5, 5], "a resumed step, and a slice of four"


def test_a_pause_of_little_work_sets_no_timer():
    clock, polls = Iterations(), [0]
    pacing = ReactorPacing(clock, Slices(clock, lambda: 0.0), lambda: 0.0, run_inline, count_polls=lambda: polls[0])
    for _ in range(3):
        assert Deferred.fromCoroutine(asking(pacing.pause())).called
        polls[0] += 1
    assert clock.getDelayedCalls() == []


async def asking(work):
    await work


def test_the_error_of_a_paced_transaction_names_the_failed_operation(paced):
    from odradek.replication.metadata.store import Create, NoNodeError

    operations = [Create(f"/n{number}") for number in range(150)]
    operations[130] = Create("/absent/n")
    request = Deferred.fromCoroutine(paced.store.transaction(operations))
    failures = []
    request.addErrback(lambda failure: failures.append(failure.value))
    paced.finish(request)
    [error] = failures
    assert isinstance(error, TransactionError)
    assert (error.index, type(error.cause)) == (130, NoNodeError)
    assert run_now(paced.store.exists("/n0")) is None
    assert not isinstance(error, StoreUnavailableError)


def test_pauses_limit_the_work_of_one_iteration():
    clock, now_s = Iterations(), itertools.count()
    pacing = ReactorPacing(clock, Slices(clock, lambda: 0.0), lambda: next(now_s) / 1000, run_inline, 0.004)
    steps = []

    async def work():
        for number in range(20):
            await pacing.pause()
            steps.append(number)

    request = Deferred.fromCoroutine(work())
    while not request.called:
        before = len(steps)
        clock.iterate()
        assert len(steps) - before <= 6
    assert steps == list(range(20))


def test_changes_that_waited_for_a_large_one_are_committed_singly_and_in_order(tmp_path, monkeypatch):
    paced = Paced(tmp_path)
    large = paced.create("large")
    paced.iterate(3, commit=False)
    small = [paced.create(f"t{number}", 1) for number in range(8)]
    paced.iterate(commit=False)
    commits = []
    commit = SqliteNodeTable.commit

    def counted(nodes):
        commits.append(paced.iterations)
        commit(nodes)

    monkeypatch.setattr(SqliteNodeTable, "commit", counted)
    late = None
    while not all(one.called for one in small):
        paced.iterate()
        if late is None and small[2].called:
            late = paced.create("t7", 1)
    assert len(set(commits)) == len(commits) == 9, "one in each iteration"
    assert [one.result for one in small] == [ErrorCode.NONE] * 8
    assert paced.finish(large, late) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
