"""The simulated metadata store, sockets, directories and hostile batches behave as the simulation requires."""

from random import Random

import pytest

from odradek.protocol.batches.record_batch import read_header
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsRequestCreatableTopic
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from odradek.protocol.records import iter_records
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import NoNodeError, StoreUnavailableError
from odradek.simulation.clients.producers.batches import _LARGEST, Packing, batch_of
from odradek.simulation.clients.producers.hostile import CONTRADICTIONS, KINDS
from odradek.simulation.clients.producers.values import YEARS_MS, Values
from odradek.simulation.history import History, SentRecord
from odradek.simulation.machine.broker_sockets import SimulatedSocket
from odradek.simulation.machine.directories import Directories
from odradek.simulation.machine.network import NetworkHabits
from odradek.simulation.machine.pipes import Pipe
from odradek.simulation.tests.test_world import finish, started


@pytest.fixture
def world():
    return started(1)


def open_store(world):
    return world.metadata.open("/data", world.broker._reactor)


async def exists(store, path):
    try:
        await store.get(path)
    except NoNodeError:
        return False
    return True


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_transaction_of_the_store_fails_before_or_after_its_commit(world, after_commit):
    store = open_store(world)

    async def create():
        world.metadata.fail(1, 1, after_commit=after_commit)
        await store.create("/first")
        with pytest.raises(StoreUnavailableError):
            await store.create("/second")
        if after_commit:
            with pytest.raises(StoreUnavailableError, match="not known yet"):
                await store.create("/third")
            await world.sleep(1)
        await store.create("/third")
        return [await exists(store, path) for path in ("/first", "/second", "/third")]

    assert finish(world, create()) == [True, after_commit, True]


def test_a_repaired_store_fails_no_more(world):
    store = open_store(world)
    world.metadata.fail(0, 3, after_commit=False)
    world.metadata.repair()
    assert finish(world, store.create("/first")) == "/first"


def test_each_directory_has_a_store_of_its_own(world):
    finish(world, open_store(world).create("/first"))
    other = world.metadata.open("/other", world.broker._reactor)
    assert finish(world, exists(other, "/first")) is False
    assert finish(world, exists(open_store(world), "/first")) is True
    world.metadata.lose()
    assert not world.metadata.is_in("/data")


def test_a_restored_store_is_as_it_was_when_it_was_copied(world):
    finish(world, open_store(world).create("/first"))
    copy = world.metadata.copy()
    finish(world, open_store(world).create("/second"))
    for _ in range(2):
        world.metadata.restore(copy)
        store = open_store(world)
        assert [finish(world, exists(store, path)) for path in ("/first", "/second")] == [True, False]
        finish(world, store.create("/second"))


def test_a_socket_accepts_a_part_and_has_room_again(world):
    world.network.habits = NetworkHabits(short_send_share=1.0)
    pipe = Pipe(world.network, ("client", "broker-0"), lambda data: None, lambda is_broken: None)
    socket = SimulatedSocket(world.network, pipe)
    assert 0 < socket.send(b"x" * 100) < 100
    assert pipe.room_bytes > 0


def test_a_broker_that_gives_up_stops_after_the_function_that_runs(world):
    reactor, found = world.broker._reactor, []

    def give_up():
        reactor.stop()
        found.append(world.broker.is_stopping)

    reactor.run(give_up)
    assert found == [False]
    assert world.run(lambda: not world.broker.is_up, 60)


def directories_of(world):
    return Directories(world, History(world.now_ms), Random(1))


def test_log_directories_change(world):
    directories = directories_of(world)
    world.broker.properties["log.dirs"] = "/a,/b,/c"
    directories.reorder()
    assert sorted(world.broker.directories) == ["/a", "/b", "/c"]
    directories.put_first()
    directories.put_first()
    assert world.broker.directories[0] == "/new1"
    assert len(world.broker.directories) == 4


def test_a_store_is_restored_only_if_the_copy_has_all_topics(world):
    directories = directories_of(world)
    store = open_store(world)
    directories.back_up_store()
    finish(world, store.create("/other"))
    finish(world, store.create(f"{znodes.TOPICS}/t"))
    directories.restore_store()
    assert finish(world, exists(open_store(world), "/other")) is True
    directories.back_up_store()
    finish(world, open_store(world).delete("/other"))
    directories.restore_store()
    assert finish(world, exists(open_store(world), "/other")) is True


def test_a_changed_directory_that_is_no_partition_fails_the_run(world):
    world.broker.kill()
    directories = directories_of(world)
    directories.add_foreign()
    world.broker.disk.come_up()
    directories.check()
    assert world.failures == []
    (path,) = directories._foreign
    world.broker.disk.remove_tree(path)
    directories.check()
    assert len(world.failures) == 1


# Batches


def records_at(*timestamps):
    return [SentRecord(b"v%d" % number, b"k", (), timestamp) for number, timestamp in enumerate(timestamps)]


@pytest.mark.parametrize(
    ("header", "stated"), [("exact", 9), ("zero", 0), ("understated", 4), ("overstated", 600_009)]
)
def test_a_header_states_the_largest_timestamp_of_its_kind(header, stated):
    assert header in _LARGEST
    batch = batch_of(records_at(5, 9, 7), Packing(header=header))
    assert read_header(batch).max_timestamp == stated
    assert [record.timestamp for record in iter_records(batch)] == [5, 9, 7]


@pytest.mark.parametrize(
    ("times", "ages"), [("now", {"now"}), ("fresh", {"now", "none"}), ("any", {"now", "none", "old"})]
)
def test_records_have_timestamps_of_the_requested_kinds(world, times, ages):
    def age_of(timestamp):
        if timestamp == -1:
            return "none"
        return "old" if timestamp < world.now_ms() - YEARS_MS // 2 else "now"

    found = set()
    for seed in range(40):
        values = Values(world, Random(seed), "p", times=times)
        found |= {age_of(values.record().timestamp) for _ in range(10)}
    assert found == ages


@pytest.mark.parametrize("kind", [*KINDS, *CONTRADICTIONS])
def test_a_hostile_batch_is_refused(world, kind):
    async def send():
        connection = await world.connect()
        configs = []
        topic = CreateTopicsRequestCreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
        await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, client_id="test")
        codes = []
        for count in (1, 3, 12):
            records = records_at(*(world.now_ms() for _ in range(count)))
            records = (KINDS | CONTRADICTIONS)[kind](records, Random(count))
            data = ProduceRequestPartitionProduceData(index=0, records=records)
            topic_data = ProduceRequestTopicProduceData(name="t", partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic_data])
            answer = await connection.request(request, 9, client_id="test")
            codes.append(answer.responses[0].partition_responses[0].error_code)
        connection.close()
        return codes

    assert ErrorCode.NONE not in finish(world, send())
