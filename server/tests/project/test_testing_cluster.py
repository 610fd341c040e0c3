"""OdradekCluster with real processes: faults, restarts, and clean-up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.server.tests.wire import Wire, until
from odradek.testing_cluster import OdradekCluster

TIMEOUT_S = 60
START_S = 240
"""For a process that starts a cluster."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster():
    with OdradekCluster() as cluster:
        yield cluster


def list_brokers(port):
    with Wire(port) as wire:
        return sorted(broker.node_id for broker in wire.metadata().brokers)


def live(cluster):
    """Ids of the brokers in the metadata of any broker that answers."""
    for broker in cluster.brokers.values():
        try:
            return list_brokers(broker.port)
        except OSError:
            continue
    return []


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_broker_starts_again_with_its_address(cluster):
    address = cluster.brokers[1].bootstrap_servers
    cluster.kill(1)
    assert not cluster.brokers[1].is_running
    assert cluster.start_broker(1).bootstrap_servers == address
    until(lambda: live(cluster) == [1, 2, 3], TIMEOUT_S)


def test_a_paused_broker_loses_its_session_and_returns(cluster):
    cluster.pause(3)
    until(lambda: live(cluster) == [1, 2], TIMEOUT_S)
    cluster.resume(3)
    until(lambda: live(cluster) == [1, 2, 3], TIMEOUT_S)


def test_a_paused_broker_can_be_stopped(cluster):
    cluster.pause(2)
    assert cluster.stop_broker(2) == 0
    cluster.resume(2)
    cluster.start_broker(2)
    cluster.restart(2)
    cluster.restart(2, clean=False)
    until(lambda: live(cluster) == [1, 2, 3], TIMEOUT_S)


def test_ports_are_outside_of_the_range_of_outgoing_connections(cluster):
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [broker.port for broker in cluster.brokers.values() if lowest <= broker.port <= highest]


def test_brokers_may_be_paused_or_gone_at_the_end():
    with OdradekCluster(size=2) as cluster:
        directory = cluster.directory
        pids = [broker.pid for broker in cluster.brokers.values()]
        assert cluster.zookeeper is not None
        pids.append(cluster.zookeeper.servers[0].pid)
        cluster.pause(1)
        os.kill(cluster.brokers[2].pid, 9)
    assert not directory.exists()
    assert not [pid for pid in pids if is_running(pid)]
    assert cluster.log_text().count("odradek started") == 2


def test_a_given_directory_keeps_the_data(tmp_path):
    with OdradekCluster({"log.format": "json"}, size=2, directory=tmp_path) as cluster:
        assert [list_brokers(broker.port) for broker in cluster.brokers.values()] == [[1, 2], [1, 2]]
    assert cluster.log_text().count("odradek stopped") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"broker-1", "broker-2", "zookeeper"}


@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is signalled on Linux only")
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_no_process_outlives_the_test_process(end, tmp_path):
    program = (
        "import os, sys\n"
        "from odradek.testing_cluster import OdradekCluster\n"
        "cluster = OdradekCluster(size=2).start()\n"
        "cluster.pause(1)\n"
        "pids = [one.pid for one in (*cluster.brokers.values(), *cluster.zookeeper.servers)]\n"
        f"print(*pids, flush=True)\n{end}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=START_S, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 3
    until(lambda: not [pid for pid in pids if is_running(pid)], TIMEOUT_S)
    if done.returncode == 0:
        assert not list(tmp_path.glob("odradek-cluster-*"))
