"""Administration of a mixed cluster: quotas."""

from collections.abc import Iterator

import pytest

from compat_tests import limits
from compat_tests.administration.test_client_quotas import CONSUMER, PRODUCER, REQUEST, Client
from compat_tests.clients.common import wait_until
from compat_tests.cluster.mixed import KAFKA, ODRADEK, MixedCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(limits.TEST_S),
]

FIRST, SECOND, JAVA = 1, 2, 3
FROM_ODRADEK, FROM_KAFKA = "set at odradek", "set/at kafka %"


@pytest.fixture(scope="module")
def mixed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Two brokers of Odradek and one of Apache Kafka, which is the first controller."""
    kinds = {FIRST: ODRADEK, SECOND: ODRADEK, JAVA: KAFKA}
    with MixedCluster(kinds, tmp_path_factory.mktemp("mixed")) as cluster:
        for number in (JAVA, FIRST, SECOND):
            cluster.start(number)
        yield cluster


@pytest.fixture
def cluster(mixed_cluster: MixedCluster) -> MixedCluster:
    """The cluster with all brokers running, also after a test that failed."""
    for number, broker in mixed_cluster.brokers.items():
        if not broker.is_running:
            mixed_cluster.start(number)
    return mixed_cluster


def is_throttled(port: int, client_id: str) -> bool:
    """Return whether a client that has used its quota gets the longest throttle time of a request quota."""
    with Client(port, client_id) as client:
        client.heartbeat()
    with Client(port, client_id) as client:
        return client.heartbeat() == 1000


def test_a_quota_set_on_either_kind_applies_to_both(cluster: MixedCluster) -> None:
    ports = {number: cluster.port(number) for number in (FIRST, JAVA)}
    for number, name in ((FIRST, FROM_ODRADEK), (JAVA, FROM_KAFKA)):
        with Client(ports[number], "admin") as admin:
            admin.set({"user": "ANONYMOUS", "client-id": name}, **{REQUEST: 0.001, PRODUCER: 5.0})
    for port in ports.values():
        for name in (FROM_ODRADEK, FROM_KAFKA):
            wait_until(lambda port=port, name=name: is_throttled(port, name))  # type: ignore[misc]
    described = []
    for port in ports.values():
        with Client(port, "admin") as admin:
            found = admin.describe([])[2] or []
            described.append({tuple(sorted(entity, key=str)): quotas for entity, quotas in found})
    assert described[0] == described[1]
    assert len(described[0]) == 2
    # A change at one broker keeps what the other has set, and a removal reaches the other.
    with Client(ports[FIRST], "admin") as admin:
        admin.set({"user": "ANONYMOUS", "client-id": FROM_KAFKA}, **{REQUEST: None, CONSUMER: 7.0})
    with Client(ports[JAVA], "admin") as admin:
        expected = {PRODUCER: 5.0, CONSUMER: 7.0}
        components: list[tuple[str, int, str | None]] = [("client-id", 0, FROM_KAFKA)]
        wait_until(lambda: [one[1] for one in admin.describe(components)[2] or []] == [expected])
    wait_until(lambda: not is_throttled(ports[JAVA], FROM_KAFKA))
