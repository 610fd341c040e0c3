"""A broker process and its connections: a pause of the process, interrupted uploads."""

import os
import re
import signal
import socket
import struct
import time

import pytest

from odradek.protocol import codec
from odradek.protocol.messages.api_versions import ApiVersionsRequest
from odradek.protocol.messages.describe_cluster import DescribeClusterRequest
from odradek.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.server.tests.faults.test_group_restart import Member, await_coordinator
from odradek.server.tests.wire import Wire, until
from odradek.testing import OdradekBroker

SESSION_S = 3.0
"""Longer than a busy machine takes from the join of the member to the pause."""
PIPELINED = 50
UPLOAD_BYTES = 16 << 20


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker({"group.min.session.timeout.ms": "200", "reactor.slow.iteration.ms": "1"}) as broker:
        yield broker


def process_state(broker):
    with open(f"/proc/{broker.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("count", [1, PIPELINED])
def test_a_heartbeat_that_arrived_in_a_pause_longer_than_the_session_keeps_the_member(broker, count):
    group = f"group-{count}"
    with Wire(broker.port) as wire:
        await_coordinator(wire, group)
    member = Member(broker.port, group, session_ms=int(SESSION_S * 1000))
    assert (member.join(), member.sync()[0]) == (0, 0)
    heartbeat = HeartbeatRequest(group_id=group, generation_id=member.generation, member_id=member.id)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        until(lambda: process_state(broker) == "T")
        for _ in range(count):
            member.wire.send(heartbeat, 3)
        time.sleep(SESSION_S + 0.3)  # the pause that is tested
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    for _ in range(count):
        (size,) = struct.unpack(">i", member.wire._exactly(4))
        assert codec.decode(HeartbeatResponse, 3, member.wire._exactly(size), 4).error_code == 0


def resident_bytes(broker):
    with open(f"/proc/{broker.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_the_memory_of_interrupted_uploads_is_released(broker):
    with Wire(broker.port) as wire:
        before = resident_bytes(broker)
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", broker.port)) as upload:
                upload.sendall(struct.pack(">i", 2 * UPLOAD_BYTES) + bytes(UPLOAD_BYTES))
            wire.ask(ApiVersionsRequest())
        # The allocator keeps the memory of up to two uploads; without the release it would be that of all eight.
        until(lambda: resident_bytes(broker) - before < 4 * UPLOAD_BYTES)


def test_a_slow_iteration_is_logged_with_what_ran(broker):
    with Wire(broker.port) as wire:
        # The first request of an API imports its modules, and compiles its messages.
        wire.ask(DescribeClusterRequest())
    # The line is logged after the response, and those of other iterations may precede it.
    line = r"reactor iteration was slow.* wall_ms=\d+ cpu_ms=\d+ longest_ms=\d+ longest='\w+ client=/127.0.0.1"
    until(lambda: re.search(line, broker.log_text()))


def test_an_ipv4_client_of_a_listener_on_all_interfaces():
    with (
        OdradekBroker({"listeners": "PLAINTEXT://:0"}) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as client,
    ):
        client.sendall(b"\xff" * 4)
        until(lambda: "closing connection client=/127.0.0.1 " in broker.log_text())
