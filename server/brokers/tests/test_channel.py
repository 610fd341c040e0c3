"""Channels to other brokers: order, timeouts, lost connections, malformed responses, large messages."""

import logging
import struct
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from odradek.protocol.messages.api_versions import ApiVersionsResponse
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.protocol.messages.leader_and_isr import (
    LeaderAndIsrRequest,
    LeaderAndIsrRequestLeaderAndIsrPartitionState,
    LeaderAndIsrRequestLeaderAndIsrTopicState,
    LeaderAndIsrResponse,
    LeaderAndIsrResponseLeaderAndIsrPartitionError,
    LeaderAndIsrResponseLeaderAndIsrTopicError,
)
from odradek.replication.metadata.image import BrokerMetadata, Endpoint
from odradek.replication.remote import BrokerUnavailableError
from odradek.server.brokers.channel import SetupTimeout, TcpBrokerChannel, TcpBrokerChannels
from odradek.server.tests.broker_network import FakeNetwork, response_frame
from odradek.server.work.reused_timer import ReusedTimer
from odradek.server.work.waits import describe_wait

TIMEOUT_MS = 3000
HEARTBEAT = HeartbeatRequest.api_key


class Caller:
    """A channel, and the outcomes of the requests sent over it."""

    def __init__(self, **options):
        self.network = FakeNetwork()
        self.clock = self.network.clock
        self.channel = TcpBrokerChannel(
            "broker 2 at there:9093", "there", 9093, client_id="1", timeout_ms=TIMEOUT_MS,
            connect=self.network.connect, clock=self.clock, slices=self.network.slices, **options,
        )  # fmt: skip
        self.outcomes = {}

    def send(self, name, request=None, response_type=HeartbeatResponse, version=4):
        request = request or HeartbeatRequest(group_id=name)
        sent: Deferred[Any] = Deferred.fromCoroutine(self.channel.send(request, response_type, version))
        sent.addErrback(lambda failure: failure.value)
        sent.addCallback(lambda outcome: self.outcomes.__setitem__(name, outcome))
        return sent

    def failed(self, name):
        outcome = self.outcomes[name]
        assert isinstance(outcome, BrokerUnavailableError)
        return str(outcome)

    def check_idle(self):
        """Check that no timer is left, except that of the responses, which has no effect."""
        calls = self.clock.getDelayedCalls()
        assert not [call for call in calls if not isinstance(getattr(call.func, "__self__", None), ReusedTimer)]
        closed = [link.is_aborted for link in self.network.links]
        self.clock.advance(TIMEOUT_MS / 1000)
        assert not self.clock.getDelayedCalls()
        assert closed == [link.is_aborted for link in self.network.links]


@pytest.fixture
def caller():
    return Caller()


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_it_connects_at_the_first_request_and_returns_the_response(caller):
    assert not caller.network.links
    caller.send("a")
    link = caller.network.accept()
    assert link.address == ("there", 9093)
    request = link.answer(HeartbeatResponse(error_code=27))
    assert (request.message.group_id, request.version, request.client_id) == ("a", 4, "1")
    assert caller.outcomes == {"a": HeartbeatResponse(error_code=27)}
    caller.check_idle()


def test_old_versions_have_headers_without_tagged_fields(caller):
    caller.send("a", version=1)
    caller.network.accept().answer(HeartbeatResponse(throttle_time_ms=7))
    assert caller.outcomes == {"a": HeartbeatResponse(throttle_time_ms=7)}


def test_tagged_fields_of_a_response_header_are_skipped(caller):
    caller.send("a")
    link = caller.network.accept()
    request = link.take()
    link.deliver(response_frame(HeartbeatResponse(error_code=1), 4, request.correlation_id, tags=b"\1\7\2xy"))
    assert caller.outcomes["a"].error_code == 1


def test_one_request_is_in_flight_and_the_others_follow_in_order(caller):
    for name in "abc":
        caller.send(name)
    link = caller.network.accept()
    seen = []
    for number in range(3):
        assert len(caller.outcomes) == number
        seen.append(link.answer(HeartbeatResponse()))
    assert [request.message.group_id for request in seen] == ["a", "b", "c"]
    assert len({request.correlation_id for request in seen}) == 3
    assert list(caller.outcomes) == ["a", "b", "c"]
    assert len(caller.network.links) == 1


def test_a_request_sent_from_within_a_completion_comes_last(caller):
    caller.send("a").addCallback(lambda _: caller.send("c") and None)
    caller.send("b")
    link = caller.network.accept()
    assert [link.answer(HeartbeatResponse()).message.group_id for _ in "abc"] == ["a", "b", "c"]


def test_a_thousand_requests_complete_without_recursion(caller):
    for number in range(1000):
        caller.send(str(number))
    caller.network.accept().lose()
    assert caller.failed("0")
    caller.channel.close()
    assert len(caller.outcomes) == 1000


@pytest.mark.parametrize("piece_bytes", [1, 3, 10])
def test_a_response_may_arrive_in_pieces(caller, piece_bytes):
    caller.send("a")
    caller.network.accept().answer(HeartbeatResponse(error_code=22), piece_bytes=piece_bytes)
    assert caller.outcomes["a"].error_code == 22


@pytest.mark.parametrize("room_bytes", [0, 1, 20])
def test_a_request_that_the_socket_does_not_take_at_once_arrives_whole(caller, room_bytes):
    caller.send("a")
    link = caller.network.accept()
    link.answer(HeartbeatResponse())
    link.room_bytes = room_bytes
    for name in "bc":
        caller.send(name)
        assert link.answer(HeartbeatResponse()).message.group_id == name
    assert caller.outcomes == dict.fromkeys("abc", HeartbeatResponse())


def test_a_connection_that_is_not_made_in_time_fails(caller):
    caller.send("a")
    caller.send("b")
    caller.clock.advance(TIMEOUT_MS / 1000)
    assert caller.failed("a") == "no connection to broker 2 at there:9093 within 3 s"
    assert caller.failed("b") == caller.failed("a")
    assert caller.network.links[0].is_aborted
    caller.check_idle()


def test_the_time_for_a_connection_doubles_with_each_failure():
    caller = Caller(setup_timeout=SetupTimeout(first_ms=100, max_ms=300))
    for number, limit_s in enumerate((0.1, 0.2, 0.3, 0.3)):
        caller.send(number)
        while len(caller.network.links) == number:
            caller.clock.advance(0.01)
        caller.clock.advance(limit_s - 0.001)
        assert number not in caller.outcomes
        caller.clock.advance(0.001)
        assert caller.failed(number) == f"no connection to broker 2 at there:9093 within {limit_s:g} s"
    caller.send("last")
    caller.clock.advance(1)
    caller.network.accept().answer(HeartbeatResponse())
    assert caller.outcomes["last"] == HeartbeatResponse()


def test_a_refused_connection_fails_all_requests_of_the_queue(caller):
    caller.send("a")
    caller.send("b")
    caller.network.links[0].refuse()
    assert "cannot connect to broker 2 at there:9093: " in caller.failed("a")
    assert caller.failed("b") == caller.failed("a")
    assert len(caller.network.links) == 1


def test_an_exception_at_connecting_fails_the_request():
    caller = Caller()

    def connect(host, port, factory):
        raise OSError("no descriptors")

    caller.channel._connect_tcp = connect
    caller.send("a")
    assert "no descriptors" in str(caller.outcomes["a"])
    caller.check_idle()


def test_a_missing_response_fails_its_request_only(caller):
    caller.send("a")
    caller.send("b")
    link = caller.network.accept()
    caller.clock.advance(TIMEOUT_MS / 1000 - 0.001)
    assert not caller.outcomes
    caller.clock.advance(0.001)
    assert caller.failed("a") == "no response from broker 2 at there:9093 to HeartbeatRequest within 3 s"
    assert link.is_aborted
    caller.clock.advance(0.05)
    assert caller.network.accept().answer(HeartbeatResponse()).message.group_id == "b"
    assert caller.outcomes["b"] == HeartbeatResponse()


def test_half_a_response_does_not_extend_the_timeout(caller):
    caller.send("a")
    link = caller.network.accept()
    caller.clock.advance(2.9)
    link.deliver(response_frame(HeartbeatResponse(), 4, link.take().correlation_id)[:7])
    caller.clock.advance(0.1)
    assert caller.failed("a")
    assert link.is_aborted


def test_a_lost_connection_fails_the_request_in_flight_and_does_not_repeat_it(caller):
    caller.send("a")
    caller.send("b")
    link = caller.network.accept()
    link.lose()
    assert caller.failed("a").startswith("connection to broker 2 at there:9093 lost: ")
    assert "b" not in caller.outcomes
    caller.clock.advance(0.05)
    assert caller.network.accept().answer(HeartbeatResponse()).message.group_id == "b"


def test_a_connection_that_was_lost_while_idle_is_replaced_at_the_next_request(caller):
    caller.send("a")
    link = caller.network.accept()
    link.answer(HeartbeatResponse())
    link.lose()
    caller.clock.advance(1)
    assert len(caller.network.links) == 1
    caller.send("b")
    caller.network.accept().answer(HeartbeatResponse())
    assert caller.outcomes["b"] == HeartbeatResponse()
    assert len(caller.network.links) == 2


def test_the_pause_before_connecting_doubles_up_to_a_second(caller):
    pauses_s = []
    for number in range(8):
        caller.send(str(number))
        begin_s = caller.clock.seconds()
        while len(caller.network.links) <= number:
            caller.clock.advance(0.01)
        pauses_s.append(caller.clock.seconds() - begin_s)
        # A connection that is closed before a response counts as a failure, too.
        if number % 2:
            caller.network.accept().lose()
        else:
            caller.network.links[-1].refuse()
    assert pauses_s == pytest.approx([0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1], abs=0.011)
    caller.clock.advance(1)
    caller.send("last")
    link = caller.network.accept()
    link.answer(HeartbeatResponse())
    link.lose()
    caller.send("after success")
    caller.clock.advance(0.05)
    assert len(caller.network.links) == 10


def test_a_wrong_correlation_id_closes_the_connection_with_one_log_line(caller, caplog):
    caller.send("a")
    link = caller.network.accept()
    request = link.take()
    link.deliver(response_frame(HeartbeatResponse(), 4, request.correlation_id + 1) * 2)
    assert "correlation id 2 instead of 1" in caller.failed("a")
    assert link.is_aborted
    (line,) = warnings(caplog)
    assert line.startswith("closing connection to broker 2 at there:9093 why=")


def test_a_response_without_a_request_closes_the_connection(caller, caplog):
    caller.send("a")
    link = caller.network.accept()
    request = link.answer(HeartbeatResponse())
    link.answer(HeartbeatResponse(), request)
    assert caller.outcomes["a"] == HeartbeatResponse()
    assert link.is_aborted
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">i", 1001), "frame of 1001 bytes, at most 1000 are allowed"),
        (struct.pack(">i", -5), "negative frame size -5"),
        (struct.pack(">i", 3) + b"abc", "response of 3 bytes has no correlation id"),
        (struct.pack(">ii", 7, 1) + b"\0\0\0", "malformed response: HeartbeatResponse v4: "),
        (struct.pack(">ii", 5, 1) + b"\xff", "malformed response: HeartbeatResponse v4: "),
        (struct.pack(">ii", 4, 1), "malformed response: HeartbeatResponse v4: "),
    ],
)
def test_a_malformed_response_closes_the_connection_with_one_log_line(caplog, data, why):
    caller = Caller(max_frame_bytes=1000)
    caller.send("a")
    link = caller.network.accept()
    link.deliver(data)
    assert why in caller.failed("a")
    assert link.is_aborted
    assert len(warnings(caplog)) == 1
    caller.check_idle()


def test_close_fails_all_requests_and_later_ones(caller):
    for name in "abc":
        caller.send(name)
    link = caller.network.accept()
    caller.channel.close()
    caller.channel.close()
    caller.send("d")
    assert {name: caller.failed(name) for name in "abcd"} == dict.fromkeys(
        "abcd", "channel to broker 2 at there:9093 is closed"
    )
    assert link.is_aborted
    caller.check_idle()


def test_close_ends_an_attempt_to_connect(caller):
    caller.send("a")
    caller.channel.close()
    assert caller.failed("a") == "channel to broker 2 at there:9093 is closed"
    assert caller.network.links[0].is_aborted
    caller.check_idle()


def test_close_ends_the_pause_before_connecting(caller):
    caller.send("a")
    caller.network.links[0].refuse()
    caller.send("b")
    caller.channel.close()
    assert caller.failed("b") == "channel to broker 2 at there:9093 is closed"
    assert len(caller.network.links) == 1
    caller.check_idle()


def test_a_cancelled_request_is_not_sent_or_its_response_is_dropped(caller):
    sent = [caller.send(name) for name in "abc"]
    link = caller.network.accept()
    sent[0].cancel()
    sent[1].cancel()
    assert link.answer(HeartbeatResponse(error_code=1)).message.group_id == "a"
    assert link.answer(HeartbeatResponse(error_code=3)).message.group_id == "c"
    assert caller.outcomes["c"].error_code == 3


def test_a_waiting_request_has_a_description(caller):
    caller.send("a")
    caller.send("b")
    (queued,) = caller.channel._queue
    assert describe_wait(queued.outcome) == "broker 2 at there:9093, response to HeartbeatRequest"


# Versions


def test_without_a_version_both_brokers_latest_is_sent(caller):
    caller.send("a", version=None)
    link = caller.network.accept()
    link.answer_versions((0, 0, 9), (HEARTBEAT, 1, 3))
    assert link.answer(HeartbeatResponse(error_code=5)).version == 3
    assert caller.outcomes["a"].error_code == 5
    caller.send("b", version=None)
    assert link.answer(HeartbeatResponse()).version == 3


def test_each_connection_asks_for_versions(caller):
    caller.send("a", version=None)
    link = caller.network.accept()
    link.answer_versions((HEARTBEAT, 0, 4))
    link.answer(HeartbeatResponse())
    link.lose()
    caller.send("b", version=None)
    caller.clock.advance(0.05)
    link = caller.network.accept()
    link.answer_versions((HEARTBEAT, 0, 2))
    assert link.answer(HeartbeatResponse()).version == 2


@pytest.mark.parametrize("versions", [(), ((HEARTBEAT, 5, 9),), ((1, 0, 4),)])
def test_without_a_common_version_the_request_fails(caller, versions):
    caller.send("a", version=None)
    link = caller.network.accept()
    link.answer_versions(*versions)
    assert caller.failed("a") == "broker 2 at there:9093 serves no common version of HeartbeatRequest"
    assert link.is_silent
    assert not link.is_aborted


def test_an_error_of_api_versions_closes_the_connection(caller, caplog):
    caller.send("a", version=None)
    link = caller.network.accept()
    link.answer(ApiVersionsResponse(error_code=35))
    assert caller.failed("a") == "broker 2 at there:9093 answers ApiVersions with UNSUPPORTED_VERSION"
    assert link.is_aborted
    assert len(warnings(caplog)) == 1


def test_api_versions_has_the_timeout_of_a_request(caller):
    caller.send("a", version=None)
    caller.network.accept()
    caller.clock.advance(3)
    assert "to ApiVersionsRequest within 3 s" in caller.failed("a")


# Large messages


def leader_and_isr(partitions):
    states = [
        LeaderAndIsrRequestLeaderAndIsrPartitionState(partition_index=number, replicas=[1, 2, 3], isr=[1, 2])
        for number in range(partitions)
    ]
    return LeaderAndIsrRequest(
        topic_states=[LeaderAndIsrRequestLeaderAndIsrTopicState(topic_name="t", partition_states=states)]
    )


def turns(clock, condition):
    """Run reactor iterations until the condition holds. Return their number."""
    count = 0
    while not condition():
        count += 1
        assert count < 100_000
        due = [call for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds()]
        assert due, "nothing is left to do"
        # `advance` would also make the calls that these calls schedule.
        for call in due:
            clock.calls.remove(call)
            call.func(*call.args)
    return count


def test_a_large_request_is_encoded_and_a_large_response_decoded_in_slices(caller):
    request = leader_and_isr(10_000)
    caller.send("large", request, LeaderAndIsrResponse, version=7)
    caller.send("small")
    link = caller.network.accept()
    assert link.is_silent
    assert turns(caller.clock, lambda: not link.is_silent) > 50
    received = link.take()
    states = received.message.topic_states[0].partition_states
    assert [state.partition_index for state in states] == list(range(10_000))
    rows = [
        LeaderAndIsrResponseLeaderAndIsrPartitionError(partition_index=number, error_code=number % 7)
        for number in range(10_000)
    ]
    topic = LeaderAndIsrResponseLeaderAndIsrTopicError(partition_errors=rows)
    link.answer(LeaderAndIsrResponse(topics=[topic]), received, piece_bytes=10_000)
    assert not caller.outcomes
    assert turns(caller.clock, lambda: caller.outcomes) > 5
    decoded = caller.outcomes["large"].topics[0].partition_errors
    assert [row.error_code for row in decoded] == [number % 7 for number in range(10_000)]
    assert link.answer(HeartbeatResponse()).message.group_id == "small"


def test_a_connection_lost_while_a_large_request_is_encoded_fails_the_request(caller):
    caller.send("a")
    link = caller.network.accept()
    link.answer(HeartbeatResponse())
    caller.send("large", leader_and_isr(10_000), LeaderAndIsrResponse, version=7)
    link.lose()
    turns(caller.clock, lambda: "large" in caller.outcomes)
    assert "lost" in caller.failed("large")
    caller.check_idle()


def test_a_channel_that_is_closed_while_a_large_request_is_encoded_leaves_no_timer(caller):
    caller.send("a")
    link = caller.network.accept()
    link.answer(HeartbeatResponse())
    caller.send("large", leader_and_isr(10_000), LeaderAndIsrResponse, version=7)
    caller.channel.close()
    turns(caller.clock, lambda: "large" in caller.outcomes)
    assert "closed" in caller.failed("large")
    caller.clock.advance(0)
    assert not caller.clock.getDelayedCalls()


def test_requests_fail_when_the_broker_stops(caller):
    caller.send("large", leader_and_isr(10_000), LeaderAndIsrResponse, version=7)
    caller.network.accept()
    caller.network.slices.stop()
    assert caller.failed("large") == "this broker is stopping"


def test_records_of_a_fetch_are_views_of_the_received_frame(caller):
    batch = bytes(range(256)) * 4096
    rows = [FetchResponsePartitionData(partition_index=number, records=batch) for number in range(3)]
    topic = FetchResponseFetchableTopicResponse(topic_id=b"t" * 16, partitions=rows)
    caller.send("fetch", FetchRequest(), FetchResponse, version=17)
    link = caller.network.accept()
    link.answer(FetchResponse(responses=[topic]), piece_bytes=100_000)
    decoded = [row.records for row in caller.outcomes["fetch"].responses[0].partitions]
    assert [type(records) for records in decoded] == [memoryview] * 3
    assert decoded == [batch] * 3
    assert len({id(records.obj) for records in decoded}) == 1


def test_the_read_size_is_large_while_much_of_a_frame_is_missing(caller):
    caller.send("fetch", FetchRequest(), FetchResponse, version=17)
    link = caller.network.accept()
    usual = link.bufferSize
    rows = [FetchResponsePartitionData(records=bytes(1_000_000))]
    frame = response_frame(
        FetchResponse(responses=[FetchResponseFetchableTopicResponse(partitions=rows)]), 17, link.take().correlation_id
    )
    link.deliver(frame[:1000])
    assert link.bufferSize > 5 * usual
    link.deliver(frame[1000:])
    assert link.bufferSize == usual


# Endpoints


def open_channel(broker):
    network = FakeNetwork()
    channels = TcpBrokerChannels("INTERNAL", connect=network.connect, clock=network.clock, slices=network.slices)
    channel = channels.open(broker, client_id="7", timeout_ms=TIMEOUT_MS)
    outcomes: list[Any] = []
    sent: Deferred[Any] = Deferred.fromCoroutine(channel.send(HeartbeatRequest(), HeartbeatResponse, 4))
    sent.addErrback(lambda failure: failure.value).addCallback(outcomes.append)
    return network, outcomes


def test_a_channel_uses_the_brokers_endpoint_of_the_listener():
    endpoints = Endpoint("OTHER", "PLAINTEXT", "a", 1), Endpoint("INTERNAL", "PLAINTEXT", "b", 2)
    network, outcomes = open_channel(BrokerMetadata(3, endpoints))
    link = network.accept()
    assert link.address == ("b", 2)
    assert link.answer(HeartbeatResponse()).client_id == "7"
    assert outcomes == [HeartbeatResponse()]


@pytest.mark.parametrize(
    ("endpoints", "why"),
    [
        ((Endpoint("OTHER", "PLAINTEXT", "a", 1),), "broker 3 has no listener INTERNAL"),
        (
            (Endpoint("INTERNAL", "SSL", "a", 1),),
            "broker 3: listener INTERNAL has security protocol SSL, but PLAINTEXT on this broker",
        ),
    ],
)
def test_a_broker_without_a_usable_endpoint_is_unavailable(endpoints, why):
    network, (error,) = open_channel(BrokerMetadata(3, endpoints))
    assert isinstance(error, BrokerUnavailableError)
    assert str(error) == why
    assert not network.links
