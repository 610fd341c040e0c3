"""`odradek cluster status` of a lone broker: the same output from Odradek and from Apache Kafka."""

import json
import subprocess
import sys

import pytest

from odradek.server.tests.wire import Wire, until

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]

TIMEOUT_S = 60
TOPIC = "cluster-status"


def run(broker, *arguments):
    command = [sys.executable, "-m", "odradek", "cluster", "status", "--bootstrap-server", broker.bootstrap_servers]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_topic_with_fewer_replicas_than_min_insync_replicas_is_at_min_isr(broker):
    with Wire(broker.port) as wire:
        wire.create_topic(TOPIC, 2, min_insync_replicas=2)
        assert wire.produce(TOPIC, b"value").error_code == 0
        [me] = until(lambda: {partition.leader_id for partition in wire.metadata(TOPIC).topics[0].partitions})
    done = run(broker, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    row = {"topic": TOPIC, "leader": me, "replicas": [me], "isr": [me], "min.insync.replicas": 2}
    assert [one for one in document["at_min_isr"] if one["topic"] == TOPIC] == [
        {**row, "partition": 0},
        {**row, "partition": 1},
    ]
    assert not document["under_min_isr"]
    assert (document["under_replicated"], document["offline"], document["missing_brokers"]) == ([], [], [])
    [only] = document["brokers"]
    assert f"{only['host']}:{only['port']}" == broker.bootstrap_servers and only["id"] == document["controller"] == me
    table = run(broker)
    assert table.returncode == 0
    assert TOPIC not in table.stdout
