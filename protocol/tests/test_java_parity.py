"""The codec compared with Kafka's own message classes, for every declared message and version."""

import os
import random

import pytest
from py4j.protocol import Py4JJavaError

from compat_tests.apache_kafka import jars
from odradek.protocol import codec
from odradek.protocol.messages import API_NAMES, ZOOKEEPER_MODE_KEYS, request_class, response_class
from odradek.protocol.tests.java_oracle import Oracle, check, java_gateway
from odradek.protocol.tests.test_fuzz import mutate
from odradek.protocol.tests.values import MESSAGES, REQUESTS, RandomSource, make, versions_of

SEED = int(os.environ.get("ODRADEK_JAVA_PARITY_SEED", "3"))
EXAMPLES = int(os.environ.get("ODRADEK_JAVA_PARITY_EXAMPLES", "6"))
MUTANTS = int(os.environ.get("ODRADEK_JAVA_PARITY_MUTANTS", "2000"))

STRICTER_THAN_JAVA = (
    "'utf-8' codec can't decode",  # Java replaces invalid bytes by U+FFFD
    "negative length",  # Java treats each as null
    "varint out of range",  # Java drops the bits above the 32nd
    "tagged field",  # Java continues at the end of a known field regardless of its size, and reads huge counts as 0
)
"""Beginnings of the messages of errors that only this codec raises; Java decodes these bytes."""


@pytest.fixture(scope="module")
def gateway():
    with java_gateway() as made:
        yield made


@pytest.fixture(scope="module")
def oracle(gateway):
    return Oracle(gateway, gateway.jvm.org.apache.kafka.common.message, "Data")


@pytest.fixture(scope="module")
def gateway_of_zookeeper_mode():
    with java_gateway(("kafka-clients-",), jars.zookeeper_mode_jars) as made:
        yield made


@pytest.fixture(scope="module")
def oracle_of_zookeeper_mode(gateway_of_zookeeper_mode):
    return Oracle(gateway_of_zookeeper_mode, gateway_of_zookeeper_mode.jvm.org.apache.kafka.common.message, "Data")


def is_current(cls):
    """Return whether Kafka 4 has the message."""
    return cls.api_key not in ZOOKEEPER_MODE_KEYS


CURRENT = [cls for cls in MESSAGES if is_current(cls)]
OF_ZOOKEEPER_MODE = [cls for cls in MESSAGES if not is_current(cls)]


@pytest.mark.parametrize("cls", CURRENT, ids=[cls.__name__ for cls in CURRENT])
def test_parity_with_kafkas_own_classes(cls, oracle):
    check_parity(cls, oracle)


@pytest.mark.parametrize("cls", OF_ZOOKEEPER_MODE, ids=[cls.__name__ for cls in OF_ZOOKEEPER_MODE])
def test_parity_with_the_classes_of_zookeeper_mode(cls, oracle_of_zookeeper_mode):
    check_parity(cls, oracle_of_zookeeper_mode)


def check_parity(cls, oracle):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} {cls.__name__} {version}")
        for number in range(EXAMPLES):
            # One begins with an array so long that its compact length takes two bytes.
            long_array = number == 0 and version == cls.last_version
            message = make(cls, version, RandomSource(rng, long_array_first=long_array))
            check(oracle, cls, version, message)


def test_a_mutated_request_means_the_same_to_java(oracle):
    """Both codecs refuse the same bytes, and decode the others to the same message, up to the same byte."""
    rng = random.Random(SEED)
    head = bytes(6)  # where a frame has its length and API key
    corpus = [
        (cls, version, head + codec.encode(make(cls, version, RandomSource(rng)), version))
        for cls in REQUESTS
        if is_current(cls)
        for version in versions_of(cls)
    ]
    others = [encoded for _, _, encoded in corpus]
    both_read = 0
    for _ in range(MUTANTS):
        cls, version, encoded = rng.choice(corpus)
        mutant = mutate(encoded, others, rng)[len(head) :]
        label = f"{cls.__name__} v{version} {mutant.hex()}"
        try:
            java_message, left_over = oracle.read(cls, version, mutant)
        except Py4JJavaError:
            java_message = None
        try:
            message, position = codec.decoder(cls, version)(mutant, 0, len(mutant))
        except codec.MALFORMED as error:
            assert java_message is None or str(error).startswith(STRICTER_THAN_JAVA), f"{error}: {label}"
            continue
        assert java_message is not None, f"Java refuses: {label}"
        assert position == len(mutant) - left_over, label
        # The bytes are not compared: Java preserves unknown tagged fields.
        again, _ = oracle.read(cls, version, codec.encode(message, version))
        assert oracle.to_json(cls, version, again) == oracle.to_json(cls, version, java_message), label
        both_read += 1
    assert both_read > MUTANTS / 20


@pytest.mark.parametrize("key", sorted(ZOOKEEPER_MODE_KEYS))
def test_zookeeper_mode_has_the_last_version_that_brokers_send(key, gateway_of_zookeeper_mode):
    """Brokers of Kafka 3.9 send these requests in the last version, without a request for the supported versions."""
    kafka = gateway_of_zookeeper_mode.jvm.org.apache.kafka.common.message.ApiMessageType.fromApiKey(key)
    assert request_class(key).first_version >= kafka.lowestSupportedVersion()
    assert request_class(key).last_version == kafka.highestSupportedVersion(True)
    check_headers(key, kafka)


@pytest.mark.parametrize("key", sorted(API_NAMES.keys() - ZOOKEEPER_MODE_KEYS))
def test_the_same_versions_are_known_to_kafka(key, gateway):
    kafka = gateway.jvm.org.apache.kafka.common.message.ApiMessageType.fromApiKey(key)
    for cls, make_java in ((request_class(key), kafka.newRequest), (response_class(key), kafka.newResponse)):
        assert make_java().getClass().getSimpleName() == f"{cls.__name__}Data"
        assert cls.first_version == kafka.lowestSupportedVersion()
        assert cls.last_version == kafka.highestSupportedVersion(True)
    check_headers(key, kafka)


def check_headers(key, kafka):
    for version in versions_of(request_class(key)):
        flexible = request_class(key).is_flexible(version)
        assert kafka.requestHeaderVersion(version) == (2 if flexible else 1)
        assert response_class(key).is_flexible(version) == flexible
