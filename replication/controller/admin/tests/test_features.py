"""Finalized features in the store: Kafka's layout, allowed changes, and concurrent changes."""

import json

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.admin.features import (
    INITIAL_LEVELS,
    PATH,
    TRANSACTION_VERSION,
    Features,
    FeatureUpdate,
    UpgradeType,
    decode,
    encode,
)
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster

UP, SAFE, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def features(cluster):
    return loaded(cluster.store)


def loaded(store):
    features = Features()
    run_now(features.load(store))
    return features


def update(features, cluster, level, kind=UP, *, name=TRANSACTION_VERSION, validate_only=False):
    """Return the error of an update, or None."""
    updates = [FeatureUpdate(name, level, kind)]
    try:
        run_now(features.update(cluster.controller, updates, validate_only=validate_only))
    except KafkaError as error:
        return error.code
    return None


def test_the_node_is_as_kafka_writes_it(cluster, features):
    node = run_now(cluster.store.get(PATH))
    assert json.loads(node.data) == {
        "features": {"transaction.version": {"max_version_level": 2}}, "version": 2, "status": 1
    }  # fmt: skip
    assert (features.levels, features.epoch) == (INITIAL_LEVELS, node.stat.version)


def test_nodes_of_other_versions():
    old = {"features": {"f": {"min_version_level": 1, "max_version_level": 3}}, "version": 1, "status": 1}
    assert decode(json.dumps(old).encode()) == {"f": 3}
    assert decode(json.dumps(old | {"status": 0}).encode()) == {}, "features are disabled"
    assert decode(encode({"a": 1, "b": 2})) == {"a": 1, "b": 2}


def test_stored_levels_are_not_replaced(cluster):
    run_now(cluster.store.create(PATH, encode({TRANSACTION_VERSION: 1})))
    features = loaded(cluster.store)
    assert features.level(TRANSACTION_VERSION) == 1
    assert features.level("other") == 0


REFUSED = [(3, UP), (-1, SAFE), (1, UP), (0, UP), (3, UNSAFE), (2, 0), (2, 4)]


@pytest.mark.parametrize(("level", "kind"), REFUSED)
def test_invalid_updates_are_refused(cluster, features, level, kind):
    assert update(features, cluster, level, kind) == ErrorCode.INVALID_UPDATE_VERSION
    assert features.epoch == 0


def test_features_that_are_not_served(cluster, features):
    assert update(features, cluster, 1, name="group.version") == ErrorCode.INVALID_UPDATE_VERSION
    assert update(features, cluster, 0, SAFE, name="group.version") is None, "at level 0 it is not in use"
    assert features.epoch == 0


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_down_and_up_again(cluster, features, kind):
    levels = []
    features.listeners.append(lambda: levels.append(features.level(TRANSACTION_VERSION)))
    assert update(features, cluster, 0, kind, validate_only=True) is None
    assert update(features, cluster, 0, kind) is None
    assert (features.levels, features.epoch) == ({}, 1)
    assert update(features, cluster, 1, kind) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(features, cluster, 2) is None
    assert levels == [0, 2]
    again = loaded(cluster.store)
    assert (again.levels, again.epoch) == (features.levels, 2)


def test_all_updates_or_none(cluster, features):
    updates = [FeatureUpdate(TRANSACTION_VERSION, 1, SAFE), FeatureUpdate("none", 1, UP)]
    with pytest.raises(KafkaError):
        run_now(features.update(cluster.controller, updates, validate_only=False))
    assert features.level(TRANSACTION_VERSION) == 2


def test_an_update_that_lost_the_race_fails_and_loads_the_stored_levels(cluster, features):
    """The slower broker's update is refused, and its levels are those of the faster one."""
    run_now(cluster.store.set(PATH, encode({TRANSACTION_VERSION: 1})))
    assert update(features, cluster, 0, SAFE) == ErrorCode.FEATURE_UPDATE_FAILED
    assert (features.level(TRANSACTION_VERSION), features.epoch) == (1, 1)
    assert update(features, cluster, 0, SAFE) is None


def test_only_the_controller_changes_them(cluster, features):
    cluster.controller.context.resign("a test")
    assert update(features, cluster, 1, SAFE) == ErrorCode.NOT_CONTROLLER
