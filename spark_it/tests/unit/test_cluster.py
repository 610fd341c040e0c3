"""Requests to a cluster: offsets while coordinators are not ready, patterns, topic ids, and new topics."""

import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.processes import lasting_port
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.kafka.requests import ClusterError, MissingTopicsError
from odradek.testing import OdradekBroker
from spark_it.tests.data import Topics
from spark_it.tests.unit.support import CONSOLE, pipeline

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
NOT_COORDINATOR = struct.pack(">h", 16)
ASK = """
import sys
from pathlib import Path
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.definition.reader import parse
text = f'''
name = "p"
bootstrap.servers = "{sys.argv[1]}"
[source.orders]
connector = "topic"
topics = "orders"
value.format = "bytes"
[sink]
connector = "console"
'''
cluster = KafkaCluster(parse(text, {}, file="p.toml", folder=Path.cwd()).settings)
cluster.commit("p", {("orders", 0): 3})
print(cluster.fetch_committed("p", [("orders", 0), ("orders", 1)]))
"""

SOURCE_OF_BYTES = '[source.all]\nconnector = "topic"\ntopics.regex = ".*"\nvalue.format = "bytes"\n'


class Between:
    """A proxy between clients and a broker. The error in the first `times` responses to OffsetFetch and to OffsetCommit
    becomes NOT_COORDINATOR."""

    def __init__(self, times):
        self.changed = Counter()
        self._times = times
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.broker_port = 0
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for one in self._sockets:
            one.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.broker_port))
            except OSError:
                return
            self._sockets += [client, broker]
            asked = {}
            threading.Thread(target=self._pass, args=(client, broker, asked, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(broker, client, asked, False), daemon=True).start()

    def _pass(self, here, there, asked, is_request):
        with here, there, here.makefile("rb") as frames:
            try:
                while size := frames.read(4):
                    frame = frames.read(struct.unpack(">i", size)[0])
                    if is_request:
                        key, version, number = struct.unpack_from(">hhi", frame)
                        asked[number] = key, version
                    else:
                        frame = self._answer(frame, *asked.pop(struct.unpack_from(">i", frame)[0]))
                    there.sendall(size + frame)
            except OSError:
                return

    def _answer(self, frame, key, version):
        if key not in (OFFSET_FETCH, OFFSET_COMMIT) or self.changed[key] >= self._times:
            return frame
        self.changed[key] += 1
        # The error precedes the tagged fields, one byte each: of the response and, from version 8 on, of the group
        # (OffsetFetch) or of partition and topic (OffsetCommit).
        tags = (0 if version < 6 else 1 if version < 8 else 2) if key == OFFSET_FETCH else 0 if version < 8 else 3
        end = len(frame) - tags
        return frame[: end - 2] + NOT_COORDINATOR + frame[end:]


@pytest.fixture
def between():
    one = Between(2)
    yield one
    one.close()


def test_group_requests_are_retried_while_the_coordinator_is_not_ready(between):
    between.broker_port = lasting_port()
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{between.broker_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{between.port}",
    }
    with OdradekBroker(listeners):
        Topics(f"127.0.0.1:{between.port}").create("orders", 2)
        # In a process of its own, because a client that mishandles the error would end the process.
        done = subprocess.run(
            [sys.executable, "-c", ASK, f"127.0.0.1:{between.port}"], capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stdout) == (0, "{('orders', 0): 3}\n"), done.stderr
    assert between.changed[OFFSET_FETCH] == between.changed[OFFSET_COMMIT] == 2


def test_a_pattern_does_not_match_internal_topics(broker, topics, unique):
    """Spark does not match them either, and refuses offsets of topics that it does not read."""
    topics.create(unique, 2)
    one = pipeline(f'name = "p"\nbootstrap.servers = "{broker.bootstrap_servers}"\n{SOURCE_OF_BYTES}{CONSOLE}')
    cluster = KafkaCluster(one.settings)
    cluster.commit("p", {(unique, 0): 3})
    found = {topic for topic, _ in cluster.list_partitions(one.sources["all"])}
    assert unique in found and "__consumer_offsets" in cluster._admin.list_topics(timeout=60).topics
    assert "__consumer_offsets" not in found


@pytest.mark.side_by_side
def test_a_topic_that_is_created_again_has_another_id(broker, topics, unique):
    one = pipeline(f'name = "p"\nbootstrap.servers = "{broker.bootstrap_servers}"\n{SOURCE_OF_BYTES}{CONSOLE}')
    cluster = KafkaCluster(one.settings)
    topics.create(unique)
    first = cluster.fetch_topic_ids([unique, unique])
    assert list(first) == [unique] and cluster.fetch_topic_ids([unique]) == first and cluster.fetch_topic_ids([]) == {}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([unique])[unique].result(30)
    topics.create(unique)
    # Brokers get the change one after the other.
    give_up_at = time.monotonic() + 60
    while cluster.fetch_topic_ids([unique]) in (first, {}):
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    assert cluster.fetch_topic_ids(["no-such-topic"]) == {}


@pytest.mark.side_by_side
def test_a_topic_is_created_once(broker, unique):
    cluster = KafkaCluster(
        pipeline(f'name = "p"\nbootstrap.servers = "{broker.bootstrap_servers}"\n{SOURCE_OF_BYTES}{CONSOLE}').settings
    )
    brokers = cluster.count_brokers()
    with pytest.raises(ClusterError, match=f"cannot create topic {unique} at {broker.bootstrap_servers}: "):
        cluster.create_topic(unique, brokers + 1)
    source = TopicSource({"topics": unique})
    with pytest.raises(MissingTopicsError, match=f"topic {unique} does not exist"):
        cluster.list_partitions(source)
    for factor in (-1, brokers):
        cluster.create_topic(unique, factor)
        assert cluster.list_partitions(source) == [(unique, 0)]
