import errno

import pytest

from odradek.log.config import LogConfig
from odradek.log.recovery import open_partition_log
from odradek.log.storage.memory_filesystem import MemoryFileSystem
from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.batches.streaming import run_steps
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.tests.test_config_admin import TOPIC, increment
from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.image import PartitionMetadata
from odradek.replication.metadata.store import run_now
from odradek.replication.replicas.offset_lookup import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    check_timestamp_supported,
)
from odradek.replication.replicas.partition import READ_COMMITTED, Partition
from odradek.replication.tests.support import Cluster, memory_logs

E = ErrorCode


class Waiting:
    def __init__(self, partition, *, for_log_end=False):
        self.woken = 0
        watchers = partition.log_end_watchers if for_log_end else partition.watchers
        watchers[self] = None

    def wake(self):
        self.woken += 1


def batch(*timestamps, key=b"k"):
    return memoryview(build_batch([(timestamp, key, b"v", ()) for timestamp in timestamps]))


def open_log(**config):
    values = {name.replace("_", "."): value for name, value in config.items()}
    return open_partition_log(
        MemoryFileSystem(), "/d/t-0", "t", 0, LogConfig(values), now_ms=0, is_clean=True
    )


def leader(*, replicas=(1,), isr=None, epoch=0, log=None, **config):
    partition = Partition("t", b"i" * 16, 0, 1)
    metadata = PartitionMetadata(1, epoch, replicas, replicas if isr is None else isr)
    partition.apply(metadata, log or open_log(**config))
    return partition


def append(partition, *timestamps, acks=-1):
    return partition.append_as_leader(batch(*timestamps), required_acks=acks, now_ms=100_000)


def fails(code, call, *arguments, **keywords):
    with pytest.raises(KafkaError) as error:
        call(*arguments, **keywords)
    assert error.value.code == code


def test_alone_the_high_watermark_is_the_logs_end():
    partition = leader()
    waiting = Waiting(partition)
    info = append(partition, 1, 2, 3)
    assert (info.first_offset, info.last_offset) == (0, 2)
    assert partition.log.high_watermark == 3
    assert partition.has_reached(3)
    assert waiting.woken == 1
    assert partition.read(0, 1 << 20).size_bytes == len(batch(1, 2, 3))
    assert partition.read(3, 1 << 20) is None


def test_a_leader_without_followers_has_everything_replicated():
    log = open_log()
    log.append_as_leader(batch(1), leader_epoch=0, now_ms=100_000)
    assert log.high_watermark == 0
    assert leader(epoch=1, log=log).log.high_watermark == 1
    assert log.leader_epochs.entries == [(0, 0), (1, 1)]


def test_the_high_watermark_waits_for_all_in_sync():
    partition = leader(replicas=(1, 2, 3), isr=(1, 2))
    append(partition, 1)
    append(partition, 2)
    waiting = Waiting(partition)
    assert partition.log.high_watermark == 0
    assert partition.read(0, 1 << 20) is None
    assert not partition.has_reached(1)
    partition.update_follower(3, 2, 0, 5)
    assert (partition.log.high_watermark, waiting.woken) == (0, 0)
    partition.update_follower(2, 1, 0, 5)
    assert (partition.log.high_watermark, waiting.woken) == (1, 1)
    assert partition.has_reached(1)
    partition.update_follower(2, 2, 0, 6)
    assert (partition.log.high_watermark, waiting.woken) == (2, 2)
    assert partition.followers[2].caught_up_ms == 6
    fails(E.UNKNOWN_LEADER_EPOCH, partition.update_follower, 9, 1, 0, 5)


def test_acks_all_fails_with_too_few_replicas_in_sync():
    partition = leader(replicas=(1, 2, 3), isr=(1,), min_insync_replicas="2")
    fails(E.NOT_ENOUGH_REPLICAS, append, partition, 1)
    assert partition.log.log_end_offset == 0
    append(partition, 1, acks=1)
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)
    partition.apply(PartitionMetadata(1, 0, (1, 2, 3), (1, 2), partition_epoch=1), partition.log)
    append(partition, 2)
    partition.update_follower(2, 2, 0, 5)
    assert partition.log.high_watermark == 2
    partition.apply(PartitionMetadata(1, 0, (1, 2, 3), (1,), partition_epoch=2), partition.log)
    assert partition.has_reached(2), "two replicas were in sync when they had the records"
    append(partition, 1, acks=1)
    assert not partition.has_reached(3)


def test_more_replicas_in_sync_than_there_are_cannot_be_demanded():
    partition = leader(min_insync_replicas="5")
    append(partition, 1)
    assert partition.log.high_watermark == 1


def test_epochs_of_callers():
    partition = leader(epoch=5)
    for call in (
        lambda epoch: partition.read(0, 9, current_leader_epoch=epoch),
        lambda epoch: run_steps(partition.list_offset(-1, current_leader_epoch=epoch)),
        lambda epoch: partition.offset_for_leader_epoch(0, epoch),
    ):
        fails(E.FENCED_LEADER_EPOCH, call, 4)
        fails(E.UNKNOWN_LEADER_EPOCH, call, 6)
        call(5)
        call(-1)


def test_a_replica_that_does_not_lead_refuses_requests():
    partition = leader()
    append(partition, 1)
    waiting = Waiting(partition)
    partition.apply(PartitionMetadata(2, 1, (1, 2), (1, 2)), partition.log)
    assert waiting.woken == 1
    assert (partition.is_leader, partition.leader) == (False, 2)
    for call in (
        lambda: append(partition, 1),
        lambda: partition.read(0, 9),
        lambda: run_steps(partition.list_offset(-1)),
        lambda: partition.delete_records(0),
        lambda: partition.has_reached(0),
        lambda: partition.diverging_epoch(0, 0),
    ):
        fails(E.NOT_LEADER_OR_FOLLOWER, call)
    fails(E.FENCED_LEADER_EPOCH, partition.read, 0, 9, current_leader_epoch=0)
    assert partition.low_watermark == -1


def test_metadata_with_an_older_epoch_is_ignored():
    partition = leader(epoch=3)
    partition.apply(PartitionMetadata(2, 2, (1, 2), (2,)), partition.log)
    assert (partition.is_leader, partition.leader_epoch) == (True, 3)


def test_reads_outside_of_the_log():
    partition = leader()
    append(partition, 1)
    fails(E.OFFSET_OUT_OF_RANGE, partition.read, 2, 9)
    fails(E.OFFSET_OUT_OF_RANGE, partition.read, -1, 9)
    assert partition.read(0, 1, at_least_one=False) is None
    assert partition.read(0, 1).size_bytes == len(batch(1))


def test_offsets_by_time_and_special_values():
    partition = leader(epoch=2)
    append(partition, 100, 300)
    append(partition, 200)
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP)) == (3, -1, 2)
    assert run_steps(partition.list_offset(EARLIEST_TIMESTAMP)) == (0, -1, 2)
    assert run_steps(partition.list_offset(EARLIEST_LOCAL_TIMESTAMP)) == (0, -1, 2)
    assert run_steps(partition.list_offset(MAX_TIMESTAMP)) == (1, 300, 2)
    assert run_steps(partition.list_offset(LATEST_TIERED_TIMESTAMP)) == (-1, -1, -1)
    assert run_steps(partition.list_offset(EARLIEST_PENDING_UPLOAD_TIMESTAMP)) == (-1, -1, -1)
    assert run_steps(partition.list_offset(0)) == (0, 100, 2)
    assert run_steps(partition.list_offset(101)) == (1, 300, 2)
    assert run_steps(partition.list_offset(301)) == (-1, -1, -1)
    fails(E.UNSUPPORTED_VERSION, run_steps, partition.list_offset(-7))


def test_offsets_of_an_empty_log():
    partition = leader()
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP)) == (0, -1, 0)
    assert run_steps(partition.list_offset(EARLIEST_TIMESTAMP)) == (0, -1, 0)
    assert run_steps(partition.list_offset(MAX_TIMESTAMP)) == (-1, -1, -1)
    assert run_steps(partition.list_offset(0)) == (-1, -1, -1)


def test_consumers_see_no_offset_above_the_high_watermark_but_replicas_do():
    partition = leader(replicas=(1, 2))
    append(partition, 100)
    partition.update_follower(2, 1, 0, 0)
    append(partition, 200)
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP)).offset == 1
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP, isolation_level=READ_COMMITTED)).offset == 1
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP, isolation_level=None)).offset == 2
    assert run_steps(partition.list_offset(MAX_TIMESTAMP)).offset == -1
    assert run_steps(partition.list_offset(MAX_TIMESTAMP, isolation_level=None)).offset == 1
    assert run_steps(partition.list_offset(150)).offset == -1


def test_a_debugging_client_lists_the_offsets_of_a_follower():
    partition = leader()
    append(partition, 100)
    append(partition, 200)
    partition.apply(PartitionMetadata(2, 1, (1, 2), (1, 2)), partition.log)
    fails(E.NOT_LEADER_OR_FOLLOWER, run_steps, partition.list_offset(LATEST_TIMESTAMP, isolation_level=None))
    options = {"isolation_level": None, "leader_only": False}
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP, **options)) == (2, -1, 1)
    assert run_steps(partition.list_offset(150, **options)).offset == 1
    fails(E.FENCED_LEADER_EPOCH, run_steps, partition.list_offset(150, current_leader_epoch=0, **options))


def test_a_new_leader_whose_high_watermark_lags_refuses_the_latest_offset():
    log = open_log()
    log.append_as_leader(batch(100), leader_epoch=0, now_ms=100_000)
    partition = leader(replicas=(1, 2), epoch=1, log=log)
    fails(E.OFFSET_NOT_AVAILABLE, run_steps, partition.list_offset(LATEST_TIMESTAMP))
    fails(E.OFFSET_NOT_AVAILABLE, run_steps, partition.list_offset(50))
    assert run_steps(partition.list_offset(EARLIEST_TIMESTAMP)).offset == 0
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP, isolation_level=None)).offset == 1
    partition.update_follower(2, 1, 0, 0)
    assert run_steps(partition.list_offset(LATEST_TIMESTAMP)).offset == 1


@pytest.mark.parametrize(
    ("timestamp", "since"), [(-1, 0), (-2, 0), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99), (0, 0)]
)
def test_special_timestamps_by_version(timestamp, since):
    for version in range(1, 12):
        if version >= since:
            check_timestamp_supported(timestamp, version)
        else:
            fails(E.UNSUPPORTED_VERSION, check_timestamp_supported, timestamp, version)


def test_where_epochs_end_and_histories_part():
    log = open_log()
    for epoch, count in ((1, 2), (4, 3)):
        partition = leader(epoch=epoch, log=log)
        for _ in range(count):
            append(partition, 1)
    assert partition.offset_for_leader_epoch(1) == (1, 2)
    assert partition.offset_for_leader_epoch(3) == (1, 2)
    assert partition.offset_for_leader_epoch(4) == (4, 5)
    assert partition.offset_for_leader_epoch(5) == (-1, -1)
    assert partition.diverging_epoch(-1, 9) is None
    assert partition.diverging_epoch(4, 5) is None
    assert partition.diverging_epoch(1, 2) is None
    assert partition.diverging_epoch(1, 3) == (1, 2)
    assert partition.diverging_epoch(3, 2) == (1, 2)
    fails(E.OFFSET_OUT_OF_RANGE, partition.diverging_epoch, 6, 2)


def test_records_are_deleted_up_to_the_high_watermark():
    partition = leader()
    for _ in range(4):
        append(partition, 1)
    waiting = Waiting(partition)
    assert partition.delete_records(2) == 2
    assert waiting.woken == 1
    assert partition.delete_records(1) == 2
    fails(E.OFFSET_OUT_OF_RANGE, partition.delete_records, 5)
    fails(E.OFFSET_OUT_OF_RANGE, partition.delete_records, -2)
    fails(E.OFFSET_OUT_OF_RANGE, partition.read, 1, 9)
    assert partition.delete_records(-1) == 4
    compacted = leader(cleanup_policy="compact")
    fails(E.POLICY_VIOLATION, compacted.delete_records, 0)
    internal = Partition("__consumer_offsets", b"i" * 16, 0, 1)
    fails(E.INVALID_TOPIC_EXCEPTION, internal.delete_records, 0)


def test_the_low_watermark_waits_for_the_followers():
    partition = leader(replicas=(1, 2))
    append(partition, 1)
    partition.update_follower(2, 1, 0, 0)
    assert partition.delete_records(1) == 0
    partition.update_follower(2, 1, 1, 0)
    assert partition.low_watermark == 1


def test_a_refused_append_wakes_no_watcher():
    partition = leader()
    waiting = Waiting(partition)
    broken = bytearray(batch(1))
    broken[-1] ^= 1
    fails(E.CORRUPT_MESSAGE, partition.append_as_leader, memoryview(broken), required_acks=-1, now_ms=0)
    assert (partition.log.log_end_offset, waiting.woken) == (0, 0)


def test_replicas_are_found_or_the_right_error_is():
    cluster = Cluster(others=[2])
    create(cluster, new("t", -1, -1, assignments=[(0, [1]), (1, [2])]))
    topic_id = cluster.image.topics["t"].topic_id
    replicas = cluster.replicas
    assert replicas.get("t", 0) is replicas.get_by_id(topic_id, 0)
    fails(E.UNKNOWN_TOPIC_OR_PARTITION, replicas.get, "u", 0)
    fails(E.UNKNOWN_TOPIC_OR_PARTITION, replicas.get, "t", 2)
    fails(E.UNKNOWN_TOPIC_OR_PARTITION, replicas.get, "t", -1)
    fails(E.NOT_LEADER_OR_FOLLOWER, replicas.get, "t", 1)
    fails(E.UNKNOWN_TOPIC_ID, replicas.get_by_id, b"x" * 16, 0)
    fails(E.UNKNOWN_TOPIC_OR_PARTITION, replicas.get_by_id, topic_id, 2)
    assert replicas.topic_id("t") == topic_id


def test_min_insync_replicas_may_change():
    cluster = Cluster(others=[2])
    create(cluster, new("t", -1, -1, assignments=[(0, [1, 2])]))
    partition = cluster.replicas.get("t", 0)
    run_now(
        cluster.controller.put_partitions(
            [
                cluster.image.topics["t"]._replace(
                    partitions=(cluster.image.topics["t"].partitions[0]._replace(isr=(1,)),)
                )
            ]
        )
    )
    append(partition, 1)
    assert partition.log.high_watermark == 1
    increment(cluster, (TOPIC, "t", [("min.insync.replicas", 0, "2")]))
    fails(E.NOT_ENOUGH_REPLICAS, append, partition, 1)


def test_a_failed_directory_takes_its_partitions_offline_and_no_other():
    cluster = Cluster()
    logs = memory_logs(cluster.configs, ("/one", "/two"))
    cluster = Cluster(logs=logs)
    create(cluster, new("t", 4))
    failing = cluster.replicas.get("t", 0)
    directory = failing.log.log_directory
    mates = [p for p in cluster.replicas if p.log.log_directory == directory]
    others = [p for p in cluster.replicas if p not in mates]
    assert len(mates) == len(others) == 2
    waiting = Waiting(mates[1])
    logs.fs.fail("write", after=1, error=errno.EIO)
    fails(E.KAFKA_STORAGE_ERROR, append, failing, 1)
    for partition in mates:
        fails(E.KAFKA_STORAGE_ERROR, append, partition, 1)
        fails(E.KAFKA_STORAGE_ERROR, partition.read, 0, 9)
        fails(E.KAFKA_STORAGE_ERROR, run_steps, partition.list_offset(-1))
        fails(E.KAFKA_STORAGE_ERROR, partition.delete_records, -1)
    for partition in others:
        append(partition, 1)
    assert waiting.woken == 1
    assert logs.online_directories == [d for d in ("/one", "/two") if d != directory]
    assert cluster.replicas.offline == [(p.topic, p.index) for p in mates]
    run_now(cluster.controller.take_offline(cluster.replicas.offline))
    for partition in mates:
        assert not partition.is_leader
        fails(E.KAFKA_STORAGE_ERROR, append, partition, 1)
    for partition in others:
        append(partition, 1)


def test_the_log_of_a_deleted_topic_of_that_name_becomes_stray():
    cluster = Cluster()
    create(cluster, new("t"))
    append(cluster.replicas.get("t", 0), 1)
    again = Cluster(logs=cluster.logs, seed=6)
    create(again, new("t"))
    partition = again.replicas.get("t", 0)
    assert (partition.is_leader, partition.log.log_end_offset) == (True, 0)
    assert [name for name in cluster.logs.fs.list_names("/data") if name.endswith("-stray")]


def test_a_restarted_broker_leads_what_it_led():
    cluster = Cluster()
    create(cluster, new("t"))
    append(cluster.replicas.get("t", 0), 1, 2)
    restarted = _restarted(cluster)
    partition = restarted.replicas.get("t", 0)
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (2, 2)
    assert append(partition, 3).first_offset == 2


def test_stored_partitions_without_a_log_are_reported_at_start(caplog):
    """A directory of log.dirs may not be mounted, with an empty one in its place."""
    cluster = Cluster()
    create(cluster, new("t", 2))
    cluster = _restarted(cluster)
    assert "had no log" not in caplog.text
    cluster.logs.fs.remove_tree("/data/t-0")
    cluster = _restarted(cluster)
    assert "begin empty count=1: t-0; if a directory of log.dirs is not mounted" in caplog.text
    caplog.clear()
    create(cluster, new("u"))
    assert "had no log" not in caplog.text


def test_a_log_that_failed_before_the_first_publication_is_offline(caplog):
    cluster = Cluster()
    create(cluster, new("t", 2))
    cluster.server.expire(cluster.store)
    cluster.logs.close(0)
    logs = memory_logs(cluster.configs, ("/data", "/other"), fs=cluster.logs.fs)
    logs.fail_directory("/data", OSError(errno.EIO, "I/O error"))
    restarted = Cluster(server=cluster.server, logs=logs)
    assert restarted.replicas.offline == [("t", 0), ("t", 1)]
    assert "please report it" not in caplog.text


def _restarted(cluster):
    cluster.server.expire(cluster.store)
    cluster.logs.close(0)
    return Cluster(server=cluster.server, logs=memory_logs(cluster.configs, fs=cluster.logs.fs))


def synced_leader(**config):
    """Return a leader with flush.before.acks, and the list of partitions that requested a sync."""
    asked = []
    partition = Partition("t", b"i" * 16, 0, 1, request_sync=asked.append)
    partition.apply(PartitionMetadata(1, 0, (1,), (1,)), open_log(flush_before_acks="true", **config))
    return partition, asked


def sync(partition):
    partition.log.flush(100_000)
    partition.synced()


def test_with_flush_before_acks_the_high_watermark_follows_the_sync():
    partition, asked = synced_leader()
    waiting = Waiting(partition)
    info = append(partition, 1, 2)
    assert asked == [partition]
    assert (partition.log.high_watermark, waiting.woken) == (0, 0)
    assert not partition.has_reached(2)
    assert partition.read(0, 1 << 20) is None
    assert not partition.waits_for_sync(info, -1)
    assert partition.waits_for_sync(info, 1)
    task = partition.log.prepare_flush()
    append(partition, 3)
    task.run()
    partition.log.finish_flush(task, 100_000)
    partition.synced()
    assert (partition.log.high_watermark, waiting.woken) == (2, 1), "records appended during the sync wait for the next"
    sync(partition)
    assert partition.has_reached(3)
    assert waiting.woken == 2


def test_a_repeated_batch_waits_for_the_sync_of_the_first_one():
    partition, _ = synced_leader()
    records = memoryview(build_batch([(1, b"k", b"v", ())], producer_id=4, producer_epoch=0, base_sequence=0))

    def produce():
        return partition.append_as_leader(memoryview(bytes(records)), required_acks=1, now_ms=100_000)

    produce()
    info = produce()
    assert info.is_duplicate
    assert partition.waits_for_sync(info, 1)
    sync(partition)
    info = produce()
    assert (info.is_duplicate, partition.waits_for_sync(info, 1)) == (True, False)


def test_flush_before_acks_can_be_turned_on_and_off_at_any_time():
    partition = leader()
    append(partition, 1)
    asked = []
    partition._request_sync = asked.append
    partition.configure(LogConfig({"flush.before.acks": "true"}))
    assert asked == [partition], "unsynced records are synced"
    assert partition.log.high_watermark == 1, "the high watermark never falls"
    append(partition, 2)
    assert partition.log.high_watermark == 1
    waiting = Waiting(partition)
    partition.configure(LogConfig({}))
    assert (partition.log.high_watermark, waiting.woken) == (2, 1)
    append(partition, 3)
    assert partition.log.high_watermark == 3
    assert partition.has_reached(3)


def test_after_a_failed_sync_nothing_is_acknowledged():
    failures = []
    partition = Partition("t", b"i" * 16, 0, 1, failures.append)
    log = open_log(flush_before_acks="true")
    partition.apply(PartitionMetadata(1, 0, (1,), (1,)), log)
    append(partition, 1)
    log.fs.fail("sync", error=errno.EIO)
    with pytest.raises(KafkaError):
        log.flush(100_000)
    with pytest.raises(KafkaError):
        log.flush(100_000)
    partition.synced()
    assert not partition.has_reached(1)
    partition.take_offline()
    fails(E.KAFKA_STORAGE_ERROR, partition.has_reached, 1)


def test_an_append_wakes_log_end_watchers_although_the_high_watermark_stays():
    partition = leader(replicas=(1, 2))
    follower, consumer = Waiting(partition, for_log_end=True), Waiting(partition)
    append(partition, 1, 2)
    assert (partition.log.log_end_offset, partition.log.high_watermark) == (2, 0)
    assert (follower.woken, consumer.woken) == (1, 0)


def test_a_high_watermark_that_moves_wakes_no_log_end_watcher():
    partition = leader(replicas=(1, 2))
    append(partition, 1, 2)
    follower, consumer = Waiting(partition, for_log_end=True), Waiting(partition)
    partition.update_follower(2, 2, 0, 0)
    assert partition.log.high_watermark == 2
    assert (follower.woken, consumer.woken) == (0, 1)


def test_alone_an_append_wakes_both_kinds_after_the_high_watermark_moved():
    partition = leader()
    seen = []

    class Seeing(Waiting):
        def wake(self):
            seen.append(partition.log.high_watermark)

    Seeing(partition), Seeing(partition, for_log_end=True)
    append(partition, 1, 2, 3)
    assert seen == [3, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda partition: partition.apply(PartitionMetadata(2, 1, (1, 2), (1, 2)), partition.log),
        lambda partition: partition.take_offline(),
        lambda partition: partition.retire(),
        lambda partition: partition.delete_records(0),
    ],
    ids=["another leader", "offline", "retired", "records deleted"],
)
def test_changes_that_affect_all_requests_wake_both_kinds_of_watchers(change):
    partition = leader(replicas=(1, 2))
    waiting = [Waiting(partition), Waiting(partition, for_log_end=True)]
    change(partition)
    assert [one.woken for one in waiting] == [1, 1]


def test_a_log_end_watcher_that_fails_does_not_fail_the_append(caplog):
    partition = leader(replicas=(1, 2))

    class Failing(Waiting):
        def wake(self):
            raise RuntimeError("broken")

    Failing(partition, for_log_end=True)
    following = Waiting(partition, for_log_end=True)
    assert append(partition, 1).last_offset == 0
    assert following.woken == 1
    assert "please report it" in caplog.text


def test_a_log_that_was_moved_replaces_the_present_one():
    partition = leader()
    append(partition, 1)
    waiting, at_end = Waiting(partition), Waiting(partition, for_log_end=True)
    moved = open_log()
    moved.append_as_follower(partition.read(0, 1000).read(), now_ms=0)
    moved.update_high_watermark(1)
    partition.replace_log(moved)
    assert (waiting.woken, at_end.woken) == (1, 1)
    assert partition.leading_log() is moved
    append(partition, 2)
    assert (moved.log_end_offset, moved.high_watermark) == (2, 2)


def test_an_offline_or_following_partition_does_not_lead_the_log_that_was_moved():
    partition = leader()
    moved = open_log()
    partition.release_log()
    partition.replace_log(moved)
    assert partition.log is None
    follower = Partition("t", b"i" * 16, 0, 1)
    follower.apply(PartitionMetadata(2, 0, (1, 2), (1, 2)), open_log())
    follower.replace_log(moved)
    assert follower.log is moved
    fails(E.NOT_LEADER_OR_FOLLOWER, follower.leading_log)
