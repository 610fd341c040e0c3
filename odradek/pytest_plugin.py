"""Pytest fixtures with real brokers.

    def test_one(odradek_broker):
        KafkaProducer(bootstrap_servers=odradek_broker.bootstrap_servers)

    @pytest.mark.odradek(properties={"num.partitions": "3"})
    def test_another(odradek_broker): ...

    @pytest.mark.odradek_cluster(size=3, properties={"min.insync.replicas": "2"})
    def test_failover(odradek_cluster):
        odradek_cluster.kill(1)

`odradek_broker` is a new broker for each test. `odradek_session_broker` is one broker for the whole run, with the
properties that the fixture `odradek_session_properties` returns; override that fixture in a conftest.py. The marker is
an error on a test that uses the session's broker only. Both fixtures are an `odradek.testing.OdradekBroker`.

`odradek_cluster` is a new `odradek.testing_cluster.OdradekCluster` for each test, of three brokers unless its marker
has another size. It needs Java and `odradek[spark]` for ZooKeeper, and some seconds; a fixture of your own can share
one between tests.

The report of a failed test includes the end of each broker's log.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from odradek.testing import OdradekBroker
    from odradek.testing_cluster import OdradekCluster

_FIXTURES = ("odradek_broker", "odradek_session_broker")
_CLUSTER_FIXTURE = "odradek_cluster"
_LOG_LINES_SHOWN = 60


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers for the properties of a test's brokers."""
    config.addinivalue_line(
        "markers", "odradek(properties): properties, by Kafka's names, of the broker in odradek_broker"
    )
    config.addinivalue_line(
        "markers", "odradek_cluster(size, properties): number of brokers in odradek_cluster, and their properties"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reject a marker without effect."""
    fixtures = getattr(item, "fixturenames", ())
    if (
        "odradek_session_broker" in fixtures
        and "odradek_broker" not in fixtures
        and item.get_closest_marker("odradek") is not None
    ):
        pytest.fail(
            "@pytest.mark.odradek has no effect on odradek_session_broker, which is started once for all tests; use "
            "odradek_broker, or set the properties in the fixture odradek_session_properties",
            pytrace=False,
        )


def _marker_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties of a marker. Raises TypeError for other arguments."""
    return properties


@pytest.fixture
def odradek_broker(request: pytest.FixtureRequest) -> "Iterator[OdradekBroker]":
    """A new broker on a free port, in a temporary directory, removed after the test."""
    from odradek.testing import OdradekBroker

    properties: dict[str, str] = {}
    for marker in reversed(list(request.node.iter_markers("odradek"))):
        properties.update(_marker_properties(*marker.args, **marker.kwargs))
    with OdradekBroker(properties) as broker:
        yield broker


def _cluster_arguments(
    *, size: int | None = None, properties: Mapping[str, str] | None = None
) -> tuple[int | None, Mapping[str, str]]:
    """Return the arguments of a marker. Raises TypeError for others."""
    return size, properties or {}


@pytest.fixture
def odradek_cluster(request: pytest.FixtureRequest) -> "Iterator[OdradekCluster]":
    """A new cluster with its own ZooKeeper on free ports, in a temporary directory, removed after the test."""
    from odradek.testing_cluster import OdradekCluster

    cluster_size = 3
    cluster_properties: dict[str, str] = {}
    for marker in reversed(list(request.node.iter_markers("odradek_cluster"))):
        size, properties = _cluster_arguments(*marker.args, **marker.kwargs)
        cluster_size = size or cluster_size
        cluster_properties.update(properties)
    with OdradekCluster(cluster_properties, size=cluster_size) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def odradek_session_properties() -> Mapping[str, str]:
    """Properties of odradek_session_broker; override this fixture."""
    return {}


@pytest.fixture(scope="session")
def odradek_session_broker(odradek_session_properties: Mapping[str, str]) -> "Iterator[OdradekBroker]":
    """One broker for the whole run; tests that share it use distinct topic and group names."""
    from odradek.testing import OdradekBroker

    with OdradekBroker(odradek_session_properties) as broker:
        yield broker


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the end of each broker's log to the report of a failed test."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed and report.when == "call":
        fixtures = getattr(item, "funcargs", {})
        for name in _FIXTURES:
            if name in fixtures:
                report.sections.append((f"{name} log", _log_tail(fixtures[name])))
        if _CLUSTER_FIXTURE in fixtures:
            for broker_id, broker in fixtures[_CLUSTER_FIXTURE].brokers.items():
                report.sections.append((f"{_CLUSTER_FIXTURE} log of broker {broker_id}", _log_tail(broker)))


def _log_tail(broker: "OdradekBroker") -> str:
    return "\n".join(broker.log_text().splitlines()[-_LOG_LINES_SHOWN:])
