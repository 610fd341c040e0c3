"""docs/compatibility.md, out of the table of APIs: `python -m odradek.server.compatibility` prints it."""

from typing import Final

from odradek.protocol.codec import MAX_TAGGED_FIELDS
from odradek.protocol.messages import request_class
from odradek.server.apis import APIS, advertised_first_version
from odradek.server.network.large_messages import MAX_RESPONSE_BYTES

CLIENTS: Final = (
    ("kafka-python", "3.0.12", "every codec, groups, idempotence, transactions, admin"),
    ("confluent-kafka (librdkafka)", "2.16.1", "every codec, groups, idempotence, transactions, admin"),
    ("aiokafka", "0.14.0", "every codec, groups, idempotence, transactions, admin"),
    (
        "Apache Kafka's tools and Java clients",
        "4.3.0",
        "console, topics, configs, groups, offsets, log dirs, perf, verifiable, transactions, features",
    ),
    ("kcat", "1.7", "produce, consume, metadata"),
    ("Spark (`spark-sql-kafka-0-10`)", "4.0.0", "batch and streaming, read and write"),
)
"""Name, version and what of it the tests in `compat_tests/` and `spark_it/` use."""

_HEAD: Final = """\
# Compatibility

Made from the table of APIs in `server/apis.py`; do not edit. `python -m odradek.server.compatibility` writes it anew.

Odradek presents itself as Apache Kafka 4.3. Every version listed is served whole.

## APIs

| key | API | versions | flexible from | most elements |
|---|---|---|---|---|
"""

_LIMITS_NOTE: Final = f"""
A request with more array elements than the last column allows, all its arrays together, closes the connection with a
line in the log; so does one with more than {MAX_TAGGED_FIELDS:,} tagged fields in one place, and one whose response
would exceed {MAX_RESPONSE_BYTES >> 20} MiB. Apache Kafka has no such limits, and runs out of memory. No client comes
near them: a fetch of 200,000 partitions has at most 400,000 elements.
"""

_PRODUCE_NOTE: Final = """
Produce is advertised from version 0 although it is served from 3, as Apache Kafka does: librdkafka switches off codecs
otherwise (KAFKA-18659). A request in a version that is not served closes the connection, but for ApiVersions, which is
answered in version 0.

## Clients and tools tried

| client | version | with |
|---|---|---|
"""


def markdown() -> str:
    """The page."""
    lines = [_HEAD]
    for api in APIS.values():
        versions = (
            f"{api.first_version}-{api.last_version}" if api.first_version < api.last_version else f"{api.last_version}"
        )
        if advertised_first_version(api) != api.first_version:
            versions += f" (advertised from {advertised_first_version(api)})"
        request = request_class(api.key)
        flexible = str(request.flexible_since) if request.flexible_since <= api.last_version else "none"
        lines.append(f"| {api.key} | {api.name} | {versions} | {flexible} | {api.max_elements:,} |\n")
    lines += [_LIMITS_NOTE, _PRODUCE_NOTE]
    lines += [f"| {name} | {version} | {what} |\n" for name, version, what in CLIENTS]
    return "".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")
