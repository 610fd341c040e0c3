"""ZooKeeper servers on this machine: start, stop, pause, restart."""

import importlib.util
import socket
import sys
import threading

import pytest

from odradek.server.cluster_tools import zookeeper_server
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerError


def test_a_server_keeps_its_port_and_can_be_paused_and_restarted(tmp_path):
    server = ZooKeeperServer(tmp_path, tick_ms=200)
    assert not server.is_running
    # Its thread ends before the server.
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    port = server.port
    assert server.is_running
    assert server.is_serving()
    server.pause()
    assert server.is_running
    assert not server.is_serving()
    server.resume()
    server.wait_until_ready()
    server.restart()
    assert (server.port, server.is_serving(), server.is_leader()) == (port, True, False)
    server.kill()
    assert not server.is_running
    with pytest.raises(ZooKeeperServerError, match="is not running"):
        server.pause()


def test_an_ensemble_removes_its_temporary_directory():
    with ZooKeeperEnsemble(3) as ensemble:
        assert ensemble.connect == ",".join(f"127.0.0.1:{server.port}" for server in ensemble.servers)
        assert [server.is_leader() for server in ensemble.servers].count(True) == 1
        directory = ensemble.directory
        assert directory.is_dir()
    assert not directory.exists()
    assert not any(server.is_running for server in ensemble.servers)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve no port")
def test_no_other_process_finds_the_ports_of_servers_that_are_down(tmp_path):
    server, ensemble = ZooKeeperServer(tmp_path), ZooKeeperEnsemble(1)
    for port in (server.port, ensemble.servers[0].port):
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
    ensemble.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", ensemble.servers[0].port))


def test_a_server_that_ends_at_its_start_is_reported_with_its_log(tmp_path):
    server = ZooKeeperServer(tmp_path, tick_ms=200, members=["dataDir="])
    with pytest.raises(ZooKeeperServerError, match=r"(?s)exited with 1.*Unexpected exception"):
        server.start()


def test_missing_jars_and_java_are_reported_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperServerError, match="no java in JAVA_HOME; install Java 17"):
        zookeeper_server.find_java()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZooKeeperServerError, match=r"pip install 'odradek\[spark\]'"):
        zookeeper_server.find_class_path()
