"""The program `odradek start`: listeners, errors at the start, and the stop."""

import re
import socket
import sqlite3
import subprocess
import sys
import threading

import pytest

from odradek.protocol.messages.describe_cluster import DescribeClusterRequest
from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest
from odradek.protocol.records import iter_records
from odradek.server.cluster_tools.zookeeper_server import find_port
from odradek.server.tests.wire import EARLIEST, LATEST, TIMEOUT_S, Wire, until
from odradek.testing import OdradekBroker

FOREVER_MS = 3_600_000
"""Maximum wait of a fetch: longer than `OdradekBroker` waits for the end of the process."""


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def endpoints(wire):
    """The broker's address in the responses of each API that returns it."""
    (broker,) = wire.metadata().brokers
    (described,) = wire.ask(DescribeClusterRequest(endpoint_type=1)).brokers

    def coordinator():
        (found,) = wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
        return found if found.error_code == 0 else None

    found = until(coordinator)
    return [(broker.host, broker.port), (described.host, described.port), (found.host, found.port)]


# Listeners


@needs_ipv6
def test_an_ipv6_listener():
    with OdradekBroker({"listeners": "PLAINTEXT://[::1]:0"}) as broker:
        assert re.fullmatch(r"\[::1\]:\d+", broker.bootstrap_servers)
        with Wire(broker.port, "::1") as wire:
            assert endpoints(wire) == [("::1", broker.port)] * 3
        port = broker.port
        assert broker.restart().port == port


def test_clients_get_the_endpoint_of_their_listener():
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "advertised.listeners": "INSIDE://inside.example:0,PLAINTEXT://outside.example:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with OdradekBroker(properties) as broker:
        ports = dict(address.rsplit(":", 1) for address in broker.addresses)
        assert set(ports) == {"inside.example", "outside.example"}
        for host, port in ports.items():
            with Wire(int(port)) as wire:
                assert endpoints(wire) == [(host, int(port))] * 3


def test_a_listener_without_a_host_listens_on_every_address():
    with OdradekBroker({"listeners": "PLAINTEXT://:0"}) as broker:
        for host in ["127.0.0.1", *(["::1"] if has_ipv6() else [])]:
            with Wire(broker.port, host) as wire:
                assert endpoints(wire) == [(socket.gethostname(), broker.port)] * 3


@needs_ipv6
def test_one_port_for_an_ipv4_and_an_ipv6_listener():
    port = find_port()
    listeners = f"FOUR://127.0.0.1:{port},SIX://[::1]:{port}"
    properties = {
        "listeners": listeners,
        "listener.security.protocol.map": "FOUR:PLAINTEXT,SIX:PLAINTEXT",
        "inter.broker.listener.name": "FOUR",
    }
    with OdradekBroker(properties):
        for host in ("127.0.0.1", "::1"):
            with Wire(port, host) as wire:
                assert endpoints(wire) == [(host, port)] * 3


# Errors and warnings at the start


def start(*overrides):
    """Run the program to its end. Return exit code and lines of output."""
    command = [sys.executable, "-m", "odradek", "start"]
    for override in ("listeners=PLAINTEXT://127.0.0.1:0", *overrides):
        command += ["--override", override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def assert_cannot_start(result, *words):
    """Assert that one readable line has the reason, without a traceback, and that nothing started."""
    code, lines = result
    errors = [line for line in lines if " ERROR " in line]
    assert code == 1, lines
    assert len(errors) == 1 and "cannot start: " in errors[0], lines
    assert all(word in errors[0] for word in words), errors
    assert not any("Traceback" in line or " started " in line for line in lines), lines


def test_a_port_in_use_is_reported_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = start(f"listeners=PLAINTEXT://127.0.0.1:{port}", f"log.dirs={tmp_path}")
    assert_cannot_start(result, f"127.0.0.1:{port}", "listeners")


def test_a_locked_directory_is_reported_in_one_line(tmp_path):
    with OdradekBroker(directory=tmp_path) as broker:
        assert_cannot_start(start(f"log.dirs={broker.data_dir}"), str(broker.data_dir), "another")
        # As a second directory it is protected by the lock file only.
        assert_cannot_start(start(f"log.dirs={tmp_path / 'own'},{broker.data_dir}"), str(broker.data_dir))
        with Wire(broker.port) as wire:
            wire.create_topic("undisturbed")
            assert wire.produce("undisturbed", b"v").error_code == 0


def test_a_file_in_place_of_a_directory_is_reported_in_one_line(tmp_path):
    path = tmp_path / "data"
    path.write_text("")
    assert_cannot_start(start(f"log.dirs={path}"), str(path), "log.dirs")
    assert_cannot_start(start(f"log.dirs={path / 'below'}"), str(path), "log.dirs")


def test_a_store_of_a_newer_format_is_reported_in_one_line_and_unchanged(tmp_path):
    with OdradekBroker(directory=tmp_path) as broker:
        assert broker.stop() == 0
    (store,) = broker.data_dir.glob("*.db")
    connection = sqlite3.connect(store)
    connection.execute("UPDATE meta SET value = 99 WHERE name = 'format_version'")
    connection.commit()
    connection.close()
    before = store.read_bytes()
    assert_cannot_start(start(f"log.dirs={broker.data_dir}"), str(store), "99")
    assert store.read_bytes() == before


def test_a_file_that_is_no_store_is_reported_in_one_line(tmp_path):
    with OdradekBroker(directory=tmp_path) as broker:
        broker.stop()
    (store,) = broker.data_dir.glob("*.db")
    store.write_bytes(b"not a database" * 1000)
    assert_cannot_start(start(f"log.dirs={broker.data_dir}"), str(store))


def test_a_directory_of_another_broker_is_reported_in_one_line(tmp_path):
    with OdradekBroker({"node.id": "1"}, directory=tmp_path) as broker:
        broker.stop()
    assert_cannot_start(start(f"log.dirs={broker.data_dir}", "node.id=2"), str(broker.data_dir), "node id 1")


def test_an_unknown_property_gives_a_warning_with_the_nearest_name(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(
        f"# a comment\nlisteners = PLAINTEXT://127.0.0.1:0\nlog.dirs: {tmp_path / 'data'}\nnum.partitons=3\n"
    )
    command = [sys.executable, "-m", "odradek", "start", str(path), "--override", "num.partitions=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if " odradek started " in line:
                    break
        finally:
            process.terminate()
            process.wait(30)
        assert process.returncode == 0
    warnings = [line for line in lines if " WARNING " in line]
    assert len(warnings) == 1 and "num.partitons" in warnings[0] and "num.partitions?" in warnings[0], lines


# Stop


def loaded_lines(broker):
    return [line for line in broker.log_text().splitlines() if "loaded logs " in line]


def test_a_clean_stop_is_recorded_and_read_at_the_next_start(tmp_path):
    with OdradekBroker(directory=tmp_path) as broker:
        with Wire(broker.port) as wire:
            wire.create_topic("kept")
            wire.produce("kept", b"v")
            assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
            assert broker.stop() == 0
        assert (broker.data_dir / ".kafka_cleanshutdown").exists()
        broker.start()
        assert "clean=True" in loaded_lines(broker)[-1]
        assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
        broker.restart(clean=False)
        assert "clean=False" in loaded_lines(broker)[-1]
        with Wire(broker.port) as wire:
            assert wire.offset("kept", LATEST) == 1


class Producer(threading.Thread):
    """A producer that writes numbered records, one a request, until the broker disconnects."""

    def __init__(self, port, partition):
        super().__init__(daemon=True)
        self.port, self.partition = port, partition
        self.acknowledged = 0
        self.first = threading.Event()

    def run(self):
        try:
            with Wire(self.port) as wire:
                while True:
                    answer = wire.produce("load", b"%d" % self.acknowledged, partition=self.partition)
                    if answer.error_code != 0:
                        return
                    assert answer.base_offset == self.acknowledged
                    self.acknowledged += 1
                    if self.acknowledged > 20:
                        self.first.set()
        except OSError:
            pass


def values(wire, topic, partition=0):
    found, offset = [], wire.offset(topic, EARLIEST, partition)
    end = wire.offset(topic, LATEST, partition)
    while offset < end:
        data = bytes(wire.fetch(topic, offset, partition).records)
        position = 0
        while position < len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            batch = data[position : position + size]
            if len(batch) == size:
                for record in iter_records(memoryview(batch)):
                    found.append(record.value)
                    offset = record.offset + 1
            position += size
    return found


def end_under_load(broker, end):
    """End the broker while producers write and fetches wait. Return the producers.

    A stop that waited for the fetches would not end in time.
    """
    with Wire(broker.port) as wire:
        wire.create_topic("load", partitions=2)
        wire.create_topic("silent")
    producers = [Producer(broker.port, partition) for partition in range(2)]
    parked = [Wire(broker.port) for _ in range(3)]
    for one in parked:
        one.send(Wire.fetch_request("silent", 0, max_wait_ms=FOREVER_MS, min_bytes=1), 11)
    for producer in producers:
        producer.start()
    for producer in producers:
        assert producer.first.wait(TIMEOUT_S)
    end()
    for producer in producers:
        producer.join(TIMEOUT_S)
        assert not producer.is_alive()
    for one in parked:
        one.socket.close()
    return producers


@pytest.mark.parametrize("clean", [True, False], ids=["SIGTERM", "kill -9"])
def test_records_acknowledged_under_load_outlive_the_end_of_the_broker(tmp_path, clean):
    with OdradekBroker(directory=tmp_path) as broker:
        codes = []
        producers = end_under_load(broker, (lambda: codes.append(broker.stop())) if clean else broker.kill)
        assert codes == [0] * clean
        assert "Traceback" not in broker.log_text()
        broker.start()
        assert f"clean={clean}" in loaded_lines(broker)[-1]
        with Wire(broker.port) as wire:
            for producer in producers:
                found = values(wire, "load", producer.partition)
                # The last record may have been written without an acknowledgement.
                assert producer.acknowledged <= len(found) <= producer.acknowledged + 1
                assert found == [b"%d" % number for number in range(len(found))]
            assert wire.produce("load", b"on").error_code == 0


def test_idle_connections_do_not_delay_the_stop():
    """A stop that waited for their ends would not end in time."""
    with OdradekBroker({"connections.max.idle.ms": str(FOREVER_MS)}) as broker:
        connections = [Wire(broker.port) for _ in range(20)]
        connections[0].socket.sendall(b"\0\0")
        assert broker.stop() == 0
        for one in connections:
            one.socket.close()
