"""The request log: threshold, waits that clients ask for, fields, and the bound on lines."""

import json
import logging
import re

import pytest
from twisted.internet.task import Clock

from odradek.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from odradek.protocol.messages.metadata import MetadataRequest
from odradek.replication.controller.admin.tests.test_config_admin import BROKER, DELETE, LOGGER, SET, resources
from odradek.server.event_log.json_lines import JsonFormatter
from odradek.server.event_log.request_log import (
    MAX_COMPLETED_AT_ONCE,
    MAX_COMPLETED_PER_S,
    MAX_SLOW_PER_S,
    WAITING_APIS,
    RequestLog,
    StageTimes,
)
from odradek.server.request import RequestContext
from odradek.server.security.principal import Principal
from odradek.server.tests.wire import Wire, request_frame, until
from odradek.server.work.delayed_tasks import DelayedTasks
from odradek.testing import OdradekBroker

FAST = StageTimes(0.0, 0.001, 0.0, 0.0, 0.0)


class Setup:
    def __init__(self):
        self.clock = Clock()
        self.log = RequestLog(lambda: int(self.clock.seconds() * 1000), DelayedTasks(self.clock).run_later)
        self.context = RequestContext("10.0.0.7", "SASL", principal=Principal("User", "alice"))
        self.context.client_id = "billing"
        self.context.client_software = ("java", "4.3.0")

    def record(self, *times, api="Produce"):
        self.log.record(api, 12, self.context, StageTimes(*times))


@pytest.fixture
def setup():
    return Setup()


def test_by_default_no_request_is_slow(setup, caplog):
    setup.record(0, 1e9, 0, 0, 0)
    setup.log.set_threshold(1)
    setup.log.set_threshold(-1)
    setup.record(0, 1e9, 0, 0, 0)
    assert caplog.messages == []


@pytest.mark.parametrize("stage", range(5))
def test_a_request_is_slow_from_the_threshold_on_in_any_stage(setup, caplog, stage):
    setup.log.set_threshold(250)
    times = [0.0] * 5
    times[stage] = 0.249
    setup.record(*times)
    assert caplog.messages == []
    times[stage] = 0.25
    setup.record(*times)
    assert len(caplog.messages) == 1


def test_a_line_has_the_stages_and_the_client(setup, caplog):
    setup.log.set_threshold(0)
    setup.record(0.0001, 0.0012, 0.8109, 0.00004, 2)
    assert caplog.messages == [
        'slow request api=Produce version=12 client=/10.0.0.7 client_id="billing" principal="User:alice" listener=SASL '
        'client_software="java 4.3.0" total_ms=2812.2 request_queue_ms=0.1 local_ms=1.2 remote_ms=810.9 '
        "response_queue_ms=0.0 send_ms=2000.0"
    ]
    event = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (event["logger"], event["message"], event["client_id"]) == ("request", "slow request", "billing")
    assert (event["total_ms"], event["remote_ms"]) == (2812.2, 810.9)


@pytest.mark.parametrize("api", sorted(WAITING_APIS))
def test_a_wait_that_the_client_asks_for_does_not_count(setup, caplog, api):
    setup.log.set_threshold(100)
    setup.record(0.01, 0.01, 30, 0.01, 0.01, api=api)
    assert caplog.messages == []
    setup.record(0.01, 0.07, 30, 0.01, 0.01, api=api)
    assert "total_ms=30100.0 " in caplog.messages[0]


def test_names_from_clients_cannot_look_like_other_fields(setup, caplog):
    setup.log.set_threshold(0)
    setup.context.client_id = 'x" api=Fetch\n' + "y" * 40_000
    setup.context.client_software = ("a b=c", "\x1b")
    setup.record(*FAST)
    [line] = caplog.messages
    assert 'client_id="x\\" api=Fetch\\nyyy' in line and 'client_software="a b=c \\u001b" total_ms' in line
    assert len(line) < 1000


def test_the_lines_of_a_second_are_bounded_and_the_others_counted(setup, caplog):
    setup.log.set_threshold(0)
    for number in range(MAX_SLOW_PER_S + 5):
        setup.record(0, 0.001 * number, 0, 0, 0)
    assert len(caplog.messages) == MAX_SLOW_PER_S
    setup.clock.advance(1)
    omitted = "slow requests were not logged, because there were too many count=5 longest_ms="
    assert caplog.messages[MAX_SLOW_PER_S:] == [f"{omitted}{MAX_SLOW_PER_S + 4}.0"]
    setup.clock.advance(5)
    setup.record(*FAST)
    assert caplog.messages[MAX_SLOW_PER_S + 1 :][0].startswith("slow request api=")
    setup.clock.advance(5)
    assert len(caplog.messages) == MAX_SLOW_PER_S + 2
    assert setup.clock.getDelayedCalls() == []


def test_the_count_precedes_the_lines_of_the_next_second(setup, caplog):
    setup.log.set_threshold(0)
    setup.clock.advance(0.9)
    for _ in range(MAX_SLOW_PER_S + 2):
        setup.record(*FAST)
    setup.clock.advance(0.2)
    setup.record(*FAST)
    assert "count=2 " in caplog.messages[MAX_SLOW_PER_S]
    assert caplog.messages[MAX_SLOW_PER_S + 1].startswith("slow request api=")
    setup.clock.advance(2)
    assert len(caplog.messages) == MAX_SLOW_PER_S + 2


def test_without_its_logger_nothing_is_counted(setup, caplog):
    setup.log.set_threshold(0)
    with caplog.at_level(logging.ERROR, "odradek.request"):
        for _ in range(MAX_SLOW_PER_S + 1):
            setup.record(*FAST)
        assert setup.clock.getDelayedCalls() == []
    assert caplog.messages == []


def configure(wire, value):
    request = IncrementalAlterConfigsRequest(resources=resources((BROKER, "", [("request.slow.log.ms", SET, value)])))
    [result] = wire.ask(request, 1).responses
    assert result.error_code == 0


def lines(broker):
    """The API of each line about a slow request, in order, without that of `configure`."""
    found = re.findall(r" WARNING request slow request api=(\w+) version=\d+ client=/127.0.0.1 ", broker.log_text())
    return [api for api in found if api != "IncrementalAlterConfigs"]


def test_the_measurement_begins_and_ends_on_open_connections():
    with OdradekBroker() as broker, Wire(broker.port) as first, Wire(broker.port) as second:
        second.create_topic("t")
        fetch = first.fetch_request("t", 0, max_wait_ms=60_000, min_bytes=1)
        metadata = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        first.send(fetch, 11)
        first.socket.sendall(request_frame(metadata, 9, 2))
        configure(second, "0")
        second.produce("t", b"x")
        # The fetch began before the measurement, which therefore does not have its times.
        assert first.receive(fetch, 11).responses
        first._correlation_id = 2
        first.receive(metadata, 9)
        until(lambda: lines(broker) == ["Produce", "Metadata"])
        first.ask(first.fetch_request("t", 0, min_bytes=1), 11)
        until(lambda: lines(broker)[2:] == ["Fetch"])
        configure(second, "-1")
        for wire in (first, second):
            wire.ask(metadata, 9)
        assert broker.stop() == 0
        assert lines(broker) == ["Produce", "Metadata", "Fetch"]
        assert "please report it" not in broker.log_text()


@pytest.mark.parametrize("metrics", [{}, {"metrics.listener": "127.0.0.1:0"}], ids=["alone", "with metrics"])
def test_slow_requests_are_logged_from_the_start(metrics):
    with OdradekBroker({"request.slow.log.ms": "0", **metrics}) as broker, Wire(broker.port) as wire:
        wire.create_topic("t")
        until(lambda: lines(broker) == ["CreateTopics"])
        configure(wire, "100000")
        wire.metadata("t")
        configure(wire, "0")
        wire.produce("t", b"x")
        until(lambda: lines(broker)[1:] == ["Produce"])


def test_all_requests_with_the_level_of_the_logger(setup, caplog):
    setup.log.set_threshold(1000)
    logger = logging.getLogger("odradek.request")
    with caplog.at_level(logging.DEBUG, "odradek"):
        setup.record(*FAST)
        assert caplog.messages == [] and setup.log.least_s == 1.0
    with caplog.at_level(logging.DEBUG, logger.name):
        assert setup.log.least_s == 0
        setup.record(*FAST)
        setup.record(0, 2, 0, 0, 0)
        setup.record(0, 0, 9, 0, 0, api="Fetch")
        assert [(one.levelname, one.getMessage().partition(" v")[0]) for one in caplog.records] == [
            ("DEBUG", "completed request api=Produce"),
            ("WARNING", "slow request api=Produce"),
            ("DEBUG", "completed request api=Fetch"),
        ]


def test_the_lines_of_all_requests_are_bounded_in_each_portion_of_a_second(setup, caplog):
    portions = 60
    with caplog.at_level(logging.DEBUG, "odradek.request"):
        for _ in range(portions):
            for _ in range(MAX_COMPLETED_AT_ONCE + 1):
                setup.record(*FAST)
            setup.clock.advance(1 / portions)
        lines = [message for message in caplog.messages if message.startswith("completed")]
        assert len(lines) <= MAX_COMPLETED_PER_S
        assert len(lines) >= MAX_COMPLETED_AT_ONCE * 48
        setup.clock.advance(1)
        omitted = portions * (MAX_COMPLETED_AT_ONCE + 1) - len(lines)
        assert caplog.messages[-1].startswith(f"requests were not logged, because there were too many count={omitted} ")


def test_the_level_is_changed_on_open_connections():
    def set_level(level):
        [result] = wire.ask(IncrementalAlterConfigsRequest(resources=resources((LOGGER, "1", [level]))), 1).responses
        assert result.error_code == 0

    def apis():
        return re.findall(r" DEBUG request completed request api=(\w+) ", broker.log_text())

    with OdradekBroker({"node.id": "1"}) as broker, Wire(broker.port) as wire:
        wire.metadata()
        set_level(("kafka.request.logger", SET, "DEBUG"))
        wire.metadata()
        until(lambda: apis()[-1:] == ["Metadata"])
        set_level(("kafka.request.logger", DELETE, None))
        before = apis()
        wire.metadata()
        wire.create_topic("t")
        assert broker.stop() == 0
        assert apis() == before
