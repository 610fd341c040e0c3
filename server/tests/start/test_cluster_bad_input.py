"""Brokers that cannot join a cluster: one clear line and the exit code, with real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.server.cluster_tools.zookeeper_server import find_port
from odradek.server.tests.refused_start import TIMEOUT_S, refuse_start
from odradek.testing_cluster import OdradekCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster():
    # While the session of a broker that is only slow is renewed, its id and its address are free.
    with OdradekCluster(size=1, session_timeout_ms=10_000) as cluster:
        yield cluster


@pytest.fixture
def refuse(cluster, tmp_path):
    """Start a broker beside the cluster's; return the only line above INFO, from "cannot start" on."""

    def refuse(**values):
        properties = {
            "broker.id": 2,
            "listeners": f"PLAINTEXT://127.0.0.1:{find_port()}",
            "log.dirs": tmp_path / "data",
            "zookeeper.connect": cluster.zookeeper_connect,
            **{name.replace("_", "."): value for name, value in values.items()},
        }
        return refuse_start(properties)

    return refuse


def test_a_broker_id_in_use(refuse):
    assert refuse(broker_id=1) == (
        "broker id 1 is in use by another broker; change broker.id, or, if this broker has crashed, start it again "
        "when its session has expired (zookeeper.session.timeout.ms)"
    )


def test_an_advertised_listener_in_use(refuse, cluster):
    address = cluster.bootstrap_servers
    assert refuse(advertised_listeners=f"PLAINTEXT://{address}") == (
        f"broker 1 already advertises {address}; change advertised.listeners"
    )


def test_a_listener_in_use(refuse, cluster):
    address = cluster.bootstrap_servers
    assert refuse(listeners=f"PLAINTEXT://{address}").startswith(
        f"cannot listen on {address} (listeners=PLAINTEXT): Address already in use; stop the process that uses the port"
    )


def test_log_directories_of_another_cluster(refuse, cluster, tmp_path):
    meta = (cluster.brokers[1].data_dir / "meta.properties").read_text()
    lines = [line for line in meta.splitlines() if not line.startswith(("cluster.id", "broker.id", "directory.id"))]
    (tmp_path / "data").mkdir()
    Path(tmp_path, "data", "meta.properties").write_text("\n".join([*lines, "broker.id=2", "cluster.id=other", ""]))
    assert refuse().startswith(
        f"log directory {tmp_path / 'data'} belongs to cluster other, but ZooKeeper "
        f"(zookeeper.connect={cluster.zookeeper_connect}) has cluster "
    )


def test_a_broker_id_that_differs_from_the_log_directories(refuse, cluster, tmp_path):
    meta = (cluster.brokers[1].data_dir / "meta.properties").read_text()
    (tmp_path / "data").mkdir()
    Path(tmp_path, "data", "meta.properties").write_text(meta)
    file = tmp_path / "data" / "meta.properties"
    assert refuse() == (
        f"{file} has node id 1, but this broker's is 2; correct log.dirs or the broker's id"
    )


def test_a_zookeeper_that_cannot_be_reached(refuse):
    connect = f"127.0.0.1:{find_port()}"
    assert refuse(zookeeper_connect=connect, zookeeper_connection_timeout_ms=1000) == (
        f"cannot connect to ZooKeeper within 1000 ms (zookeeper.connect={connect}): Connection refused; start "
        "ZooKeeper, or correct zookeeper.connect"
    )


def test_an_invalid_zookeeper_address_is_an_invalid_configuration():
    command = [sys.executable, "-m", "odradek", "start", "--override", "zookeeper.connect=host:port"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("odradek: Invalid value host:port for configuration zookeeper.connect: ")
    assert done.stderr.count("\n") == 1
