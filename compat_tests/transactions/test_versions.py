"""The finalized feature transaction.version, and brokers at a level below 2: the same as Apache Kafka."""

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.admin.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from compat_tests.backends import BROKERS
from compat_tests.bad_frames import Connection
from compat_tests.clients import load
from compat_tests.clients.common import wait_until
from compat_tests.conftest import SHARED_PROPERTIES
from compat_tests.transaction_frames import (
    Code,
    Initialized,
    add_partitions,
    await_coordinator,
    await_state,
    await_topic,
    batches,
    code,
    describe,
    end,
    fetch,
    finish,
    init,
    produce,
    records_of,
    start,
    write,
)

pytestmark = pytest.mark.side_by_side

FEATURE = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
HERE = ("transactions-versions", 0)


@pytest.fixture(scope="module")
def own_broker(backend: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker whose features no other test uses."""
    if backend == "kafka":
        request.getfixturevalue("kafka_jars")
    with BROKERS[backend](SHARED_PROPERTIES) as started:
        with load("kafka_python").Admin(started.bootstrap_servers) as admin:
            admin.create_topic(HERE[0])
        with Connection(started.port) as connection:
            await_topic(connection, HERE[0])
            await_coordinator(connection)
        yield started


@pytest.fixture
def connection(own_broker: Any) -> Iterator[Connection]:
    with Connection(own_broker.port) as made:
        yield made


def update(
    connection: Connection, level: int, kind: int, *, feature: str = FEATURE, validate: bool = False, version: int = 2
) -> int:
    of_feature = UpdateFeaturesRequest.FeatureUpdateKey
    asked = of_feature(
        feature=feature,
        max_version_level=level,
        allow_downgrade=kind != UPGRADE,
        upgrade_type=kind,
    )
    request = UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[asked], validate_only=validate)
    answer = connection.ask(request, UpdateFeaturesResponse, version)
    if version < 2 and answer.error_code == 0:
        assert [(row.feature, row.error_code) for row in answer.results] == [(feature, 0)]
    return code(answer.error_code)


def finalized(connection: Connection) -> dict[str, int]:
    asked = ApiVersionsRequest(client_software_name="compat", client_software_version="1")
    answer = connection.ask(asked, ApiVersionsResponse, 3)
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


@pytest.fixture
def level_1(connection: Connection) -> Iterator[None]:
    """Set the broker to version 1 for the duration of a test."""
    assert update(connection, 1, SAFE_DOWNGRADE) == Code.NONE
    wait_until(lambda: finalized(connection).get(FEATURE) == 1)
    yield
    assert update(connection, 2, UPGRADE) == Code.NONE
    wait_until(lambda: finalized(connection).get(FEATURE) == 2)


INVALID_UPDATE_VERSION = 95


@pytest.mark.parametrize("version", [1, 2])
def test_the_level_goes_down_and_up(connection, version):
    assert finalized(connection)[FEATURE] == 2
    assert update(connection, 1, SAFE_DOWNGRADE, version=version) == Code.NONE
    wait_until(lambda: finalized(connection).get(FEATURE) == 1)
    assert update(connection, 2, UPGRADE, version=version) == Code.NONE
    wait_until(lambda: finalized(connection).get(FEATURE) == 2)


def test_no_level_goes_down_in_version_0(connection):
    """The permission to downgrade in version 0 is ignored."""
    assert update(connection, 1, SAFE_DOWNGRADE, version=0) == INVALID_UPDATE_VERSION
    assert update(connection, 2, UPGRADE, version=0) == Code.NONE
    assert finalized(connection)[FEATURE] == 2


@pytest.mark.parametrize(
    ("what", "level", "kind", "expected"),
    [
        ("above what is supported", 3, UPGRADE, INVALID_UPDATE_VERSION),
        ("negative", -1, SAFE_DOWNGRADE, INVALID_UPDATE_VERSION),
        ("a downgrade called an upgrade", 1, UPGRADE, INVALID_UPDATE_VERSION),
        ("no kind at all", 1, 0, INVALID_UPDATE_VERSION),
        ("an unknown kind", 1, 9, INVALID_UPDATE_VERSION),
        ("the level that it has", 2, UPGRADE, Code.NONE),
        ("the level that it has, as a downgrade", 2, SAFE_DOWNGRADE, Code.NONE),
    ],
)
def test_updates_that_change_nothing(connection, what, level, kind, expected):
    assert update(connection, level, kind) == expected
    assert finalized(connection)[FEATURE] == 2


def test_validate_only_changes_nothing(connection):
    assert update(connection, 1, SAFE_DOWNGRADE, validate=True) == Code.NONE
    assert update(connection, 3, UPGRADE, validate=True) == INVALID_UPDATE_VERSION
    assert finalized(connection)[FEATURE] == 2


def test_an_unknown_feature(connection):
    assert update(connection, 1, UPGRADE, feature="nonsense.version") == INVALID_UPDATE_VERSION
    assert update(connection, 1, UPGRADE, feature="") == INVALID_UPDATE_VERSION


def test_transactions_at_version_1(connection, level_1):
    """Old producers are served; the version of a request determines its effect, not the feature's."""
    old = start(connection, "at-1-old")
    add_partitions(connection, old, [HERE])
    write(connection, old, HERE, records_of(old))
    assert finish(connection, old) == old
    assert end(connection, old).code == Code.NONE

    new = start(connection, "at-1-new")
    write(connection, new, HERE, records_of(new), version=12)
    assert describe(connection, "at-1-new").transaction_state == "Ongoing"
    assert finish(connection, new, version=5).epoch == 1


def test_fencing_at_version_1(connection, level_1):
    zombie = start(connection, "at-1-fenced")
    add_partitions(connection, zombie, [HERE])
    base = write(connection, zombie, HERE, records_of(zombie))
    assert init(connection, "at-1-fenced").code == Code.CONCURRENT_TRANSACTIONS
    assert await_state(connection, "at-1-fenced", "CompleteAbort").producer_epoch == 1
    (data, marker) = batches(fetch(connection, HERE, base).records)
    assert (data.epoch, marker.epoch, marker.marker) == (0, 1, (0, 0))
    assert start(connection, "at-1-fenced").epoch == 2
    assert produce(connection, zombie, HERE, records_of(zombie, 1), version=11)[0] == Code.INVALID_PRODUCER_EPOCH


def test_a_timeout_at_version_1(connection, level_1):
    # The timeout is longer than a busy machine takes to write the record.
    late = start(connection, "at-1-late", timeout_ms=2000)
    add_partitions(connection, late, [HERE])
    write(connection, late, HERE, records_of(late))
    assert await_state(connection, "at-1-late", "CompleteAbort").producer_epoch == 1
    assert end(connection, late, commit=False).code == Code.PRODUCER_FENCED
    bumped = init(connection, "at-1-late", producer=(late.producer_id, late.epoch))
    assert bumped == Initialized(Code.PRODUCER_FENCED, -1, -1)
    assert start(connection, "at-1-late").epoch == 2


def test_fencing_at_version_2(connection):
    """The marker of the abort has the next epoch, as every marker."""
    zombie = start(connection, "at-2-fenced")
    write(connection, zombie, HERE, records_of(zombie), version=12)
    base = produce(connection, zombie, HERE, records_of(zombie), version=12)[1]
    assert init(connection, "at-2-fenced").code == Code.CONCURRENT_TRANSACTIONS
    assert await_state(connection, "at-2-fenced", "CompleteAbort").producer_epoch == 1
    (data, marker) = batches(fetch(connection, HERE, base).records)
    assert (data.epoch, marker.epoch, marker.marker) == (0, 1, (0, 0))
    assert start(connection, "at-2-fenced").epoch == 2
