"""Every API with each combination of the operations that it needs, on Apache Kafka and on Odradek."""

import itertools
from collections.abc import Iterator

import pytest

from compat_tests.authorization.admin_cases import ADMIN_CASES
from compat_tests.authorization.brokers import (
    CLIENT_HOST,
    KEYS,
    Broker,
    Client,
    SecuredKafkaBroker,
    batch,
    make_odradek,
    needs,
)
from compat_tests.authorization.case import EXISTING, GRANTED, GROUPS, HIDDEN, IDS, Case
from compat_tests.authorization.group_cases import GROUP_CASES
from compat_tests.authorization.record_cases import RECORD_CASES
from compat_tests.authorization.security_cases import SECURITY_CASES
from compat_tests.authorization.transaction_cases import TRANSACTION_CASES
from odradek.protocol.access_control import ResourceType
from odradek.server.apis import served_apis
from odradek.server.security.authorization.needs import Need

Brokers = tuple[Broker, Broker]
CASES = [
    (case, version)
    for case in (*RECORD_CASES, *GROUP_CASES, *TRANSACTION_CASES, *ADMIN_CASES, *SECURITY_CASES)
    for version in case.versions
]
WITHOUT_RIGHTS = {"ApiVersions", "GetTelemetrySubscriptions", "PushTelemetry", "SaslHandshake", "SaslAuthenticate"}
NOT_LEADER = 6
_numbers = itertools.count(1)


def set_up(broker: Broker) -> Broker:
    """Create the topics, groups and transactions that exist."""
    broker.bootstrap()
    broker.create_topics(EXISTING, HIDDEN, partitions=2)
    admin = broker.admin
    data = {"partition_data": [{"index": 0, "records": batch()}]}
    topics = [{"name": name, **data} for name in (EXISTING, HIDDEN)]
    request = {"acks": -1, "timeout_ms": 9_000, "topic_data": topics}
    produced = broker.ask_until_ready(admin, "Produce", 9, request, retried={NOT_LEADER})
    assert {row.error_code for topic in produced.responses for row in topic.partition_responses} == {0}
    for key_type, key in ((0, "group"), (1, "transaction")):
        broker.ask_until_ready(admin, "FindCoordinator", 3, {"key": key, "key_type": key_type})
    committed = {"partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}
    for group in GROUPS:
        topics = [{"name": name, **committed} for name in (EXISTING, HIDDEN)]
        answer = broker.ask_until_ready(admin, "OffsetCommit", 8, {"group_id": group, "topics": topics})
        assert {row.error_code for topic in answer.topics for row in topic.partitions} == {0}
    for transactional_id in IDS:
        begin_transaction(broker, transactional_id)
    return broker


def begin_transaction(broker: Broker, transactional_id: str) -> None:
    admin = broker.admin
    producer = broker.ask_until_ready(
        admin, "InitProducerId", 4, {"transactional_id": transactional_id, "transaction_timeout_ms": 900_000}
    )
    assert producer.error_code == 0
    answer = broker.ask_until_ready(
        admin,
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.producer_epoch,
            "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in (EXISTING, HIDDEN)],
        },
    )
    codes = {
        row.partition_error_code for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition
    }
    assert codes == {0}


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with SecuredKafkaBroker() as kafka, make_odradek() as odradek:
        yield set_up(Broker("Apache Kafka", kafka.port)), set_up(Broker("Odradek", odradek.port))


def list_rights(granted: tuple[Need, ...], topics: tuple[str, ...]) -> list[tuple[Need, str]]:
    names = {**GRANTED, ResourceType.TOPIC: (*GRANTED[ResourceType.TOPIC], *topics)}
    return [(need, name) for need in granted for name in names[need.resource_type]]


def ask(broker: Broker, case: Case, version: int, rights: list[tuple[Need, str]], number: int) -> object:
    case.prepare(broker, number)
    broker.grant(rights)
    client = Client(broker.port, CLIENT_HOST)
    try:
        values = case.make(broker, number)
        if not case.is_answered:
            return client.ask(case.api, version, values, is_answered=False)
        return broker.simplify(broker.ask_until_ready(client, case.api, version, values, case.retried))
    finally:
        client.close()


def label(value: object) -> str | None:
    if isinstance(value, Case):
        return f"{value.api}-{value.label}" if value.label else value.api
    return None


@pytest.mark.parametrize(("case", "version"), CASES, ids=label)
def test_responses_are_those_of_apache_kafka(brokers: Brokers, case: Case, version: int) -> None:
    declared = needs(case.api)
    differences = []
    for count in range(len(declared) + 1):
        for granted in itertools.combinations(declared, count):
            number = next(_numbers)
            rights = list_rights(granted, case.topics(number))
            kafka, odradek = (ask(broker, case, version, rights, number) for broker in brokers)
            if kafka != odradek:
                operations = [f"{need.operation.name} {need.resource_type.name}" for need in granted]
                differences.append(f"with {operations}:\n  Apache Kafka: {kafka}\n  Odradek:      {odradek}")
    assert not differences, "\n".join(differences)


def test_each_api_has_a_case() -> None:
    served = {api.name for api in served_apis(in_cluster=False).values()}
    assert served - {case.api for case, _ in CASES} <= WITHOUT_RIGHTS
    assert {case.api for case, _ in CASES} <= set(KEYS)
