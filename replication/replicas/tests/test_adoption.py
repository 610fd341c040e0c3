"""Configurations, ids and leader epochs of adopted topics, on a memory store."""

import logging

import pytest

from odradek.log.storage.found_directories import FoundLog
from odradek.replication.controller.controller import Controller
from odradek.replication.controller.registration import StartError, prepare_store
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.kraft_metadata import KraftMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import run_now
from odradek.replication.metadata.updates import LocalPublisher
from odradek.replication.replicas.adoption import SUSPENDED, Adoption, is_in_progress
from odradek.replication.tests.kraft import BROKER, GROUP, TOPIC, config, framed, topic
from odradek.replication.tests.support import broker

A, B, NEW = bytes(15) + b"a", bytes(15) + b"b", bytes(15) + b"n"
INTERNAL = {"__consumer_offsets": {"cleanup.policy": "compact", "segment.bytes": "5000000"}}
OLD_ONLY = {"retention.ms": "-1", "retention.bytes": "-1"}


class Start:
    """A start of a broker with a new store, or with the store of an earlier start."""

    def __init__(self, kraft_records=None, static=None, server=None, now_ms=0):
        kraft = None
        if kraft_records is not None:
            kraft = KraftMetadata()
            for record in kraft_records:
                kraft.replay(framed(record))
        self.server = server or MemoryMetadataServer()
        self.store = self.server.connect()
        self.image = ClusterMetadata()
        self.controller = Controller(self.store, LocalPublisher(self.image), 1, lambda: now_ms, lambda: 0)
        run_now(prepare_store(self.store, "a-cluster", begins_adoption=True))
        self.adoption = Adoption(self.controller, kraft, static or {})
        self.loading = ClusterMetadata()
        self.adoption.add_kraft_metadata(self.loading)
        run_now(self.controller.start(broker(1)))

    def adopt(self, *found):
        logs = [FoundLog(*(one + (None, -1)[len(one) - 2 :])) for one in found]
        run_now(self.adoption.adopt(logs, lambda: NEW, lambda name: INTERNAL.get(name, {})))
        return self

    def configs(self, name):
        return self.image.topic_configs.get(name, {})


def warnings(caplog, text):
    return [one.message for one in caplog.records if one.levelno == logging.WARNING and text in one.message]


def test_configurations_of_groups_that_are_not_adopted_are_named(caplog):
    records = [*topic("t", A), config(GROUP, "billing", "consumer.session.timeout.ms", "50000")]
    records += [config(GROUP, "gone", "a", "b"), config(GROUP, "gone", "a", None)]
    Start(records).adopt(("t", 0, A))
    [line] = warnings(caplog, "configurations of groups")
    assert line.endswith("which this broker does not have count=1: billing")


# Without Apache Kafka's metadata


def test_topics_are_those_of_the_directories_and_keep_everything(caplog):
    start = Start(static={"log.retention.hours": "1", "log.cleanup.policy": "compact"})
    start.adopt(("t", 2, A, 4), ("t", 0, A, 7), ("u", 0))
    topics = start.image.topics
    assert (topics["t"].topic_id, topics["u"].topic_id) == (A, NEW)
    assert [one.leader_epoch for one in topics["t"].partitions] == [8, 0, 5]
    assert {one.replicas for one in topics["t"].partitions} == {(1,)}
    # The broker's defaults do not matter: the topic may have had another configuration.
    assert start.configs("t") == start.configs("u") == SUSPENDED
    [line] = warnings(caplog, "suspended")
    assert "count=2: t, u; set retention.ms" in line


@pytest.mark.parametrize("kraft_records", [None, [*topic("__transaction_state", A, partitions=2), *topic("t", B)]])
def test_the_coordinators_epochs_are_above_those_of_all_markers(kraft_records):
    """A coordinator led in epoch 7 and wrote markers, but no record of its own."""
    start = Start(kraft_records)
    names = "__transaction_state", "t"
    logs = [FoundLog(names[0], 1, A, latest_epoch=5), FoundLog(names[1], 0, B, latest_epoch=2, coordinator_epoch=7)]
    run_now(start.adoption.adopt(logs, lambda: NEW, lambda name: {}))
    epochs = {name: [one.leader_epoch for one in start.image.topics[name].partitions] for name in names}
    assert epochs == {"__transaction_state": [8, 8], "t": [3]}


def test_epochs_begin_at_the_present_minute_since_earlier_ones_may_have_left_no_trace():
    start = Start(now_ms=30 * 60_000).adopt(("t", 2, A, 40), ("t", 0, A, 7), ("__transaction_state", 0, B, 2))
    assert [one.leader_epoch for one in start.image.topics["t"].partitions] == [30, 30, 41]
    assert start.image.topics["__transaction_state"].partitions[0].leader_epoch == 30


def test_epochs_of_kafkas_metadata_are_certain():
    start = Start(topic("t", A, partitions=2, leader_epoch=5), now_ms=30 * 60_000).adopt(("t", 0, A, 7))
    assert [one.leader_epoch for one in start.image.topics["t"].partitions] == [8, 6]


def test_internal_topics_keep_their_own_configuration(caplog):
    start = Start().adopt(("__consumer_offsets", 1, A))
    assert start.configs("__consumer_offsets") == INTERNAL["__consumer_offsets"]
    assert warnings(caplog, "suspended") == []


def test_a_copy_of_a_partition_is_not_taken_for_a_topic():
    start = Start()
    with pytest.raises(StartError, match="directories of topics backup and t have the same topic id"):
        start.adopt(("t", 0, A), ("backup", 1, A))
    assert start.image.topics == {}


def test_many_topics_make_one_short_warning(caplog):
    Start().adopt(*((f"t{number:03d}", 0, bytes([number] * 16)) for number in range(1, 200)))
    [line] = warnings(caplog, "suspended")
    assert "count=199: t001, " in line and "t010 and 189 more; set" in line


# With it


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ({}, OLD_ONLY),
        ({"segment.bytes": "2000000"}, OLD_ONLY),
        ({"retention.ms": "-1"}, {}),
        ({"retention.ms": "1000"}, {}),
        ({"retention.bytes": "1000"}, {"retention.ms": "-1"}),
        ({"cleanup.policy": "compact"}, {}),
        ({"cleanup.policy": "delete"}, OLD_ONLY),
        ({"cleanup.policy": "compact,delete"}, OLD_ONLY),
        ({"cleanup.policy": "compact, delete", "retention.ms": "5"}, {}),
        ({"cleanup.policy": ""}, {}),
    ],
)
def test_retention_that_is_not_configured_is_suspended(own, added, caplog):
    records = [*topic("t", A), *(config(TOPIC, "t", name, value) for name, value in own.items())]
    start = Start(records).adopt(("t", 0, A))
    assert start.configs("t") == {**own, **added}
    assert len(warnings(caplog, "suspended")) == bool(added)
    assert start.loading.topic_configs.get("t", {}) == own


@pytest.mark.parametrize(
    ("static", "dynamic", "added"),
    [
        ({"log.retention.hours": "5"}, {}, {}),
        ({}, {"log.retention.ms": "5"}, {}),
        ({"log.retention.bytes": "5"}, {}, {"retention.ms": "-1"}),
        ({"log.cleanup.policy": "compact"}, {}, {}),
        ({"log.cleanup.policy": "compact"}, {"log.cleanup.policy": "delete"}, OLD_ONLY),
    ],
)
def test_retention_may_be_configured_for_the_broker(static, dynamic, added):
    records = [*topic("t", A), *(config(BROKER, "", name, value) for name, value in dynamic.items())]
    assert Start(records, static).adopt(("t", 0, A)).configs("t") == added


def test_ids_partitions_and_epochs_are_those_of_the_metadata(caplog):
    records = [
        *topic("t", A, partitions=3, leader_epoch=5),
        *topic("elsewhere", B, replicas=(2, 3)),
        config(BROKER, "", "log.cleaner.threads", "2"),
        config(BROKER, "1", "log.cleaner.threads", "3"),
        config(BROKER, "2", "log.cleaner.threads", "4"),
    ]
    start = Start(records).adopt(("t", 0, A, 9), ("t", 2, A, 1))
    assert list(start.image.topics) == list(start.loading.topics) == ["t"]
    assert start.image.topics["t"].topic_id == A
    assert [one.leader_epoch for one in start.image.topics["t"].partitions] == [10, 6, 6]
    configs = {None: {"log.cleaner.threads": "2"}, 1: {"log.cleaner.threads": "3"}}
    assert start.image.broker_configs == start.loading.broker_configs == configs
    [line] = warnings(caplog, "without a directory")
    assert "count=1: t-1" in line


def test_a_partition_that_the_metadata_has_on_another_broker_is_not_served():
    records = [*topic("t", A), *topic("t", A, partitions=2, replicas=(2,))[2:]]
    adoption = Start(records).adoption
    assert [adoption.has_partition("t", index) for index in range(3)] == [True, False, False]


def test_transactions_need_no_more_replicas_than_there_are():
    records = [*topic("__consumer_offsets", A), config(TOPIC, "__consumer_offsets", "min.insync.replicas", "2")]
    start = Start(records).adopt(("__consumer_offsets", 0, A))
    assert start.configs("__consumer_offsets") == {**INTERNAL["__consumer_offsets"], "min.insync.replicas": "1"}


# Crashes


def test_an_adoption_that_was_interrupted_is_continued():
    start = Start()
    assert run_now(is_in_progress(start.store))
    start.adopt(("t", 0, A))
    start.server.expire(start.store)
    again = Start(server=start.server)
    assert run_now(is_in_progress(again.store))
    again.adopt(("t", 0, A), ("u", 0, B))
    assert {name: one.topic_id for name, one in again.image.topics.items()} == {"t": A, "u": B}
    run_now(again.adoption.finish())
    assert not run_now(is_in_progress(again.store))


def test_partitions_found_later_are_added_to_a_topic_adopted_before():
    """The first start had a directory less in log.dirs."""
    start = Start(now_ms=30 * 60_000).adopt(("t", 0, A))
    start.server.expire(start.store)
    again = Start(server=start.server).adopt(("t", 0, A), ("t", 2, A, 40))
    assert [one.leader_epoch for one in again.image.topics["t"].partitions] == [30, 0, 41]
    loaded = ClusterMetadata()
    run_now(load_image(again.store, loaded))
    assert loaded.topics == again.image.topics


def test_partitions_of_another_topic_are_not_added():
    start = Start().adopt(("t", 0, A))
    start.server.expire(start.store)
    again = Start(server=start.server)
    with pytest.raises(StartError, match=r"directory of t-1 has another topic id than topic t, .* out of log.dirs"):
        again.adopt(("t", 0, A), ("t", 1, B))
    assert len(again.image.topics["t"].partitions) == 1


def test_an_existing_store_has_no_adoption_in_progress():
    server = MemoryMetadataServer()
    store = server.connect()
    run_now(prepare_store(store, "a-cluster"))
    run_now(prepare_store(store, "a-cluster", begins_adoption=True))
    assert not run_now(is_in_progress(store))
