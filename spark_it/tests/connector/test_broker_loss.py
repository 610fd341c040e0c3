"""Queries and a pipeline on three brokers, one of which is killed: none fails, and each row is written once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars
from compat_tests.clients.common import wait_until
from spark_it.tests.connector.test_streaming import AVAILABLE_NOW, QUICKLY
from spark_it.tests.data import Topics, digest, digest_of, rows, rows_in_spark
from spark_it.tests.kafka_frames import KafkaFrames, finish, has_read, wait_for
from spark_it.tests.records import values

ROOT = Path(__file__).parents[3]
PARTITIONS = 3
RESTARTED = "a source's broker is unavailable"
"""Part of the message of a pipeline whose query failed and is started again."""


@pytest.fixture
def cluster(odradek_cluster):
    return odradek_cluster


@pytest.fixture
def topics(cluster):
    return Topics(cluster.bootstrap_servers)


def test_streams_and_batches_while_a_broker_is_killed(spark, cluster, topics, unique, tmp_path):
    source, copied, written = (
        topics.create(f"{unique}-{name}", PARTITIONS, replicas=3) for name in ("source", "copied", "written")
    )
    with KafkaFrames(spark, cluster.bootstrap_servers, tmp_path) as kafka:
        stream = kafka.read_stream(source).select("key", "value")
        queries = [
            kafka.to_parquet(stream, "parquet-checkpoint", QUICKLY),
            kafka.write_stream(stream, copied, "kafka-checkpoint", QUICKLY),
        ]

        def process(start):
            # Without idempotence a batch whose leader moves before its acknowledgement is written twice, as in Kafka.
            topics.produce(source, rows(500, start=start), enable_idempotence=True)
            for query in queries:
                wait_for(query, has_read(query, start + 500))

        process(0)
        killed = topics.leader(source, 0)
        cluster.kill(killed)
        process(500)
        kafka.write(rows_in_spark(spark, 500), written)
        assert digest(kafka.read(written)) == digest_of(rows(500))
        cluster.start_broker(killed)
        process(1000)
        for query in queries:
            query.stop()
        assert finish(kafka.to_parquet(stream, "parquet-checkpoint", AVAILABLE_NOW)) == []
        assert finish(kafka.write_stream(stream, copied, "kafka-checkpoint", AVAILABLE_NOW)) == []
        for found in (kafka.parquet(), kafka.read(copied)):
            assert digest(found) == digest_of(rows(1500))


class Pipeline:
    """A process that runs a pipeline from a topic to another, exactly once; it is killed at the end of the context."""

    def __init__(self, folder, servers, source, target):
        self._folder = folder
        self._output = folder / "output"
        self._file = folder / "pipeline.toml"
        self._file.write_text(
            f"""
name = "copied"
bootstrap.servers = "{servers}"
trigger = "1 millisecond"
master = "local[1]"
plugin.path = "{jars.spark_connector_jars()[0].parent}"
[source.texts]
connector = "topic"
topics = "{source}"
value.format = "string"
[sink]
connector = "topic"
topic = "{target}"
value.format = "string"
""",
            "utf-8",
        )

    def __enter__(self):
        with open(self._output, "wb") as output:
            self._process = processes.start(
                [sys.executable, "-m", "odradek", "pipeline", "run", str(self._file)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "SPARK_LOCAL_DIRS": str(self._folder)},
            )
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def output(self):
        return self._output.read_text("utf-8")

    def wait_until(self, condition):
        def is_met():
            assert self._process.poll() is None, self.output()
            return condition()

        wait_until(is_met, limits.READ_S, self.output)

    def stop(self):
        """Stop the pipeline after its batch; return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(limits.READ_S)


def test_a_pipeline_while_a_broker_is_killed(cluster, topics, unique, tmp_path):
    source, target = (topics.create(f"{unique}-{name}", PARTITIONS, replicas=3) for name in ("source", "target"))
    expected = []

    def process(count):
        made = [b"%08d" % number for number in range(len(expected), len(expected) + count)]
        topics.produce(source, ((None, value) for value in made), enable_idempotence=True)
        expected.extend(made)
        pipeline.wait_until(lambda: len(values(cluster.bootstrap_servers, target)) >= len(expected))

    with Pipeline(tmp_path, cluster.bootstrap_servers, source, target) as pipeline:
        process(300)
        killed = topics.leader(target, 0)
        cluster.kill(killed)
        process(300)
        cluster.start_broker(killed)
        process(300)
        assert pipeline.stop() == 0
    assert RESTARTED not in pipeline.output()
    assert values(cluster.bootstrap_servers, target) == expected
