"""Requests about topics, configurations, ACLs and the cluster."""

from collections.abc import Callable
from typing import Final

from compat_tests.authorization.brokers import UNKNOWN_ID, Broker
from compat_tests.authorization.case import ABSENT, EXISTING, HIDDEN, SECRET, TOPICS, Case, Values, named, new_topics


def _doomed_topics(number: int) -> tuple[str, ...]:
    return f"doomed-{number}", f"doomed-by-id-{number}"


def _prepare_doomed(broker: Broker, number: int) -> None:
    broker.create_topics(*_doomed_topics(number))


def _doomed_rows(broker: Broker, number: int) -> list[Values]:
    name, other = _doomed_topics(number)
    rows: list[Values] = [{"name": one, "topic_id": bytes(16)} for one in (name, ABSENT, HIDDEN, SECRET)]
    rows += [{"name": None, "topic_id": one} for one in (broker.ids[other], UNKNOWN_ID)]
    return rows


def _created(number: int) -> list[Values]:
    names = (*new_topics(number), f"hidden-new-{number}", EXISTING, HIDDEN)
    return [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in names]


def _config_resources(make_entries: Callable[[str, str], Values], brokers: tuple[str, ...] = ("1", "")) -> list[Values]:
    topics = [(2, name, make_entries("retention.ms", "1000000")) for name in TOPICS]
    others = [(4, name, make_entries("log.cleaner.threads", "1")) for name in brokers]
    return [{"resource_type": kind, "resource_name": name, **entries} for kind, name, entries in (*topics, *others)]


ADMIN_CASES: Final = (
    Case(
        "CreateTopics",
        (2, 4, 5, 7),
        lambda broker, number: {"topics": _created(number), "timeout_ms": 10_000},
        topics=new_topics,
    ),
    Case(
        "CreateTopics",
        (7,),
        lambda broker, number: {
            "topics": [
                *_created(number),
                *_created(number)[:2],
                {"name": "__cluster_metadata", "num_partitions": 1, "replication_factor": 1},
            ],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
        topics=new_topics,
        label="repeated",
    ),
    Case(
        "DeleteTopics",
        (1, 5),
        lambda broker, number: {
            "topic_names": [_doomed_topics(number)[0], ABSENT, HIDDEN, SECRET],
            "timeout_ms": 10_000,
        },
        topics=_doomed_topics,
        prepare=_prepare_doomed,
    ),
    Case(
        "DeleteTopics",
        (6,),
        lambda broker, number: {"topics": _doomed_rows(broker, number), "timeout_ms": 10_000},
        topics=_doomed_topics,
        prepare=_prepare_doomed,
    ),
    Case(
        "DeleteTopics",
        (6,),
        lambda broker, number: {
            "topics": [
                *2 * [{"name": HIDDEN}],
                *2 * [{"topic_id": broker.ids[HIDDEN]}],
                {"name": HIDDEN, "topic_id": broker.ids[HIDDEN]},
                {},
            ],
            "timeout_ms": 10_000,
        },
        label="invalid",
    ),
    Case(
        "DescribeAcls",
        (1, 3),
        lambda broker, number: {
            "resource_type_filter": 2,
            "resource_name_filter": HIDDEN,
            "pattern_type_filter": 3,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        },
    ),
    Case(
        "CreateAcls",
        (1, 3),
        lambda broker, number: {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": "",
                    "resource_pattern_type": 3,
                    "principal": "User:nobody",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
    ),
    Case(
        "DeleteAcls",
        (1, 3),
        lambda broker, number: {
            "filters": [
                {
                    "resource_type_filter": 2,
                    "resource_name_filter": "nothing",
                    "pattern_type_filter": 3,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
    ),
    Case(
        "DescribeConfigs",
        (1, 4),
        lambda broker, number: {"resources": _config_resources(lambda name, value: {"configuration_keys": [name]})},
    ),
    Case(
        "AlterConfigs",
        (0, 2),
        lambda broker, number: {
            "validate_only": True,
            "resources": _config_resources(
                lambda name, value: {"configs": [{"name": name, "value": value}]}, brokers=("1",)
            ),
        },
    ),
    Case(
        "AlterConfigs",
        (2,),
        lambda broker, number: {
            "validate_only": True,
            "resources": [
                {"resource_type": 4, "resource_name": "1", "configs": [{"name": "broker.id", "value": "2"}]},
                {"resource_type": 4, "resource_name": "99"},
            ],
        },
        label="invalid",
    ),
    Case(
        "IncrementalAlterConfigs",
        (0, 1),
        lambda broker, number: {
            "validate_only": True,
            "resources": _config_resources(
                lambda name, value: {"configs": [{"name": name, "value": value, "config_operation": 0}]}
            ),
        },
    ),
    Case(
        "IncrementalAlterConfigs",
        (1,),
        lambda broker, number: {
            "validate_only": True,
            "resources": [
                {"resource_type": 4, "resource_name": "1", "configs": [{"name": "broker.id", "value": "2"}]},
                {"resource_type": 4, "resource_name": "99"},
                *2 * [{"resource_type": 2, "resource_name": HIDDEN}],
                {"resource_type": 2, "resource_name": EXISTING, "configs": [{"name": "retention.ms", "value": None}]},
                {"resource_type": 2, "resource_name": SECRET, "configs": [{"name": "nonsense", "value": "1"}]},
                {"resource_type": 77, "resource_name": "x"},
            ],
        },
        label="invalid",
    ),
    Case(
        "AlterReplicaLogDirs",
        (1, 2),
        lambda broker, number: {"dirs": [{"path": "/nowhere", "topics": named(partitions=[0])}]},
    ),
    Case(
        "DescribeLogDirs",
        (1, 3, 5),
        lambda broker, number: {"topics": [{"topic": name, "partitions": [0]} for name in TOPICS]},
    ),
    Case(
        "CreatePartitions",
        (0, 3),
        lambda broker, number: {
            "topics": [
                *[{"name": name, "count": 5, "assignments": None} for name in TOPICS],
                *2 * [{"name": "twice", "count": 2, "assignments": None}],
            ],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
    ),
    Case(
        "ElectLeaders",
        (0, 2),
        lambda broker, number: {
            "election_type": 0,
            "topic_partitions": [{"topic": name, "partitions": [0]} for name in TOPICS],
            "timeout_ms": 10_000,
        },
    ),
    Case(
        "ElectLeaders",
        (2,),
        lambda broker, number: {"election_type": 0, "topic_partitions": None, "timeout_ms": 10_000},
        label="all partitions",
    ),
    Case(
        "AlterPartitionReassignments",
        (0, 1),
        lambda broker, number: {
            "topics": named(partitions=[{"partition_index": 0, "replicas": None}]),
            "timeout_ms": 10_000,
        },
    ),
    Case("ListPartitionReassignments", (0,), lambda broker, number: {"topics": None, "timeout_ms": 10_000}),
    Case(
        "DescribeQuorum",
        (0, 2),
        lambda broker, number: {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        },
    ),
    Case(
        "UpdateFeatures",
        (0, 1, 2),
        lambda broker, number: {
            "feature_updates": [{"feature": "nonsense", "max_version_level": 1}],
            "timeout_ms": 10_000,
            "validate_only": True,
        },
    ),
    Case("DescribeCluster", (0, 2), lambda broker, number: {"include_cluster_authorized_operations": True}),
    Case("DescribeCluster", (0,), lambda broker, number: {}, label="without operations"),
    Case("ListConfigResources", (0, 1), lambda broker, number: {"resource_types": [16]}),
)
