"""The leader that an error response names (KIP-951)."""

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.protocol.types import ZERO_UUID
from odradek.replication.metadata.image import NO_LEADER
from odradek.server.handlers.records.leaders import LeaderNode, find_leader

ID = b"1" * 16
HOST = "127.0.0.1"


def node(broker_id, epoch):
    return LeaderNode(broker_id, epoch, HOST, 9090 + broker_id, None)


def find(replica, cached, topic_id):
    endpoints = {number: SimpleNamespace(host=HOST, port=9090 + number) for number in (1, 2)}
    brokers = {
        number: SimpleNamespace(broker_id=number, rack=None, endpoint=lambda _, found=found: found)
        for number, found in endpoints.items()
    }
    replicas: Any = SimpleNamespace(
        partitions={} if replica is None else {("t", 0): replica},
        partitions_by_id={} if replica is None else {(ID, 0): replica},
    )
    metadata: Any = SimpleNamespace(
        topics_by_id={ID: SimpleNamespace(name="t")},
        partition=lambda topic, index: cached if (topic, index) == ("t", 0) else None,
        brokers=brokers,
    )
    return find_leader(replicas, metadata, "" if topic_id != ZERO_UUID else "t", topic_id, 0, "PLAINTEXT")


def led(leader, epoch):
    return SimpleNamespace(leader=leader, leader_epoch=epoch)


@pytest.mark.parametrize("topic_id", [ZERO_UUID, ID])
def test_a_replica_comes_before_the_metadata_unless_it_was_stopped(topic_id):
    assert find(None, led(2, 3), topic_id) == node(2, 3)
    assert find(led(1, 4), led(2, 3), topic_id) == node(1, 4)
    assert find(led(NO_LEADER, 2), led(2, 3), topic_id) == node(2, 3)
    assert find(led(NO_LEADER, 2), led(NO_LEADER, 3), topic_id) is None
