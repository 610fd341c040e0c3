"""Keys and values of the coordinators' records against Kafka's own classes, in every version."""

import random

import pytest

from odradek.coordinator.groups.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from odradek.coordinator.transactions.records import TransactionLogKey, TransactionLogValue
from odradek.protocol.tests.java_oracle import Oracle, check, java_gateway
from odradek.protocol.tests.values import RandomSource, make, versions_of

EXAMPLES = 20


@pytest.fixture(scope="module")
def coordinators():
    with java_gateway() as gateway:
        yield gateway, gateway.jvm.org.apache.kafka.coordinator


def check_every_version(cls, oracle):
    for version in versions_of(cls):
        rng = random.Random(f"{cls.__name__} {version}")
        for _ in range(EXAMPLES):
            check(oracle, cls, version, make(cls, version, RandomSource(rng)))


@pytest.mark.parametrize("cls", [OffsetCommitKey, OffsetCommitValue, GroupMetadataKey, GroupMetadataValue])
def test_group_records_are_those_of_kafka(cls, coordinators):
    gateway, packages = coordinators
    check_every_version(cls, Oracle(gateway, packages.group.generated, ""))


@pytest.mark.parametrize("cls", [TransactionLogKey, TransactionLogValue])
def test_transaction_records_are_those_of_kafka(cls, coordinators):
    gateway, packages = coordinators
    check_every_version(cls, Oracle(gateway, packages.transaction.generated, ""))
