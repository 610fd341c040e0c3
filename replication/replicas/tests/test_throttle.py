"""Throttles of replication: the rate, the throttled replicas, the limit."""

import pytest

from odradek.replication.controller.admin.tests.test_topic_admin import create, new
from odradek.replication.metadata.store import run_now
from odradek.replication.replicas.throttle import (
    FOLLOWER,
    LEADER,
    DirectoryMoveThrottle,
    RateMeter,
    ReplicationThrottle,
)
from odradek.replication.tests.support import Cluster


class Clock:
    now_ms = 100_000

    def __call__(self):
        return self.now_ms


def test_the_rate_over_the_windows():
    clock = Clock()
    meter = RateMeter(clock, 11, 1000)
    assert meter.measure() == 0
    meter.record(500)
    assert meter.measure() == 500
    clock.now_ms += 900
    meter.record(500)
    assert meter.measure() == 1000
    clock.now_ms += 1100
    assert meter.measure() == 500
    meter.record(1000)
    assert meter.measure() == 1000
    clock.now_ms += 8999
    assert meter.measure() == pytest.approx(2000 / 10.999)
    clock.now_ms += 1
    assert meter.measure() == pytest.approx(1000 / 9)
    clock.now_ms += 2000
    assert meter.measure() == 0


def make(role, **rates):
    cluster = Cluster()
    clock = Clock()
    create(cluster, new("t", 3), new("u", 3))
    throttle = ReplicationThrottle(role, 1, cluster.configs, clock)
    return cluster, clock, throttle


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_throttled_replicas(role):
    cluster, _, throttle = make(role)
    name = f"{role}.replication.throttled.replicas"

    def throttled():
        return [index for index in range(3) if throttle.is_throttled("t", index)]

    assert throttled() == []
    run_now(cluster.controller.put_topic_config("t", {name: "0:1,1:2,2:1,"}))
    assert throttled() == [0, 2]
    assert not throttle.is_throttled("u", 0)
    run_now(cluster.controller.put_topic_config("t", {name: "*"}))
    assert throttled() == [0, 1, 2]
    run_now(cluster.controller.put_topic_config("t", {}))
    assert throttled() == []


def test_the_limit_is_a_dynamic_property():
    cluster, clock, throttle = make(LEADER)
    run_now(cluster.controller.put_topic_config("t", {"leader.replication.throttled.replicas": "0:1"}))
    throttle.record("t", 0, 10_000)
    assert not throttle.is_exceeded("t", 0)
    run_now(cluster.controller.put_broker_config(None, {"leader.replication.throttled.rate": "1000"}))
    assert not throttle.is_exceeded("t", 0)
    throttle.record("t", 1, 10_000)
    throttle.record("u", 0, 10_000)
    assert not throttle.is_exceeded("t", 0)
    throttle.record("t", 0, 10_000)
    assert [throttle.is_exceeded("t", index) for index in (0, 1)] == [True, False]
    clock.now_ms += 10_000
    assert not throttle.is_exceeded("t", 0)
    throttle.record("t", 0, 1)
    assert throttle.is_exceeded("t", 0)
    run_now(cluster.controller.put_broker_config(1, {"leader.replication.throttled.rate": "2000"}))
    assert not throttle.is_exceeded("t", 0)


def test_moves_between_directories_share_a_limit():
    cluster, clock = Cluster(), Clock()
    throttle = DirectoryMoveThrottle(lambda: cluster.configs.current, clock)
    throttle.record(10_000)
    assert not throttle.is_exceeded()
    run_now(
        cluster.controller.put_broker_config(1, {"replica.alter.log.dirs.io.max.bytes.per.second": "1000"})
    )
    assert not throttle.is_exceeded()
    throttle.record(10_000)
    assert throttle.is_exceeded()
    clock.now_ms += 10_000
    assert not throttle.is_exceeded()
