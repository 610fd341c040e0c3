"""The pytest plugin, in a separate pytest run with a stand-in for the broker."""

import subprocess
import sys

import pytest

CONFTEST = """
import pytest
import odradek.testing
import odradek.testing_cluster

class StandIn:
    def __init__(self, properties):
        self.properties = dict(properties)
        self.is_running = False
    def __enter__(self):
        self.is_running = True
        return self
    def __exit__(self, *_):
        self.is_running = False
    def log_text(self):
        return "a line of the log"

class ClusterStandIn(StandIn):
    def __init__(self, properties, *, size):
        self.properties = properties
        self.brokers = {number: StandIn({}) for number in range(1, size + 1)}

odradek.testing.OdradekBroker = StandIn
odradek.testing_cluster.OdradekCluster = ClusterStandIn
"""

TESTS = """
import pytest

seen = []

@pytest.mark.odradek(properties={"num.partitions": "1", "a": "b"})
class TestMarkers:
    @pytest.mark.odradek(properties={"num.partitions": "3"})
    def test_the_nearest_marker_wins(self, odradek_broker):
        assert odradek_broker.properties == {"num.partitions": "3", "a": "b"}
        assert odradek_broker.is_running
        seen.append(odradek_broker)

def test_each_test_has_its_own(odradek_broker, odradek_session_broker):
    assert odradek_broker.properties == {}
    assert not seen[0].is_running
    seen.append(odradek_session_broker)

def test_the_session_shares_one(odradek_session_broker):
    assert odradek_session_broker is seen[1]
    assert odradek_session_broker.is_running

@pytest.mark.odradek(partitions=3)
def test_a_marker_that_is_wrong(odradek_broker):
    pass

@pytest.mark.odradek(properties={"num.partitions": "3"})
def test_a_marker_for_the_session(odradek_session_broker):
    pass

@pytest.mark.odradek(properties={"num.partitions": "3"})
def test_a_marker_beside_the_session(odradek_broker, odradek_session_broker):
    assert odradek_broker.properties == {"num.partitions": "3"}

def test_a_failure_shows_the_log(odradek_broker):
    assert False

@pytest.mark.odradek_cluster(size=5, properties={"num.partitions": "1", "a": "b"})
class TestClusterMarkers:
    @pytest.mark.odradek_cluster(properties={"num.partitions": "3"})
    def test_the_nearest_marker_wins(self, odradek_cluster):
        assert odradek_cluster.properties == {"num.partitions": "3", "a": "b"}
        assert len(odradek_cluster.brokers) == 5
        assert odradek_cluster.is_running

def test_three_brokers(odradek_cluster):
    assert len(odradek_cluster.brokers) == 3

@pytest.mark.odradek_cluster(3)
def test_a_cluster_marker_that_is_wrong(odradek_cluster):
    pass

@pytest.mark.odradek_cluster(size=2)
def test_a_failure_shows_the_logs_of_the_cluster(odradek_cluster):
    assert False
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    command = [sys.executable, "-m", "pytest", str(directory), "--rootdir", str(directory)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False).stdout


def test_fixtures_and_marker(output):
    assert "6 passed" in output and "2 failed" in output and "3 errors" in output


def test_a_wrong_marker_is_an_error(output):
    assert "ERROR test_it.py::test_a_marker_that_is_wrong - TypeError" in output
    assert "ERROR test_it.py::test_a_cluster_marker_that_is_wrong - TypeError" in output


def test_a_marker_without_effect_is_an_error(output):
    assert "ERROR test_it.py::test_a_marker_for_the_session" in output
    assert "@pytest.mark.odradek has no effect on odradek_session_broker" in output


def test_the_log_is_shown_with_a_failure(output):
    assert "odradek_broker log" in output and "a line of the log" in output


def test_the_log_of_each_broker_of_a_cluster_is_shown(output):
    assert [f"odradek_cluster log of broker {number}" in output for number in (1, 2, 3)] == [True, True, False]
