"""Our codec against Kafka's own message classes, for every message and version we declare."""

import os
import random

import pytest

from odradek.protocol.messages import API_NAMES, request_class, response_class
from odradek.protocol.tests.java_oracle import Oracle, check, java_gateway
from odradek.protocol.tests.values import MESSAGES, RandomSource, make, versions_of

SEED = int(os.environ.get("ODRADEK_JAVA_PARITY_SEED", "3"))
EXAMPLES = int(os.environ.get("ODRADEK_JAVA_PARITY_EXAMPLES", "6"))


@pytest.fixture(scope="module")
def gateway():
    with java_gateway() as made:
        yield made


@pytest.fixture(scope="module")
def oracle(gateway):
    return Oracle(gateway, gateway.jvm.org.apache.kafka.common.message, "Data")


@pytest.mark.parametrize("cls", MESSAGES, ids=[cls.__name__ for cls in MESSAGES])
def test_parity_with_kafkas_own_classes(cls, oracle):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} {cls.__name__} {version}")
        for number in range(EXAMPLES):
            # One begins with an array so long that its compact length takes two bytes.
            long_array = number == 0 and version == cls.last_version
            message = make(cls, version, RandomSource(rng, long_array_first=long_array))
            check(oracle, cls, version, message)


@pytest.mark.parametrize("key", API_NAMES)
def test_the_same_versions_are_known_to_kafka(key, gateway):
    kafka = gateway.jvm.org.apache.kafka.common.message.ApiMessageType.fromApiKey(key)
    for cls, make_java in ((request_class(key), kafka.newRequest), (response_class(key), kafka.newResponse)):
        assert make_java().getClass().getSimpleName() == f"{cls.__name__}Data"
        assert cls.first_version == kafka.lowestSupportedVersion()
        assert cls.last_version == kafka.highestSupportedVersion(True)
    for version in versions_of(request_class(key)):
        flexible = request_class(key).is_flexible(version)
        assert kafka.requestHeaderVersion(version) == (2 if flexible else 1)
        assert response_class(key).is_flexible(version) == flexible
