"""Adoption by broker processes: data directories without a store, moved ones, and directories that are no partition."""

import shutil
import time

import pytest

from odradek.log.storage.filesystem import OsFileSystem
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsRequestDeleteTopicState
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.replication.tests import kraft
from odradek.server.tests.wire import EARLIEST, LATEST, Wire, until
from odradek.testing import BrokerFailedError, OdradekBroker

STORE = "odradek-metadata.db"
DAY_MS = 86_400_000
QUICK = {
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "20",
    "log.segment.delete.delay.ms": "20",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0",
}
ADOPT = {"log.dirs.adopt": "true"}
SUSPENDED = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


def month_ago_ms():
    return int(time.time() * 1000) - 30 * DAY_MS


def fill(wire):
    """Create topics whose records the broker's defaults would delete: old records, and overwritten keys."""
    wire.create_topic("kept", 2, retention_ms=-1)
    wire.create_topic("compacted", cleanup_policy="compact", internal_segment_bytes=1000)
    for number in range(4):
        assert wire.produce("kept", b"%d" % number, partition=1, timestamp_ms=month_ago_ms()).error_code == 0
        assert wire.produce("compacted", b"x" * 300, key=b"%d" % number, timestamp_ms=month_ago_ms()).error_code == 0


def wait_for_retention(wire):
    """Wait until a retention check of all logs has deleted records of a topic that is created for it."""
    wire.create_topic("witness", retention_ms=1, cleanup_policy="delete")
    wire.produce("witness", b"x", timestamp_ms=month_ago_ms())
    until(lambda: wire.offset("witness", EARLIEST) == 1)


def bounds(wire, topic, partition=0):
    return wire.offset(topic, EARLIEST, partition), wire.offset(topic, LATEST, partition)


def topic_configs(wire, topic):
    """The explicit configuration."""
    resource = DescribeConfigsRequestDescribeConfigsResource(resource_type=2, resource_name=topic)
    [result] = wire.ask(DescribeConfigsRequest(resources=[resource])).results
    return {one.name: one.value for one in result.configs if one.config_source == 1}


def topic_id(wire, name):
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    [topic] = wire.ask(request).topics
    return topic.topic_id


def refusal(broker):
    """Start the broker, which must fail. Return the line with the reason."""
    with pytest.raises(BrokerFailedError, match="exit code 1"):
        broker.start()
    lines = [line for line in broker.log_text().splitlines() if "cannot start" in line]
    return lines[-1].partition("cannot start: ")[2]


@pytest.fixture
def broker(tmp_path):
    """A broker on one directory, filled and stopped."""
    with OdradekBroker(QUICK, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            fill(wire)
        broker.stop()
        yield broker


def set_directories(broker, *directories):
    broker.properties["log.dirs"] = ",".join(map(str, directories))


def test_an_empty_directory_listed_first_does_not_hide_the_store(broker, tmp_path):
    set_directories(broker, tmp_path / "new", broker.data_dir)
    for _ in range(2):
        broker.restart()
        with Wire(broker.port) as wire:
            assert topic_configs(wire, "kept") == {"retention.ms": "-1"}
    with Wire(broker.port) as wire:
        wait_for_retention(wire)
        assert bounds(wire, "kept", 1) == bounds(wire, "compacted") == (0, 4)
    assert not (tmp_path / "new" / STORE).exists()


@pytest.mark.parametrize("is_empty_file", [True, False])
def test_partitions_without_a_store_are_adopted_only_on_request(broker, is_empty_file):
    broker.start()
    with Wire(broker.port) as wire:
        ids = {name: topic_id(wire, name) for name in ("kept", "compacted")}
    broker.stop()
    (broker.data_dir / STORE).unlink()
    if is_empty_file:
        (broker.data_dir / STORE).touch()
    line = refusal(broker)
    assert line.startswith(f"log.dirs has partitions, in {broker.data_dir} (3: compacted-0, kept-0, kept-1), but")
    assert "set log.dirs.adopt=true" in line
    broker.properties |= {**ADOPT, "log.retention.hours": "1", "log.cleanup.policy": "compact"}
    broker.start()
    del broker.properties["log.dirs.adopt"]
    broker.restart(clean=False)
    with Wire(broker.port) as wire:
        assert broker.log_text().count("retention and compaction of adopted topics are suspended") == 1
        assert {name: topic_id(wire, name) for name in ids} == ids
        assert topic_configs(wire, "kept") == topic_configs(wire, "compacted") == SUSPENDED
        wait_for_retention(wire)
        assert bounds(wire, "kept", 1) == bounds(wire, "compacted") == (0, 4)


def test_nothing_is_adopted_when_there_is_a_store(broker):
    other = broker.data_dir / "other-0"
    shutil.copytree(broker.data_dir / "kept-1", other)
    broker.properties |= ADOPT
    broker.start()
    with Wire(broker.port) as wire:
        [topic] = wire.metadata("other").topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not other.exists()


def test_two_stores_are_refused(broker, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(broker.data_dir / STORE, other / STORE)
    set_directories(broker, other, broker.data_dir)
    broker.properties |= ADOPT
    assert refusal(broker).startswith(
        f"log.dirs has more than one metadata store, in {other} and in {broker.data_dir}; move"
    )
    # A store that was never written to does not count.
    (other / STORE).unlink()
    (other / STORE).touch()
    broker.start()
    with Wire(broker.port) as wire:
        assert topic_configs(wire, "kept") == {"retention.ms": "-1"}


def test_an_unreadable_directory_may_contain_the_store(broker, tmp_path):
    data, aside = broker.data_dir, tmp_path / "aside"
    set_directories(broker, tmp_path / "other", data)
    shutil.move(data, aside)
    data.write_text("not a directory")
    broker.properties |= ADOPT
    assert refusal(broker) == (
        f"log directory {data} (Not a directory) cannot be read, and no other directory of log.dirs has the metadata "
        "store; repair it, or remove it from log.dirs"
    )
    data.unlink()
    shutil.move(aside, data)
    broker.start()
    with Wire(broker.port) as wire:
        assert bounds(wire, "kept", 1) == (0, 4)


def test_a_topic_deleted_while_its_directory_was_absent_stays_deleted(tmp_path):
    paths = [tmp_path / name for name in ("one", "two")]
    properties = {**QUICK, "log.dirs": ",".join(map(str, paths))}
    with OdradekBroker(properties, directory=tmp_path / "broker") as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("t", 2)
            for index in range(2):
                wire.produce("t", b"secret", partition=index)
        broker.stop()
        [away] = [path.name for path in paths[1].glob("t-*")]
        shutil.move(paths[1], tmp_path / "aside")
        paths[1].write_text("not a directory")
        broker.start()
        with Wire(broker.port) as wire:
            state = DeleteTopicsRequestDeleteTopicState(name="t")
            [answer] = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000)).responses
            assert answer.error_code == 0
        broker.stop()
        paths[1].unlink()
        shutil.move(tmp_path / "aside", paths[1])
        for _ in range(2):
            broker.restart()
            with Wire(broker.port) as wire:
                assert wire.metadata().topics == []
                [stray] = paths[1].glob("*-stray")
                assert stray.name.startswith(f"{away}.")
        assert "as stray" in broker.log_text() and f"directory={paths[1] / away} " in broker.log_text()


@pytest.mark.parametrize("is_adoption", [False, True])
def test_a_directory_with_a_partitions_name_but_no_log_is_left_alone(broker, is_adoption):
    foreign = broker.data_dir / "backup-20240101"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    copy = broker.data_dir / "copy-20240102"
    shutil.copytree(broker.data_dir / "kept-1", copy)
    before = sorted(path.name for path in copy.iterdir())
    if is_adoption:
        (broker.data_dir / STORE).unlink()
        broker.properties |= ADOPT
    broker.start()
    with Wire(broker.port) as wire:
        assert {topic.name for topic in wire.metadata().topics} == {"kept", "compacted"}
        assert bounds(wire, "kept", 1) == (0, 4)
    assert (foreign / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in copy.iterdir()) == before
    assert f"left unchanged count=2: {foreign}, {copy}" in broker.log_text()


def test_the_metadata_of_apache_kafka_may_be_in_its_own_directory(broker, tmp_path):
    broker.start()
    with Wire(broker.port) as wire:
        kept = topic_id(wire, "kept")
    broker.stop()
    (broker.data_dir / STORE).unlink()
    records = [*kraft.topic("kept", kept, 2), kraft.config(kraft.TOPIC, "kept", "retention.ms", "-1")]
    kraft.put_log(OsFileSystem(), records, log_directory=str(tmp_path / "metadata"))
    broker.properties |= {**ADOPT, "metadata.log.dir": str(tmp_path / "metadata")}
    broker.start()
    with Wire(broker.port) as wire:
        assert {topic.name for topic in wire.metadata().topics} == {"kept"}
        assert topic_configs(wire, "kept") == {"retention.ms": "-1"}
    assert len(list(broker.data_dir.glob("compacted-0.*-stray"))) == 1
    # Topics were created since, and the store is lost: Apache Kafka's metadata is out of date, whatever it contains.
    with Wire(broker.port) as wire:
        wire.create_topic("newer")
        wire.produce("newer", b"x")
    broker.stop()
    (broker.data_dir / STORE).unlink()
    broker.start()
    with Wire(broker.port) as wire:
        assert {topic.name for topic in wire.metadata().topics} == {"kept", "newer"}
        assert topic_configs(wire, "kept") == topic_configs(wire, "newer") == SUSPENDED
    assert "metadata of Apache Kafka is ignored" in broker.log_text()


def test_damaged_metadata_of_apache_kafka_is_named(broker):
    (broker.data_dir / STORE).unlink()
    kraft.put(OsFileSystem(), f"{5:020d}.log", b"", log_directory=str(broker.data_dir))
    broker.properties |= ADOPT
    line = refusal(broker)
    assert line.startswith(f"the metadata of Apache Kafka is damaged: {broker.data_dir}/__cluster_metadata-0/")
    assert line.endswith("-0 away to adopt the topics without their configuration, and no ACLs, users and quotas")
