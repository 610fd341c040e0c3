"""The report of a librdkafka consumer that hangs."""

import json
import shutil
import threading

import pytest

from compat_tests.kill import rdkafka_state, readers
from compat_tests.kill.history import Sightings
from compat_tests.kill.readers import AssignedReader
from compat_tests.kill.stacks import select_library_stacks
from odradek.server.cluster_tools.zookeeper_server import find_port

STATISTICS = {
    "time": 1795821806,
    "brokers": {"host:1/1": {"state": "UP", "waitresp_cnt": 1, "rxbytes": 5}},
    "topics": {"t": {"partitions": {"0": {"leader": 2, "fetch_state": "stopping", "next_offset": 7, "txmsgs": 0}}}},
    "cgrp": {"state": "term", "join_state": "wait-unassign-to-complete", "rebalance_cnt": 0},
}


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(readers, "ANSWERS_S", 0)
    monkeypatch.setattr(rdkafka_state, "ENDS_S", 0.1)


class HangingReader(AssignedReader):
    def __init__(self):
        super().__init__("reader", f"127.0.0.1:{find_port()}", "t", 1, Sightings())
        self.is_hanging = threading.Event()
        self.end = threading.Event()

    def _run(self):
        self._last[0] = 6
        self._keep_statistics(json.dumps(STATISTICS))
        self._is_closing = True
        self.is_hanging.set()
        self.end.wait()


def test_a_reader_that_hangs_reports_its_state_and_that_of_the_brokers(no_waits):
    reader = HangingReader()
    reader.start()
    reader.is_hanging.wait()
    reader.stop()
    reader.join()
    reader.end.set()
    [trouble] = reader.troubles
    lines = trouble.splitlines()
    assert lines[:2] == [
        "reader did not end in 0 s",
        "it is closing its consumer; last offsets read: {0: 6}; librdkafka's log: None",
    ]
    assert lines[2].startswith("brokers do not return the ends of t-0: ")
    assert lines[3:6] == [
        "statistics of 1795821806 s (Unix time): group: state=term join_state=wait-unassign-to-complete",
        "broker host:1/1: state=UP waitresp_cnt=1",
        "partition t-0: leader=2 fetch_state=stopping next_offset=7",
    ]
    assert lines[6].startswith("gdb is not installed")
    assert "in _run" in trouble


GDB = """\
[New LWP 12]
Thread 4 (Thread 0x7fdb651ff6c0 (LWP 13) "python"):
#0  __GI___poll (fds=0x7fdb66ac48a0) at poll.c:29
#1  0x00007fdb65abda4c in rd_kafka_consume_batch_queue () from librdkafka.so

Thread 3 (Thread 0x7fdb651ff6c1 (LWP 12) "rdk:broker1"):
#0  __futex_abstimed_wait_common64 (private=0) at futex-internal.c:57
#1  0x00007fdb65affdb1 in rd_kafka_q_pop_serve0 () from librdkafka.so
#2  0x00007fdb65ae23b1 in rd_kafka_broker_consumer_serve () from librdkafka.so

Thread 2 (Thread 0x7fdb651ff6c2 (LWP 11) "python"):
#0  0x00007fdb66d1a26f in pthread_join () from libc.so
#1  0x00007fdb65abda4d in rd_kafka_destroy_app[localalias] () from librdkafka.so
#2  0x00007fdb65abda4e in Consumer_close () from cimpl.so

Thread 1 (Thread 0x7fdb6746db80 (LWP 10)):
#0  0x00007fdb66d1a26f in rd_kafka_other () from librdkafka.so
"""


def test_the_stacks_of_librdkafka_are_those_of_its_threads_and_of_its_caller():
    assert list(select_library_stacks(GDB, 11)) == [
        "rdk:broker1: rd_kafka_q_pop_serve0 < rd_kafka_broker_consumer_serve",
        "the calling thread: rd_kafka_destroy_app",
    ]


def test_a_reader_without_statistics_is_reported():
    assert list(rdkafka_state.describe_statistics("")) == ["there are no statistics"]
