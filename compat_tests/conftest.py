"""Brokers for the compatibility tests: the same tests run against Odradek and against Apache Kafka."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compat_tests import clients, limits
from compat_tests.apache_kafka import jars
from compat_tests.backends import BROKERS, Broker
from compat_tests.clients.common import Admin
from compat_tests.plain_requests import wait_for_topics

# Properties of both brokers: short delays for group tests, and values that the scenarios rely on.
SHARED_PROPERTIES = {
    "auto.create.topics.enable": "true",
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # Detection time of a transaction past its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}

# Tests write records of years ago. The first retention check, 30 seconds after the start, would delete them.
NO_RETENTION_CHECKS = {"log.initial.task.delay.ms": "86400000", "log.retention.check.interval.ms": "86400000"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): runs with the client libraries that have these")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        needed = {feature for mark in metafunc.definition.iter_markers("needs") for feature in mark.args}
        able = [name for name in clients.NAMES if needed <= clients.load(name).FEATURES]
        metafunc.parametrize("library", able)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limits.TEST_S))


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """Return Apache Kafka's jars; every test that needs Java uses this fixture."""
    try:
        return jars.kafka_jars()
    except jars.JarsError as error:
        pytest.exit(f"The compatibility tests need Apache Kafka's jars. {error}", returncode=1)


@pytest.fixture(scope="session")
def broker(backend: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for all tests that share it; they use different topic and group names."""
    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with BROKERS[backend]({**SHARED_PROPERTIES, **NO_RETENTION_CHECKS}) as started:
        yield started


@pytest.fixture
def start_broker(backend: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Start a broker for one test, which may restart or kill it: start_broker({name: value})."""
    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with ExitStack() as stack:

        def start(properties: Mapping[str, str] | None = None, **options: Any) -> Broker:
            made = BROKERS[backend]({**SHARED_PROPERTIES, **(properties or {})}, **options)
            return stack.enter_context(made)

        yield start


@pytest.fixture
def client(library: str) -> Any:
    """The adapter module of the tested client library."""
    return clients.load(library)


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    """An admin client for the setup of tests."""
    with clients.load("kafka_python").Admin(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def topic(unique: str, broker: Broker, admin: Admin) -> str:
    """A fresh topic with one partition."""
    admin.create_topic(unique, 1)
    wait_for_topics(broker, [unique])
    return unique
