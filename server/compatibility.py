"""docs/compatibility.md, derived from the table of APIs: `python -m odradek.server.compatibility` prints it."""

from typing import Final

from odradek.protocol.codec_source import MAX_TAGGED_FIELDS
from odradek.protocol.messages import request_class
from odradek.server.apis import APIS, Api, advertised_first_version
from odradek.server.network.large_messages import MAX_RESPONSE_BYTES

CLIENTS: Final = (
    ("kafka-python", "3.0.12", "every codec, groups, idempotence, transactions, admin"),
    ("confluent-kafka (librdkafka)", "2.16.1", "every codec, groups, idempotence, transactions, admin"),
    ("aiokafka", "0.14.0", "every codec, groups, idempotence, transactions, admin"),
    (
        "Apache Kafka's tools and Java clients",
        "4.3.0",
        "console, topics, configs, ACLs, groups, offsets, log dirs, perf, verifiable, transactions, features, "
        "leader election, reassignment, metadata quorum",
    ),
    ("kcat", "1.7", "produce, consume, metadata"),
    ("Spark (`spark-sql-kafka-0-10`)", "4.0.0", "batch and streaming, read and write"),
    ("kminion and kafka_exporter, by hand", "November 2026", "lag of groups, topics, kminion's end-to-end test"),
    (
        "topicctl, by hand",
        "2.0.2",
        "get, check, apply, throttled reassignment, rebalance, leader election, ACLs, offsets, tail, tester, repl, "
        "a cluster's ZooKeeper, SASL and TLS",
    ),
    (
        "kafkactl, by hand",
        "5.20.0",
        "produce, consume, topics, replicas, brokers, groups, offsets, records, ACLs, SCRAM users, clone, "
        "SASL and TLS; `kafkaVersion` 4.0 and 4.3.1",
    ),
)
"""Name, version, and the features that the tests in `compat_tests/` and `spark_it/` use, or that were run by hand."""

_HEAD: Final = """\
# Compatibility

This page lists the Kafka APIs and versions that Odradek serves, and the clients and tools it is tested with. Odradek
reports itself as Apache Kafka 4.3. Every listed version is implemented completely.

`python -m odradek.server.compatibility` generates this page from the table of APIs in `server/apis.py`; do not edit it.

## APIs

| key | API | versions | flexible from | max elements | operations |
|---|---|---|---|---|---|
"""

_LIMITS_NOTE: Final = f"""
The last column lists the operations that a client needs on a broker with an authorizer, in the order of evaluation. A
request needs those on the resources that it names; where Kafka accepts one of several operations, as for the creation
of topics and for idempotent producers, one is enough.

Brokers of a cluster serve the APIs marked with "cluster" for each other; a single broker serves and advertises none of
them. A broker of a cluster serves and advertises none of those marked with "single broker".

A connection is closed with a log line if a request has more array elements than the last column, all arrays together,
or more than {MAX_TAGGED_FIELDS:,} tagged fields in one struct, or if its response would exceed
{MAX_RESPONSE_BYTES >> 20} MiB. Apache Kafka has no such limits and runs out of memory. No client comes near them: a
fetch of 50,000 partitions has at most 100,000 elements.
"""

_PRODUCE_NOTE: Final = """
GetTelemetrySubscriptions and PushTelemetry are advertised only while there is a subscription of client metrics
([limits.md](limits.md#metrics-of-clients)).

Produce is advertised from version 0 although it is served from 3, as in Apache Kafka: otherwise librdkafka disables
codecs (KAFKA-18659). A request with an unsupported version closes the connection, except for ApiVersions, which gets a
response in version 0.

## Tested clients and tools

| client | version | features |
|---|---|---|
"""


def _list_operations(api: Api) -> str:
    """Return the operations that a client needs, in the order of evaluation."""
    operations = [
        f"{need.operation.name} {need.resource_type.name.replace('_', ' ').lower()}" for need in api.needs or ()
    ]
    return ", ".join(operations) or "none"


def format_markdown() -> str:
    """Return the page."""
    lines = [_HEAD]
    for api in APIS.values():
        versions = (
            f"{api.first_version}-{api.last_version}" if api.first_version < api.last_version else f"{api.last_version}"
        )
        if advertised_first_version(api) != api.first_version:
            versions += f" (advertised from {advertised_first_version(api)})"
        if api.in_cluster_only:
            versions += " (between brokers of a cluster)"
        request = request_class(api.key)
        flexible = str(request.flexible_since) if request.flexible_since <= api.last_version else "none"
        name = api.name
        if api.in_cluster_only:
            name += " (cluster)"
        if api.outside_cluster_only:
            name += " (single broker)"
        cells = (str(api.key), name, versions, flexible, f"{api.max_elements:,}", _list_operations(api))
        lines.append(f"| {' | '.join(cells)} |\n")
    lines += [_LIMITS_NOTE, _PRODUCE_NOTE]
    lines += [f"| {name} | {version} | {what} |\n" for name, version, what in CLIENTS]
    return "".join(lines)


if __name__ == "__main__":
    print(format_markdown(), end="")
