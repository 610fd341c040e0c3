"""Starts that fail, and starts with an older metadata store: marks and epochs of earlier starts are kept."""

import pytest

from odradek.log.storage import checkpoints
from odradek.protocol.messages.init_producer_id import InitProducerIdRequest
from odradek.simulation.tests.sole_client import SoleClient
from odradek.simulation.tests.test_world import finish


def with_topic(partitions=1, **properties):
    client = SoleClient(**properties)
    client.create_topic(partitions=partitions)
    client.wait(5)  # threads have made the new directories durable
    return client


def fail_start(client, *, at_transaction=0):
    """Start the broker; the start fails in a transaction of the store."""
    client.world.metadata.fail(at_transaction, 1, after_commit=False)
    client.start_in_vain()
    client.world.metadata.repair()


def clean_marks(client):
    disk = client.world.broker.disk
    disk.come_up()
    marks = [checkpoints.read_clean_shutdown(disk, path) for path in client.world.broker.directories]
    disk.come_down(is_power_loss=False)
    return marks


def test_after_an_unclean_stop_and_a_failed_start_the_next_start_begins_new_leader_epochs():
    client = with_topic()
    client.produce(b"a")
    client.stop()
    client.start()
    assert client.produce(b"b", b"c", b"d") == 1
    client.lose_power()
    fail_start(client)
    client.start()
    assert client.produce(b"B", b"C", b"D", b"E") == 1
    assert client.end_of_epoch(0) == (0, 1), "records that were read after it are not those of the log"
    client.stop()
    assert clean_marks(client) != [None]


@pytest.mark.parametrize("at_transaction", range(4))
def test_a_failed_adoption_after_an_unclean_stop_marks_no_directory_as_clean(at_transaction):
    client = with_topic(2, log_dirs="/data1,/data2")
    client.stop()
    client.start()
    client.world.broker.kill()
    client.world.metadata.lose()
    client.world.broker.properties["log.dirs.adopt"] = "true"
    fail_start(client, at_transaction=at_transaction)
    assert clean_marks(client) == [None, None]


def test_a_failed_start_after_a_clean_stop_leaves_the_mark_as_it_was():
    client = with_topic()
    client.stop()
    marks = clean_marks(client)
    fail_start(client)
    assert clean_marks(client) == marks
    assert marks != [-1]


def new_producer_ids(client, count=1):
    async def ask():
        connection = await client.world.connect()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        responses = [await connection.request(request, 4, client_id="test") for _ in range(count)]
        connection.close()
        assert {response.error_code for response in responses} == {0}
        return [response.producer_id for response in responses]

    return finish(client.world, ask())


def kill_start(client, change):
    """Kill the process at a change of the disk or of the store during its start."""
    client.world.broker.disk.crash_at(change)
    client.world.broker.start()
    assert client.world.run(lambda: not client.world.broker.is_alive, 60)
    client.world.broker.disk.come_down(is_power_loss=False)


STOPS = pytest.mark.parametrize(
    "end", [SoleClient.stop, lambda client: client.world.broker.kill()], ids=["stopped", "killed"]
)


@pytest.mark.parametrize("how", ["at once", "after a failed start", "after a start that is killed"])
@STOPS
def test_with_an_older_store_no_producer_id_is_allocated_again(end, how):
    client = with_topic()
    new_producer_ids(client)
    client.stop()
    backup = client.world.metadata.copy()
    client.start()
    before = new_producer_ids(client)
    end(client)
    client.world.metadata.restore(backup)
    if how == "after a failed start":
        fail_start(client)
    elif how == "after a start that is killed":
        kill_start(client, 5)
    client.start()
    assert not set(before) & set(new_producer_ids(client, 3))


@STOPS
def test_with_a_store_copied_since_the_last_start_no_producer_id_is_allocated_again(end):
    client = with_topic()
    new_producer_ids(client)
    backup = client.world.metadata.copy()
    before = new_producer_ids(client, 1000)
    end(client)
    client.world.metadata.restore(backup)
    client.start()
    assert not set(before) & set(new_producer_ids(client, 3))
