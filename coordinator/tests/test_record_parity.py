"""Keys and values of the coordinators' records against Kafka's own classes, in every version."""

import random

import pytest

from odradek.coordinator.record_types import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from odradek.protocol.tests.java_oracle import Oracle, check, java_gateway
from odradek.protocol.tests.values import RandomSource, make, versions_of

EXAMPLES = 20


@pytest.fixture(scope="module")
def oracle():
    with java_gateway() as gateway:
        yield Oracle(gateway, gateway.jvm.org.apache.kafka.coordinator.group.generated, "")


@pytest.mark.parametrize("cls", [OffsetCommitKey, OffsetCommitValue, GroupMetadataKey, GroupMetadataValue])
def test_parity_with_kafkas_own_classes(cls, oracle):
    for version in versions_of(cls):
        rng = random.Random(f"{cls.__name__} {version}")
        for _ in range(EXAMPLES):
            check(oracle, cls, version, make(cls, version, RandomSource(rng)))
