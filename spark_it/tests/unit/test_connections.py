import json

import pytest

from odradek.spark_it.connections import found
from odradek.spark_it.group import ClusterError
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.support import pipeline
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


class AnyTopics:
    """Each topic is there."""

    def partitions(self, source):
        return [(source.topics[0], 0)]


def test_subjects_are_looked_up():
    with serving() as registry:
        registry.add(json.dumps(record("int")), "in-value")
        text = TOPICS.format(url=registry.url.replace("http://", "http://me:secret@"))
        assert list(found(pipeline(text), AnyTopics()))[2:] == [
            f"  source s: subject in-value in {registry.url} is there, with schema 1",
            f"  sink: subject others in {registry.url} is not there yet",
            f"  sink: subject out-key in {registry.url} is not there yet",
        ]
        registry.user_info = "you:secret"
        with pytest.raises(ClusterError, match=rf"source s: schema registry {registry.url}/.*: 401 Unauthorized"):
            list(found(pipeline(text), AnyTopics()))
