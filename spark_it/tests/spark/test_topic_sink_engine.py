"""Pipelines from topic to topic: repeated batches, restored checkpoints, lost markers, and the lag that Kafka's tool
shows."""

import json
import shutil
import time

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests import limits
from compat_tests.apache_kafka import tools
from odradek.spark_it.execution.runner import RunError
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.state import reset
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock
from spark_it.tests.records import messages, values
from spark_it.tests.spark.engine import Engine, errors, order, orders

PARTITIONS = 3

pytestmark = pytest.mark.timeout(limits.LONG_TEST_S)


class Copies:
    """A pipeline from a topic to another, and its state."""

    def __init__(self, spark, topics, folder, name, more=""):
        self.servers = topics.bootstrap_servers
        self.topics = topics
        self.name = name
        self.source = topics.create(f"{name}-source", PARTITIONS)
        self.target = topics.create(f"{name}-target", 2)
        self.dead = topics.create(f"{name}-dead")
        self.engine = Engine(spark, self.servers, folder, name)
        self.text = orders(self.source, "max.offsets.per.trigger = 600\n") + more + errors(self.dead)
        self.sink = f'[sink]\nconnector = "topic"\ntopic = "{self.target}"\nkey.fields = "id"\n'
        self.made = 0

    def produce(self, count):
        """Produce orders; every hundredth record is not JSON."""
        for partition in range(PARTITIONS):
            numbers = range(self.made, self.made + count)
            made = [(b"k", b"{") if n % 100 == 99 else order(n) for n in numbers if n % PARTITIONS == partition]
            self.topics.produce(self.source, made, partition=partition)
        self.made += count

    def run(self, **options):
        self.engine.run(self.text, self.sink, **options)

    @property
    def pipeline(self):
        return self.engine.pipeline(self.text, self.sink)

    def checkpoint(self):
        lock = read_lock(self.pipeline.state_folder)
        assert lock is not None
        return get_checkpoint_folder(self.pipeline.state_folder, lock)

    def check(self):
        """Check that each good record is in the target once, and each bad one in the dead letters."""
        good = [n for n in range(self.made) if n % 100 != 99]
        found = messages(self.servers, self.target)
        assert sorted(json.loads(one.value())["id"] for one in found) == good
        assert all(one.key() == str(json.loads(one.value())["id"]).encode() for one in found)
        assert values(self.servers, self.dead) == [b"{"] * (self.made - len(good))

    def reset(self, to):
        pipeline, cluster = self.pipeline, KafkaCluster(self.engine.pipeline(self.text, self.sink).settings)
        lock = read_lock(pipeline.state_folder)
        reset.execute_plan(pipeline, reset.plan(pipeline, None, lock, to, cluster, int(time.time() * 1000)), cluster)

    def shown(self):
        """Offset, end and lag of each partition, as kafka-consumer-groups shows them."""
        where = ["--bootstrap-server", self.servers, "--describe", "--group", self.name]
        header, *lines = (
            line.split()
            for line in tools.run(tools.CONSUMER_GROUPS, *where).lines
            if "TOPIC" in line or self.source in line
        )
        rows = [dict(zip(header, line, strict=False)) for line in lines]
        assert {row["TOPIC"] for row in rows} == {self.source}
        names = ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        return {int(row["PARTITION"]): tuple(int(row[name]) for name in names) for row in rows}


@pytest.fixture
def copies(spark, topics, tmp_path, unique):
    return lambda more="": Copies(spark, topics, tmp_path, unique, more)


@pytest.mark.side_by_side
def test_repeated_batches_of_a_topic_and_the_lag_that_kafka_shows(copies):
    made = copies()
    made.produce(1500)
    made.run()
    assert made.engine.counters() == (1500, 1485, 15, 0)
    made.check()
    assert made.shown() == dict.fromkeys(range(PARTITIONS), (500, 500, 0))
    for _ in range(2):
        made.run(rewinds=True)
        made.check()
    made.produce(300)
    assert made.shown() == dict.fromkeys(range(PARTITIONS), (500, 600, 100))
    made.run(rewinds=True)
    made.check()
    assert made.shown() == dict.fromkeys(range(PARTITIONS), (600, 600, 0))


def test_an_older_copy_of_the_checkpoint_and_lost_markers(copies, tmp_path):
    made = copies()
    made.produce(300)
    made.run()
    shutil.copytree(made.checkpoint(), tmp_path / "older")
    made.produce(300)
    made.run()
    made.produce(300)
    shutil.rmtree(made.checkpoint())
    shutil.copytree(tmp_path / "older", made.checkpoint())
    with pytest.raises(RunError, match="the checkpoint is older than the written records; reset --to committed or"):
        made.run()
    made.reset("committed")
    made.run()
    made.check()
    group = made.name
    admin = AdminClient({"bootstrap.servers": made.servers})
    admin.delete_consumer_groups([group])[group].result(30)
    made.produce(300)
    with pytest.raises(RunError, match=r"is gone, expired or deleted.*; reset --to committed or reset"):
        made.run()
    made.reset("committed")
    made.run()
    made.check()


@pytest.mark.side_by_side
def test_repeated_batches_of_two_topics(copies, topics):
    """Rows of several sources are written in batch transactions."""
    made = copies()
    other = topics.create(f"{made.name}-other")
    step = "[[transform]]\nname = \"both\"\nsql = 'SELECT id FROM orders UNION ALL SELECT id FROM others'\n"
    made.text += orders(other).replace("source.orders", "source.others") + step
    made.produce(900)
    topics.produce(other, [order(n) for n in range(10_000, 10_300)])
    expected = sorted([*(n for n in range(900) if n % 100 != 99), *range(10_000, 10_300)])
    made.run()
    for _ in range(2):
        found = sorted(json.loads(value)["id"] for value in values(made.servers, made.target))
        assert found == expected
        assert values(made.servers, made.dead) == [b"{"] * 9
        made.run(rewinds=True)
