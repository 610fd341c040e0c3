"""Topics that a broker without its metadata store finds in the log directories."""

import errno

from odradek.replication.metadata.store import run_now
from odradek.simulation.tests.sole_client import SoleClient


def test_an_epoch_of_which_no_log_has_a_record_does_not_come_back():
    """Consumers ignore metadata whose epoch is older than the last one that they received."""
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    client.wait(5)
    client.restart_after_kill(times=4)
    assert client.epochs() == [4]
    client.stop()
    client.adopt()
    assert client.epochs()[0] > 4
    assert client.world.failures == []


def test_the_end_of_an_epoch_whose_records_were_lost_does_not_move():
    """Consumers use it to detect that offsets which they have read belong to other records."""
    client = SoleClient()
    client.create_topic()
    client.produce(b"a")
    client.wait(5)
    client.stop()
    client.start()
    client.restart_after_kill()
    client.produce(b"b", b"c", b"d")
    assert client.end_of_epoch(1) == (1, 4)
    client.restart_after_power_loss()
    assert client.end_of_epoch(1) == (0, 1)
    client.stop()
    client.adopt()
    client.produce(b"B", b"C", b"D", b"E")
    assert client.end_of_epoch(1) == (0, 1)
    assert client.world.failures == []


GROUPS = {f"group{number}": 100 + number for number in range(40)}


def commit_all(client):
    """Commit offsets of several groups; return the offsets of the acknowledged commits."""
    return {group: offset for group, offset in GROUPS.items() if client.commit_offset(group, offset) == 0}


def with_lost_shards():
    """Return a stopped broker: __consumer_offsets-5, 6 and 7 have no directory, and all offsets are in the others."""
    client = SoleClient(offsets_topic_num_partitions="8")
    client.create_topic()
    client.produce(b"a")
    make_directory = client.world.broker.disk.make_directory

    def make(path):
        """No inodes are left."""
        if path.endswith(("__consumer_offsets-5", "__consumer_offsets-6", "__consumer_offsets-7")):
            raise OSError(errno.ENOSPC, "no inodes are left", path)
        make_directory(path)

    client.world.broker.disk.make_directory = make
    committed = commit_all(client)
    assert len(committed) > 15
    client.world.broker.kill()
    client.world.broker.disk.make_directory = make_directory
    return client, committed


def test_committed_offsets_remain_if_the_last_partitions_have_no_directory(caplog):
    client, committed = with_lost_shards()
    client.adopt()
    assert len(client.epochs("__consumer_offsets")) == 8
    assert {group: client.committed_offset(group) for group in committed} == committed
    [line] = [one.message for one in caplog.records if "partition counts" in one.message]
    assert "count=1: t; " in line
    assert client.world.failures == []


def test_the_partition_count_fits_the_groups_regardless_of_the_configuration():
    client, committed = with_lost_shards()
    client.world.broker.properties["offsets.topic.num.partitions"] = "50"
    client.adopt()
    assert {group: client.committed_offset(group) for group in committed} == committed
    assert len(client.epochs("__consumer_offsets")) == 8


def test_the_partition_count_fits_the_transactional_ids():
    client = SoleClient(transaction_state_log_num_partitions="8")
    client.create_topic()
    for number in range(20):
        client.commit_transaction(b"x", transactional_id=f"id{number}")
    client.wait(5)
    client.stop()
    client.world.broker.properties["transaction.state.log.num.partitions"] = "50"
    client.adopt()
    assert len(client.epochs("__transaction_state")) == 8
    # Its next epoch, not another producer id.
    assert client.init_producer("id7")[2] == 1
    assert client.world.failures == []


def test_topics_are_adopted_only_if_every_partition_can_be_read():
    client = SoleClient(transaction_state_log_num_partitions="1")
    client.create_topic()
    client.create_topic("u")
    client.commit_transaction(b"1", "u")
    client.restart_after_kill(times=3)
    client.commit_transaction(b"2")
    topic_id = client.services.metadata.topics["t"].topic_id
    client.wait(5)
    client.stop()
    client.world.metadata.lose()
    client.world.broker.properties["log.dirs.adopt"] = "true"
    good = client.replace_file("/data/t-0/partition.metadata", b"garbage")
    for _ in range(2):
        assert client.start_in_vain() == (
            "topics are adopted only if every partition can be read: /data/t-0; repair it, or move it out of log.dirs"
        )
    client.replace_file("/data/t-0/partition.metadata", good)
    client.start()
    assert client.services.metadata.topics["t"].topic_id == topic_id
    assert client.log().log_end_offset == 2
    # Only t-0 has a marker of the coordinator's last epoch.
    client.commit_transaction(b"3")
    client.wait(5)
    assert client.log().last_stable_offset == client.log().log_end_offset == 4
    assert client.world.failures == []


def test_an_omitted_log_directory_may_be_added_before_the_adoption_is_complete():
    client = SoleClient(log_dirs="/data1,/data2")
    client.create_topic(partitions=2)
    for partition in range(2):
        client.produce(b"a", b"b", partition=partition)
    kept_directory = client.log(partition=0).log_directory
    assert client.log(partition=1).log_directory != kept_directory
    client.wait(5)
    client.stop()
    properties, metadata = client.world.broker.properties, client.world.metadata
    properties |= {"log.dirs.adopt": "true", "log.dirs": kept_directory}
    is_in_store, passes = False, 0
    while not is_in_store:
        metadata.lose()
        metadata.fail(passes, 1, after_commit=False)
        client.start_in_vain()
        servers = list(metadata._servers.values())
        is_in_store = bool(servers) and run_now(servers[0].connect().exists("/brokers/topics/t")) is not None
        passes += 1
    properties["log.dirs"] = "/data1,/data2"
    client.start()
    assert len(client.epochs()) == 2
    assert [client.log(partition=partition).log_end_offset for partition in range(2)] == [2, 2]
    assert client.produce(b"c", partition=1) == 2
    assert client.world.failures == []


def test_partitions_that_are_added_again_have_no_earlier_epoch():
    """Their directory was lost, but a group may have committed an offset with their last epoch."""
    client = SoleClient()
    client.create_topic(partitions=2)
    for partition in range(2):
        client.produce(b"a", partition=partition)
    client.wait(5)
    client.restart_after_kill(times=4)
    client.stop()
    client.world.broker.disk.is_down = False
    client.world.broker.disk.remove_tree("/data/t-1")
    client.adopt()
    assert len(client.epochs()) == 1
    client.add_partitions(2)
    assert client.epochs()[1] > 4
    assert client.world.failures == []
