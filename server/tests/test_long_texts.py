"""Errors about texts of the greatest length are answered in each version, together with the results of successes."""

import pytest

from odradek.protocol.errors import MAX_MESSAGE_LENGTH, ErrorCode, KafkaError, shorten
from odradek.protocol.messages.create_topics import CreateTopicsRequest
from odradek.protocol.messages.describe_groups import DescribeGroupsRequest
from odradek.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from odradek.replication.controller.admin.tests.test_config_admin import SET, TOPIC, resources
from odradek.replication.controller.admin.tests.test_topic_admin import new
from odradek.server.tests.faults.test_group_restart import await_coordinator
from odradek.server.tests.wire import Wire
from odradek.testing import OdradekBroker

LONG = "n" * 32_760


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker() as started:
        with Wire(started.port) as wire:
            wire.create_topic("t")
        yield started


@pytest.fixture
def wire(broker):
    with Wire(broker.port) as connected:
        yield connected


@pytest.mark.parametrize("version", [4, 7])
def test_a_topic_with_a_long_name_is_refused_and_another_created(wire, version):
    request = CreateTopicsRequest(topics=[new(LONG), new(f"good-{version}")], timeout_ms=10_000)
    results = {topic.name: topic for topic in wire.ask(request, version).topics}
    assert results[f"good-{version}"].error_code == ErrorCode.NONE
    assert results[LONG].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert results[LONG].error_message.endswith("has more than 249 characters")


@pytest.mark.parametrize("version", [0, 1])
def test_a_long_value_is_refused(wire, version):
    request = IncrementalAlterConfigsRequest(resources=resources((TOPIC, "t", [("retention.ms", SET, LONG)])))
    [result] = wire.ask(request, version).responses
    assert result.error_code == ErrorCode.INVALID_CONFIG


def test_a_long_group_id_is_answered(wire):
    await_coordinator(wire, "short")
    await_coordinator(wire, LONG)
    [group] = wire.ask(DescribeGroupsRequest(groups=[LONG]), 6).groups
    assert (group.group_id, group.error_code) == (LONG, ErrorCode.GROUP_ID_NOT_FOUND)
    assert group.error_message.endswith("not found.")


def test_a_long_message_is_shortened_in_its_middle():
    message = f"the value {LONG} is not good"
    error = KafkaError(ErrorCode.INVALID_REQUEST, message)
    assert error.message == shorten(message)
    assert len(error.message) <= MAX_MESSAGE_LENGTH
    assert error.message.startswith("the value nnn")
    assert error.message.endswith("nnn is not good")
    assert shorten("x" * MAX_MESSAGE_LENGTH) == "x" * MAX_MESSAGE_LENGTH
