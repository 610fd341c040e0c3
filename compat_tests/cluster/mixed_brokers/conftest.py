"""A fixture for tests that share a cluster, which is the fixture `mixed_cluster` of their module."""

import pytest

from compat_tests.cluster.mixed import MixedCluster


@pytest.fixture
def cluster(mixed_cluster: MixedCluster) -> MixedCluster:
    """The cluster with all brokers running, also after a test that failed."""
    for number, broker in mixed_cluster.brokers.items():
        if not broker.is_running:
            mixed_cluster.start(number)
    return mixed_cluster
