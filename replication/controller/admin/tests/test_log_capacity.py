"""Partitions whose logs cannot be opened are refused before they are acknowledged."""

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.log_capacity import LogCapacity
from odradek.replication.controller.admin.tests.test_topic_admin import create, grow, new
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster


def cluster_with(spare: int) -> Cluster:
    cluster = Cluster(static={"offsets.topic.num.partitions": "7"})
    cluster.logs.fs.spare = spare
    cluster.topics._capacity = LogCapacity(1, cluster.logs.fs.spare_descriptors)
    return cluster


def test_topics_of_a_request_share_the_descriptors():
    cluster = cluster_with(5)
    results = create(cluster, new("a", 3), new("b", 3), new("c", 2), new("d", 1))
    assert [result.error_code for result in results] == [0, ErrorCode.POLICY_VIOLATION, 0, ErrorCode.POLICY_VIOLATION]
    assert results[1].error_message == (
        "topic b needs 3 open files for its new partitions and the broker may open 2 more: raise the limit of open "
        "files (ulimit -n) or create fewer partitions"
    )
    assert sorted(cluster.image.topics) == ["a", "c"]


def test_a_validation_returns_the_same_error_and_claims_nothing():
    cluster = cluster_with(5)
    assert [result.error_code for result in create(cluster, new("a", 3), new("b", 3), validate_only=True)] == [0, 44]
    assert [result.error_code for result in create(cluster, new("a", 5))] == [0]


def test_added_partitions_are_refused():
    cluster = cluster_with(3)
    create(cluster, new("a", 3))
    cluster.logs.fs.spare = 2
    assert grow(cluster, ("a", 6)) == {"a": ErrorCode.POLICY_VIOLATION}
    assert len(cluster.image.topics["a"].partitions) == 3
    assert grow(cluster, ("a", 5)) == {"a": 0}


def test_an_internal_topic_is_refused_with_a_line_in_the_log(caplog):
    cluster = cluster_with(6)
    errors = run_now(cluster.topics.auto_create(["__consumer_offsets"]))
    assert errors["__consumer_offsets"].code == ErrorCode.POLICY_VIOLATION
    assert "__consumer_offsets needs 7 open files" in caplog.text


def test_claimed_descriptors_are_reserved_until_the_logs_are_open():
    partitions = create_partitions(3)
    capacity = LogCapacity(1, lambda: 5)
    with capacity.claims() as claim:
        claim("a", partitions)
        with capacity.claims() as other, pytest.raises(KafkaError):
            other("b", partitions)
    with capacity.claims() as claim:
        claim("b", partitions)


def create_partitions(count):
    cluster = Cluster()
    create(cluster, new("t", count))
    return cluster.image.topics["t"].partitions
