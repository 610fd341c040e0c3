"""Replays of dead letters, against a broker."""

from collections import Counter

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.spark_it.dead_letters.headers import (
    PART_WRITTEN,
    Failure,
    FailureStage,
    RecordOrigin,
    make_error_headers,
    shorten_headers,
)
from odradek.spark_it.dead_letters.replay import ReplayError, replay
from odradek.spark_it.exactly_once import transactions
from odradek.spark_it.exactly_once.transactions import Clients
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.kafka.requests import ClusterError
from spark_it.tests.records import messages, values
from spark_it.tests.unit.support import CONSOLE, pipeline, transform

FAILURE = Failure(FailureStage.VALUE_CONVERTER, "json", "org.apache.kafka.connect.errors.DataException", "not JSON")


class Bench:
    """A pipeline with a source topic and a dead-letter topic of two partitions."""

    def __init__(self, broker, topics, name, folder):
        self.servers = broker.bootstrap_servers
        self.topics = topics
        self.name = name
        self.source = topics.create(f"{name}-in", 2)
        self.dead = topics.create(f"{name}-dlq", 2)
        self.pipeline = pipeline(self.text(), folder=folder)
        self.cluster = KafkaCluster(self.pipeline.settings)

    def text(self, more=""):
        return (
            f'name = "{self.name}"\nbootstrap.servers = "{self.servers}"\n[source.s]\nconnector = "topic"\n'
            f'topics = "{self.source}"\nvalue.format = "bytes"\n{CONSOLE}'
            f'[errors]\ntolerance = "all"\ndeadletterqueue.topic.name = "{self.dead}"\n{more}'
        )

    def die(self, *numbers, partition=0, origin=None, connector=None, headers=(), is_from_topic=True):
        for number in numbers:
            of = origin or RecordOrigin(self.source, partition, number)
            added = make_error_headers(
                of if is_from_topic else None, FAILURE, connector_name=connector or self.name, task_id=0
            )
            self.topics.produce(
                self.dead, [(f"k{number}".encode(), f"v{number}".encode())], partition=partition,
                headers=[*headers, *added],
            )  # fmt: skip

    def replay(self, *, execute=True, **options):
        return list(replay(self.pipeline, self.cluster, execute=execute, **options))

    def back(self):
        return values(self.servers, self.source)

    def group(self):
        at = [(self.dead, 0), (self.dead, 1)]
        return [self.cluster.fetch_committed(f"{self.name}:replay", at).get(one) for one in at]


@pytest.fixture
def bench(broker, topics, unique, tmp_path):
    return Bench(broker, topics, unique, tmp_path)


@pytest.mark.side_by_side
def test_each_record_is_sent_back_once_and_unchanged(bench):
    bench.die(1, headers=[("trace", b"\x00\xff"), ("none", None), ("trace", b"2")])
    bench.die(2, partition=1)
    assert bench.replay() == [f"2 records sent back to topic {bench.source}"]
    found = {message.key(): message for message in messages(bench.servers, bench.source)}
    assert found[b"k1"].value() == b"v1"
    assert found[b"k1"].headers() == [("trace", b"\x00\xff"), ("none", None), ("trace", b"2")]
    assert found[b"k2"].value() == b"v2" and not found[b"k2"].headers()
    assert bench.replay() == [f"{bench.dead} has no records to replay"]
    bench.die(3)
    assert bench.replay() == [f"1 record sent back to topic {bench.source}"]
    assert bench.back() == [b"v1", b"v2", b"v3"]
    assert bench.group() == [2, 1]


def test_without_execute_nothing_is_written(bench):
    bench.die(1, 2)
    assert bench.replay(execute=False) == [
        f"2 records would be sent back to topic {bench.source}", "nothing was written; repeat with --execute to replay",
    ]  # fmt: skip
    assert bench.back() == [] and bench.group() == [None, None]


def test_keys_and_values_that_are_null(bench):
    added = make_error_headers(RecordOrigin(bench.source, 0, 1), FAILURE, connector_name=bench.name, task_id=0)
    bench.topics.produce(bench.dead, [(None, None)], headers=added)
    bench.replay()
    [message] = messages(bench.servers, bench.source)
    assert message.key() is None and message.value() is None


def test_records_of_others_and_records_without_a_source_topic_are_left(bench):
    bench.die(1, connector="another")
    bench.topics.produce(bench.dead, [(b"k", b"no headers")], partition=0)
    bench.die(2, is_from_topic=False)
    bench.die(3, 4, 5, 6, origin=None)
    bench.die(7, origin=RecordOrigin("elsewhere", 0, 7))
    said = bench.replay()
    assert said == [
        f"4 records sent back to topic {bench.source}",
        f"2 records of {bench.dead} skipped: other pipelines or connectors wrote them",
        f"1 record left in {bench.dead}: they were not read from a topic",
        f"  {bench.dead}-0 at offset 2: not JSON",
        f"1 record left in {bench.dead}: they were read from topic elsewhere, which the pipeline does not read",
        f"  {bench.dead}-0 at offset 7: not JSON",
    ]
    assert bench.back() == [b"v3", b"v4", b"v5", b"v6"]


def test_a_dead_letter_that_was_written_twice_is_sent_back_once(bench):
    bench.die(1, 1, 2)
    bench.die(1, partition=1, origin=RecordOrigin(bench.source, 0, 1))
    assert bench.replay() == [
        f"2 records sent back to topic {bench.source}",
        f"2 records of {bench.dead} skipped: they are duplicates",
    ]
    assert bench.back() == [b"v1", b"v2"]


def test_records_are_not_sent_back_again_when_the_offsets_have_expired(bench):
    """An offset that is not committed again expires after a week."""
    bench.die(1, 2)
    bench.die(3, partition=1)
    bench.replay()
    admin = AdminClient({"bootstrap.servers": bench.servers})
    group = f"{bench.name}:replay"
    admin.delete_consumer_groups([group])[group].result(30)
    assert bench.replay() == [f"{bench.dead} has no records to replay"]
    bench.die(4)
    assert bench.replay() == [f"1 record sent back to topic {bench.source}"]
    assert bench.back() == [b"v1", b"v2", b"v3", b"v4"] and bench.group() == [3, None]
    file = bench.pipeline.state_folder / "replayed.json"
    file.write_text(f'{{"{bench.dead}": {{"0": 99, "1": 1}}}}')
    admin.delete_consumer_groups([group])[group].result(30)
    # These positions are of an earlier topic of the same name.
    assert bench.replay(execute=False)[0] == f"3 records would be sent back to topic {bench.source}"
    file.write_text("[]")
    with pytest.raises(ReplayError, match=r"replayed\.json is damaged; restore it from a backup, or delete it"):
        bench.replay()


def test_records_of_which_other_rows_were_written_need_a_decision(bench):
    bench.die(1)
    partly = [(PART_WRITTEN, b"true")]
    bench.die(2, 3, headers=partly)
    undecided = (
        "the sink may contain other rows of 2 records, which a replay would write again: choose --partly-written send "
        "or --partly-written leave"
    )
    assert bench.replay(execute=False) == [
        f"1 record would be sent back to topic {bench.source}", undecided,
        "nothing was written; repeat with --execute to replay",
    ]  # fmt: skip
    with pytest.raises(ReplayError) as refused:
        bench.replay()
    assert str(refused.value) == f"nothing was written: {undecided}"
    assert bench.back() == [] and bench.group() == [None, None]
    assert bench.replay(execute=False, partly_written="leave") == [
        f"1 record would be sent back to topic {bench.source}",
        f"2 records would be left in {bench.dead}: they have other rows, which the sink may contain",
        f"  {bench.dead}-0 at offset 1: not JSON, from {bench.source}-0 at offset 2",
        f"  {bench.dead}-0 at offset 2: not JSON, from {bench.source}-0 at offset 3",
        "nothing was written; repeat with --execute to replay",
    ]
    assert bench.replay(partly_written="send") == [
        f"3 records sent back to topic {bench.source}",
        "  of 2 records of these the sink may contain other rows, now written again",
    ]
    found = messages(bench.servers, bench.source)
    assert sorted(one.value() for one in found) == [b"v1", b"v2", b"v3"] and not any(one.headers() for one in found)


def test_records_that_two_sources_read(bench):
    """One source may have decoded the record that the other one could not."""
    more = f'[source.t]\nconnector = "topic"\ntopics = "{bench.source}"\nvalue.format = "string"\n'
    both = transform("SELECT value FROM s UNION ALL SELECT CAST(value AS BINARY) FROM t")
    bench.pipeline = pipeline(bench.text().replace(CONSOLE, more + both + CONSOLE), folder=bench.pipeline.folder)
    bench.die(1)
    with pytest.raises(ReplayError, match="nothing was written: the sink may contain other rows of 1 record, which"):
        bench.replay()
    assert bench.replay(partly_written="send")[0] == f"1 record sent back to topic {bench.source}"


def test_dead_letters_that_lack_key_and_value_are_left(bench):
    """Sent back without a value, it would delete other records of a compacted topic."""
    bench.die(1)
    added = make_error_headers(RecordOrigin(bench.source, 0, 2), FAILURE, connector_name=bench.name, task_id=0)
    bench.topics.produce(bench.dead, [(None, None)], partition=0, headers=shorten_headers(added))
    assert bench.replay() == [
        f"1 record sent back to topic {bench.source}",
        f"1 record left in {bench.dead}: they were too large for the dead-letter topic and lack key and value",
        f"  {bench.dead}-0 at offset 1: not JSON, from {bench.source}-0 at offset 2",
    ]
    assert bench.back() == [b"v1"]


def test_a_replay_that_fails_continues_at_its_position(bench, monkeypatch):
    bench.die(*range(10))
    write_transaction, calls = transactions.write_transaction, Counter()

    def fails_the_third_time(*arguments):
        calls["write"] += 1
        if calls["write"] == 3:
            raise KeyboardInterrupt
        return write_transaction(*arguments)

    monkeypatch.setattr(transactions, "write_transaction", fails_the_third_time)
    with pytest.raises(KeyboardInterrupt):
        bench.replay(records_per_transaction=3)
    assert len(bench.back()) == 6 and bench.group() == [6, None]
    assert bench.replay(records_per_transaction=3) == [f"4 records sent back to topic {bench.source}"]
    assert bench.back() == sorted(f"v{number}".encode() for number in range(10))


@pytest.mark.side_by_side
def test_the_open_transaction_of_a_killed_replay_is_aborted(bench):
    bench.die(1, 2)
    slot = f"{bench.name}:replay:{bench.dead}-0"
    killed = Clients(bench.servers).make_producer(slot)
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(bench.source, b"v1", b"k1")
    reader = Clients(bench.servers).make_consumer(f"{bench.name}.replay")
    killed.send_offsets_to_transaction([TopicPartition(bench.dead, 0, 2)], reader.consumer_group_metadata(), 30)
    killed.flush()
    reader.close()
    assert bench.replay(execute=False) == [
        f"2 records would be sent back to topic {bench.source}", "nothing was written; repeat with --execute to replay",
    ]  # fmt: skip
    assert bench.replay() == [f"2 records sent back to topic {bench.source}"]
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        killed.commit_transaction(30)
    assert bench.back() == [b"v1", b"v2"] and bench.group() == [2, None]


def test_two_replays_at_once_do_not_write_twice(bench, monkeypatch):
    bench.die(1, 2)
    write_transaction = transactions.write_transaction

    def after_another(*arguments):
        monkeypatch.setattr(transactions, "write_transaction", write_transaction)
        bench.replay()
        return write_transaction(*arguments)

    monkeypatch.setattr(transactions, "write_transaction", after_another)
    with pytest.raises(ReplayError, match="another replay"):
        bench.replay()
    assert bench.back() == [b"v1", b"v2"]


def test_dead_letters_of_aborted_transactions_are_ignored(bench):
    producer = Producer({"bootstrap.servers": bench.servers, "transactional.id": bench.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    added = make_error_headers(RecordOrigin(bench.source, 0, 1), FAILURE, connector_name=bench.name, task_id=0)
    producer.produce(bench.dead, b"aborted", partition=0, headers=[*added])
    producer.flush()
    producer.abort_transaction(30)
    assert bench.replay() == [f"{bench.dead} has no records to replay"]
    bench.die(1)
    assert bench.replay() == [f"1 record sent back to topic {bench.source}"]
    assert bench.back() == [b"v1"]


def test_deleted_dead_letters_do_not_stop_a_replay(bench):
    bench.die(1, 2, 3)
    bench.replay()
    bench.die(4, 5)
    bench.topics.delete_records_before(bench.dead, 0, 4)
    assert bench.replay() == [f"1 record sent back to topic {bench.source}"]
    assert bench.back() == [b"v1", b"v2", b"v3", b"v5"]


def test_pipelines_that_cannot_be_replayed(bench):
    def refused(text):
        with pytest.raises(ReplayError) as error:
            list(replay(pipeline(text), bench.cluster, execute=True))
        return str(error.value)

    without = bench.text().partition("[errors]")[0]
    assert refused(without) == "the pipeline has no errors.deadletterqueue.topic.name"
    key = "deadletterqueue.context.headers.enable"
    reason = "so dead letters have no headers with their origin"
    assert refused(bench.text(f"{key} = false\n")) == f"errors.{key} is false, {reason}"
    missing = bench.text().replace(bench.dead, f"{bench.dead}-missing")
    with pytest.raises(ClusterError, match="missing does not exist"):
        list(replay(pipeline(missing), bench.cluster, execute=True))


def test_no_pipeline_shares_a_group_or_a_transactional_id_with_the_replay_of_another(bench, broker, topics, tmp_path):
    """Not even a pipeline that is named after the replay of the other one."""
    one = bench.pipeline
    groups = {one.name, one.batches_group, one.replay_group}
    for suffix in (".replay", ".batches", "-replay"):
        other = pipeline(bench.text().replace(f'name = "{one.name}"', f'name = "{one.name}{suffix}"'), folder=tmp_path)
        assert groups.isdisjoint({other.name, other.batches_group, other.replay_group})
    assert not any(":" not in group for group in groups - {one.name})
