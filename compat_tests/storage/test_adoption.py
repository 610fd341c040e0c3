"""Adoption of directories that Apache Kafka wrote, with every cleanup policy and retention, while retention runs."""

import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache_kafka import tools
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients import load
from compat_tests.clients.common import Admin, ConsumerOptions, Message, ProducerOptions, Received, read, wait_until
from odradek.testing import OdradekBroker

pytestmark = pytest.mark.usefixtures("kafka_jars")

CLIENT = load("confluent")
DAY_MS = 86_400_000
RECORDS = 40
SUSPENDED = {"retention.ms": "-1", "retention.bytes": "-1"}

# The configurations in Kafka, and the properties that are added to them so that nothing is deleted.
TOPICS: Mapping[str, tuple[dict[str, str], dict[str, str]]] = {
    "for-ever": ({"retention.ms": "-1"}, {}),
    "compacted": ({"cleanup.policy": "compact", "segment.bytes": "1048576"}, {}),
    "compacted-and-deleted": ({"cleanup.policy": "compact,delete"}, SUSPENDED),
    "compacted-and-kept": ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, {}),
    "sized": ({"retention.bytes": "100000000"}, {"retention.ms": "-1"}),
    "a-year": ({"retention.ms": str(365 * DAY_MS), "cleanup.policy": "delete"}, {}),
    "default": ({}, SUSPENDED),
    "other": ({"max.message.bytes": "2000000"}, SUSPENDED),
    "reborn": ({"retention.ms": "-1"}, {}),
}
INTERNAL = {"cleanup.policy": "compact"}

# Kafka deletes nothing itself, and writes snapshots of its metadata.
KAFKA = {
    "log.initial.task.delay.ms": "3600000",
    "log.retention.check.interval.ms": "3600000",
    "log.cleaner.enable": "false",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
}
QUICK = {
    "log.dirs.adopt": "true",
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "20",
    "log.segment.delete.delay.ms": "20",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0",
}


def is_missing(admin: Admin, topic: str) -> bool:
    return topic not in admin.topics()


def fill(bootstrap: str) -> None:
    """Write month-old records with unique keys; delete one topic, and delete and recreate another."""
    with load("kafka_python").Admin(bootstrap) as admin:
        for name in ("gone", "reborn"):
            admin.create_topic(name, 2, configs={"retention.ms": "5"})
            produce(bootstrap, name)
            admin.delete_topic(name)
        for name, (configs, _) in TOPICS.items():
            wait_until(partial(is_missing, admin, name), what=f"{name} is deleted")
            admin.create_topic(name, 2, configs=configs)
            produce(bootstrap, name)
        admin.set_config("for-ever", "min.compaction.lag.ms", "5")
    arguments = ("--bootstrap-server", bootstrap, "--alter", "--entity-type", "brokers")
    tools.run(tools.CONFIGS, *arguments, "--entity-default", "--add-config", "log.cleaner.threads=2")
    tools.run(tools.CONFIGS, *arguments, "--entity-name", "1", "--add-config", "num.io.threads=9")


def produce(bootstrap: str, topic: str) -> None:
    then_ms = int(time.time() * 1000) - 30 * DAY_MS
    with CLIENT.Producer(bootstrap, ProducerOptions(linger_ms=0)) as producer:
        for partition in range(2):
            producer.produce(
                topic,
                [Message(b"v" * 40_000, b"key %d" % number, (), partition, then_ms) for number in range(RECORDS)],
            )


def everything(bootstrap: str) -> dict[tuple[str, int], list[Received]]:
    found = {}
    with CLIENT.Consumer(bootstrap, ConsumerOptions()) as consumer:
        for topic in TOPICS:
            for partition in range(2):
                start, end = consumer.bounds((topic, partition))
                consumer.assign([(topic, partition)])
                found[topic, partition] = read(consumer, end - start)
    return found


def described(bootstrap: str, kind: str, *entity: str) -> dict[str, dict[str, str]]:
    """Return the dynamic configurations that kafka-configs prints, by entity."""
    arguments = ("--bootstrap-server", bootstrap, "--describe", "--entity-type", kind, *entity)
    found: dict[str, dict[str, str]] = {}
    for line in tools.run(tools.CONFIGS, *arguments).lines:
        heading = re.match(r"(?:Dynamic configs for (?:topic|broker) (\S+)|Default configs for brokers)", line)
        if heading:
            configs = found[heading[1] or ""] = {}
        else:
            name, _, value = line.strip().partition(" sensitive=")[0].partition("=")
            configs[name] = value
    return found


def topic_ids(bootstrap: str) -> dict[str, Any]:
    with load("kafka_python").Admin(bootstrap) as admin:
        return {one["name"]: one["topic_id"] for one in admin._admin.describe_topics() if not one["is_internal"]}


def wait_for_retention(bootstrap: str) -> None:
    """Wait until retention has checked all logs: a topic created after the start then loses its records."""
    with load("kafka_python").Admin(bootstrap) as admin:
        admin.create_topic("witness", 2, configs={"retention.ms": "1000"})
    produce(bootstrap, "witness")
    with CLIENT.Consumer(bootstrap, ConsumerOptions()) as consumer:
        wait_until(lambda: consumer.bounds(("witness", 0))[0] == RECORDS, what="retention")


@pytest.mark.parametrize("clean", [pytest.param(True, id="stopped"), pytest.param(False, id="killed")])
def test_nothing_is_deleted_and_the_configurations_are_those_of_kafka(tmp_path: Path, clean: bool) -> None:
    with ApacheKafkaBroker(KAFKA, directory=tmp_path) as kafka:
        fill(kafka.bootstrap_servers)
        before = everything(kafka.bootstrap_servers)
        ids = topic_ids(kafka.bootstrap_servers)
        configs = described(kafka.bootstrap_servers, "topics")
        default = described(kafka.bootstrap_servers, "brokers", "--entity-default")
        own = described(kafka.bootstrap_servers, "brokers", "--entity-name", "1")
        kafka.stop() if clean else kafka.kill()
    assert default[""]["log.cleaner.threads"] == "2" and own["1"]["num.io.threads"] == "9"
    assert list((tmp_path / "data" / "__cluster_metadata-0").glob("*.checkpoint"))
    with OdradekBroker(QUICK, directory=tmp_path) as broker:
        for _ in range(2):
            bootstrap = broker.bootstrap_servers
            assert topic_ids(bootstrap) == ids
            assert ids.keys() == TOPICS.keys()
            assert described(bootstrap, "topics") == {
                name: {**configs[name], **TOPICS.get(name, ({}, {}))[1]} for name in configs
            }
            assert described(bootstrap, "brokers", "--entity-default") == default
            assert described(bootstrap, "brokers", "--entity-name", "1") == own
            wait_for_retention(bootstrap)
            assert everything(bootstrap) == before
            with load("kafka_python").Admin(bootstrap) as admin:
                admin.delete_topic("witness")
            broker.restart(clean=clean)
        lines = [line for line in broker.log_text().splitlines() if "are suspended" in line]
        assert len(lines) == 1
        assert "count=4: compacted-and-deleted, default, other, sized;" in lines[0]


def test_without_its_metadata_nothing_is_deleted_either(tmp_path: Path) -> None:
    """The broker kept its metadata elsewhere, with Kafka's usual line in server.properties."""
    with ApacheKafkaBroker(KAFKA, directory=tmp_path) as kafka:
        fill(kafka.bootstrap_servers)
        before = everything(kafka.bootstrap_servers)
        ids = topic_ids(kafka.bootstrap_servers)
        kafka.stop()
    (tmp_path / "data" / "__cluster_metadata-0").rename(tmp_path / "elsewhere")
    with OdradekBroker({**QUICK, "log.retention.hours": "168"}, directory=tmp_path) as broker:
        bootstrap = broker.bootstrap_servers
        assert topic_ids(bootstrap) == ids
        everything_is_kept = {"cleanup.policy": "delete", **SUSPENDED}
        configs = described(bootstrap, "topics")
        assert configs.pop("__consumer_offsets", INTERNAL)["cleanup.policy"] == "compact"
        assert configs == dict.fromkeys(TOPICS, everything_is_kept)
        wait_for_retention(bootstrap)
        assert everything(bootstrap) == before
