"""The broker process: it starts with one line of output, stops cleanly, and restarts on its port."""

import socket

import pytest

from odradek import __version__
from odradek.server.tests.wire import TIMEOUT_S
from odradek.testing import BrokerFailedError, OdradekBroker


def test_the_start_line_has_address_data_version_and_time():
    with OdradekBroker() as broker:
        (line,) = [line for line in broker.log_text().splitlines() if "odradek started " in line]
        pairs = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
        assert pairs["address"] == broker.bootstrap_servers
        assert pairs["data"] == str(broker.data_dir)
        assert pairs["version"] == __version__
        assert int(pairs["start_ms"]) >= 0
        socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S).close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_the_port(clean):
    with OdradekBroker() as broker:
        port = broker.port
        assert broker.restart(clean=clean).port == port
        assert broker.stop() == 0


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listeners = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerFailedError, match=str(taken.getsockname()[1])):
            OdradekBroker({"listeners": listeners}).__enter__()


def test_an_address_of_another_machine_is_reported():
    reason = "no network interface of this machine has the address: change listeners"
    with pytest.raises(BrokerFailedError, match=reason):
        OdradekBroker({"listeners": "PLAINTEXT://203.0.113.1:9092"}).__enter__()


def test_a_data_directory_in_use_prevents_the_start(tmp_path):
    with OdradekBroker(directory=tmp_path / "one") as broker, pytest.raises(BrokerFailedError, match="did not start"):
        OdradekBroker({"log.dirs": str(broker.data_dir)}).__enter__()
