"""Fixtures for tests of clusters. Each module has a fixture `cluster` of its own."""

from collections.abc import Iterator

import pytest
from kafka.admin import KafkaAdminClient

from compat_tests.cluster.mixed import MixedCluster
from odradek.testing_cluster import OdradekCluster


@pytest.fixture
def admin(cluster: OdradekCluster | MixedCluster) -> Iterator[KafkaAdminClient]:
    """An admin client of the module's cluster."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    yield admin
    admin.close()
