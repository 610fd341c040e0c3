import json

import pytest

from odradek.spark_it.dead_letters.topic import create_if_missing
from odradek.spark_it.kafka.requests import ClusterError, MissingTopicsError
from odradek.spark_it.validation.connections import check_connections
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.support import StubCluster, pipeline
from spark_it.tests.unit.test_formats_avro import record

TOPICS = """name = "p"
[source.s]
connector = "topic"
topics = "in"
value.format = "avro"
schema.registry.url = "{url}"
[sink]
connector = "topic"
topic = "out"
key.fields = "a"
key.format = "avro"
value.format = "avro"
value.subject = "others"
schema.registry.url = "{url}"
"""


WRITTEN = """name = "p"
[source.s]
connector = "topic"
topics = "a, b, c"
value.format = "bytes"
[source.more]
connector = "topic"
topics = "d"
value.format = "bytes"
[[transform]]
name = "all"
sql = "SELECT value FROM s UNION ALL SELECT value FROM more"
[sink]
connector = "topic"
topic = "out"
value.format = "bytes"
[errors]
tolerance = "all"
deadletterqueue.topic.name = "dead"
"""


class AnyTopics(StubCluster):
    """A cluster that has every topic."""

    def list_partitions(self, source):
        return [(source.topics[0], 0)]


class SomeTopics(StubCluster):
    """A cluster of `brokers` brokers that has these topics, of one partition each."""

    def __init__(self, *there, brokers=3):
        self._there = [*there]
        self._brokers = brokers
        self.refuses = None

    def list_partitions(self, source):
        missing = [topic for topic in source.topics if topic not in self._there]
        if missing:
            raise MissingTopicsError(missing)
        return [(topic, 0) for topic in source.topics]

    def count_brokers(self):
        return self._brokers

    def create_topic(self, topic, replication_factor):
        if self.refuses:
            raise ClusterError(self.refuses)
        self._there.append(topic)
        self.created = topic, replication_factor


def test_all_topics_that_are_missing_are_named_at_once():
    one = pipeline(WRITTEN)
    lines = []
    with pytest.raises(ClusterError) as missing:
        lines.extend(check_connections(one, SomeTopics("b", brokers=1)))
    key = "errors.deadletterqueue.topic.replication.factor"
    assert str(missing.value) == (
        "topics a, c, d, out do not exist; create them; dead-letter topic dead does not exist: "
        f"{key} is 3, but there is 1 broker; set it to 1 or less, or create the topic"
    )
    with pytest.raises(ClusterError, match=r"^topic out does not exist; create it$"):
        list(check_connections(one, SomeTopics("a", "b", "c", "d", "dead")))
    assert list(check_connections(one, SomeTopics("a", "b", "c", "d", "out")))[3:] == [
        "  source more: topic d exists, 1 partition",
        "  sink: topic out exists, 1 partition",
        "  dead letters: topic dead does not exist yet; a run creates it",
    ]


def test_a_run_creates_the_topic_of_dead_letters():
    group = SomeTopics("a")
    assert create_if_missing(pipeline(WRITTEN), group) and group.created == ("dead", 3)
    assert not create_if_missing(pipeline(WRITTEN), group)
    brokers_own = pipeline(f"{WRITTEN}deadletterqueue.topic.replication.factor = -1\n")
    group = SomeTopics(brokers=1)
    assert create_if_missing(brokers_own, group) and group.created == ("dead", -1)
    group = SomeTopics()
    group.refuses = "cannot create topic dead at x:1: not allowed"
    with pytest.raises(ClusterError, match=r"^dead-letter topic dead does not exist: cannot create .*; create it"):
        create_if_missing(pipeline(WRITTEN), group)
    with pytest.raises(ClusterError, match="factor is 3, but there are 2 brokers; set it to 2 or less, or"):
        create_if_missing(pipeline(WRITTEN), SomeTopics(brokers=2))


def test_subjects_are_looked_up():
    with serving() as registry:
        registry.add(json.dumps(record("int")), "in-value")
        text = TOPICS.format(url=registry.url.replace("http://", "http://me:secret@"))
        assert list(check_connections(pipeline(text), AnyTopics()))[2:] == [
            f"  source s: subject in-value in {registry.url} exists, with schema 1",
            f"  sink: subject others in {registry.url} does not exist yet",
            f"  sink: subject out-key in {registry.url} does not exist yet",
        ]
        registry.user_info = "you:secret"
        with pytest.raises(ClusterError, match=rf"source s: schema registry {registry.url}/.*: 401 Unauthorized"):
            list(check_connections(pipeline(text), AnyTopics()))
