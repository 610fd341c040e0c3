"""Pipelines for tests, from the text of their files."""

from pathlib import Path
from typing import Any

from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import parse
from odradek.spark_it.kafka.requests import ClusterRequests
from odradek.spark_it.validation.report import validate

SOURCE = """
name = "orders"
[source.orders]
connector = "topic"
topics = "orders"
value.schema = "order_id BIGINT, amount DECIMAL(12,2), placed TIMESTAMP"
"""
CONSOLE = '[sink]\nconnector = "console"\n'
TOPIC = '[sink]\nconnector = "topic"\ntopic = "out"\n'

UNUSED: Any = None
"""An argument that the tested code does not use, such as a Spark session."""


class StubCluster(ClusterRequests):
    """A cluster that permits no request. A fake overrides the requests that its tests expect."""

    def list_partitions(self, source):
        raise AssertionError("unexpected request")

    def count_brokers(self):
        raise AssertionError("unexpected request")

    def create_topic(self, topic, replication_factor):
        raise AssertionError("unexpected request")

    def fetch_topic_ids(self, topics):
        raise AssertionError("unexpected request")

    def fetch_earliest(self, partitions):
        raise AssertionError("unexpected request")

    def fetch_latest(self, partitions):
        raise AssertionError("unexpected request")

    def fetch_stable_ends(self, partitions):
        raise AssertionError("unexpected request")

    def fetch_offsets_at(self, partitions, timestamp_ms):
        raise AssertionError("unexpected request")

    def fetch_committed(self, group, partitions):
        raise AssertionError("unexpected request")

    def commit(self, group, offsets, metadata=""):
        raise AssertionError("unexpected request")

    def fetch_offsets_retention_ms(self):
        raise AssertionError("unexpected request")


def transform(sql, name="step"):
    return f"[[transform]]\nname = \"{name}\"\nsql = '''{sql}'''\n"


def pipeline(text, environment=None, folder=Path("/pipelines")):
    return parse(text, environment or {}, file="p.toml", folder=folder)


def problems(text, **options):
    """The problems of a pipeline, one in a line, without the file's name."""
    try:
        validate(pipeline(text, **options))
    except PipelineError as error:
        return [line.removeprefix("p.toml:") for line in str(error).split("\n")]
    return []


def messages(text, **options):
    return [line.split(": ", 1)[1] for line in problems(text, **options)]
