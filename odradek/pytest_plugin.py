"""Pytest fixtures with a real broker.

    def test_one(odradek_broker):
        KafkaProducer(bootstrap_servers=odradek_broker.bootstrap_servers)

    @pytest.mark.odradek(properties={"num.partitions": "3"})
    def test_another(odradek_broker): ...

`odradek_broker` is a new broker for each test. `odradek_session_broker` is one broker for the whole run, with the
properties that the fixture `odradek_session_properties` returns; override that fixture in a conftest.py. The marker is
an error on a test that uses the session's broker only. Both fixtures are an `odradek.testing.OdradekBroker`. The report
of a failed test includes the broker's log.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from odradek.testing import OdradekBroker

_FIXTURES = ("odradek_broker", "odradek_session_broker")
_LOG_LINES_SHOWN = 60


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker for the properties of a test's broker."""
    config.addinivalue_line(
        "markers", "odradek(properties): properties, by Kafka's names, of the broker in odradek_broker"
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
    """Add the end of the broker's log to the report of a failed test."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed and report.when == "call":
        fixtures = getattr(item, "funcargs", {})
        for name in _FIXTURES:
            if name in fixtures:
                tail = fixtures[name].log_text().splitlines()[-_LOG_LINES_SHOWN:]
                report.sections.append((f"{name} log", "\n".join(tail)))
