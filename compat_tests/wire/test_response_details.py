"""Details of responses that clients rarely use: the same from Odradek and from Apache Kafka."""

from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.bad_frames import batch
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
)
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.messages.list_groups import ListGroupsRequest
from odradek.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.server.tests.wire import Wire, until

pytestmark = pytest.mark.side_by_side

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@pytest.fixture
def wire(broker: Any) -> Iterator[Wire]:
    with Wire(broker.port) as made:
        yield made


def test_the_newest_versions(wire):
    versions = {row.api_key: row.max_version for row in wire.ask(ApiVersionsRequest(), 0).api_keys}
    init_producer_id, describe_configs, metadata = 22, 32, 3
    assert [versions[key] for key in (init_producer_id, describe_configs, metadata)] == [5, 4, 13]


@pytest.mark.parametrize(("version", "message"), [(1, "NONE"), (2, "NONE"), (3, "NONE"), (4, ""), (6, "")])
def test_find_coordinator_without_error(wire, version, message):
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])

    def found():
        answer = wire.ask(request, version)
        row = answer.coordinators[0] if version >= 4 else answer
        return row if row.error_code == 0 else None

    assert until(found).error_message == message


def test_describe_configs(wire, topic):
    resources = [
        DescribeConfigsRequestDescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((TOPIC_RESOURCE, topic), (BROKER_RESOURCE, ""))
    ]
    results = wire.ask(DescribeConfigsRequest(resources=resources), 4).results
    assert [(row.error_code, row.error_message) for row in results] == [(0, ""), (0, "")]


def test_the_type_of_a_classic_group(wire, topic, unique):
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=unique,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    until(lambda: wire.ask(FindCoordinatorRequest(key=unique), 3).error_code == 0)
    until(lambda: wire.ask(request, 9).topics[0].partitions[0].error_code == 0)
    for types in ([], ["classic"], ["Classic"], ["CLASSIC"]):
        answer = wire.ask(ListGroupsRequest(types_filter=types), 5)
        assert {group.group_id: group.group_type for group in answer.groups}[unique] == "classic", types
    assert unique not in {group.group_id for group in wire.ask(ListGroupsRequest(types_filter=["consumer"]), 5).groups}


NO_OFFSET = -1
INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, OUT_OF_ORDER = 87, 2, 10, 32, 45
UNKNOWN_TOPIC, INVALID_REQUIRED_ACKS = 3, 21


def test_the_log_start_of_a_refused_batch(wire, admin, unique):
    admin.create_topic(unique, partitions=1, configs={"cleanup.policy": "compact", "max.message.bytes": "1000"})
    until(lambda: wire.produce(unique, b"x", timestamp_ms=1).error_code == 0)
    good = batch([(b"k", b"v")])
    cases = {
        "no key in a compacted topic": (batch([(None, b"v")]), INVALID_RECORD, 0),
        "a base offset": (b"\0" * 7 + b"\1" + good[8:], INVALID_RECORD, 0),
        "two batches": (good + good, INVALID_RECORD, NO_OFFSET),
        "no batch": (good[:30], INVALID_RECORD, NO_OFFSET),
        "a wrong checksum": (good[:-1] + b"\x55", CORRUPT_MESSAGE, NO_OFFSET),
        "too large": (batch([(b"k", b"v" * 2000)]), MESSAGE_TOO_LARGE, NO_OFFSET),
    }
    found = {}
    for what, (sent, _, _) in cases.items():
        row = wire.produce(unique, batch=sent)
        found[what] = (row.error_code, row.base_offset, row.log_start_offset)
    assert found == {what: (code, NO_OFFSET, start) for what, (_, code, start) in cases.items()}
    row = wire.produce(unique, b"x", acks=5)
    assert (row.error_code, row.log_start_offset) == (INVALID_REQUIRED_ACKS, NO_OFFSET)
    row = wire.produce(unique, b"x", partition=7)
    assert (row.error_code, row.log_start_offset) == (UNKNOWN_TOPIC, NO_OFFSET)
