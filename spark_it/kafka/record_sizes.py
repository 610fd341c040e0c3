"""Sizes of records, and the maximum that a topic accepts.

A broker rejects the whole batch if one record is too large (MESSAGE_TOO_LARGE), and does not report which one. So
records are measured before they are produced.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import ConfigResource as _ConfigResource  # type: ignore[attr-defined]

from odradek.spark_it.interfaces.kafka_types import Header
from odradek.spark_it.interfaces.sink import SinkError

ConfigResource: Any = _ConfigResource

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of a topic's `max.message.bytes`."""
_FRAME_BYTES = 100
"""Upper limit of the framing of a record in a batch of one: 61 bytes of the batch, at most 36 of the record."""
HEADER_FRAME_BYTES = 10
"""Upper limit of the framing of a header."""
_BATCH_BYTES = 1_000_000
_MIN_PRODUCER_BYTES, _MAX_PRODUCER_BYTES = 1000, 1_000_000_000
"""Range of librdkafka's message.max.bytes."""


class SizeLimits(NamedTuple):
    """The maximum result of `measure_record` by topic, and the configuration of a producer for such records."""

    largest: Mapping[str, int]
    configuration: Mapping[str, str]


def find_size_limits(
    topics: Iterable[str], admin_configuration: Mapping[str, Any], producer_override: Mapping[str, str]
) -> SizeLimits:
    """Return the size limits of topics, before compression, and the producer configuration for them.

    A topic's max.message.bytes applies to compressed batches, whose size is unknown in advance. So for a producer with
    compression and its own `message.max.bytes` only the latter applies. Raises SinkError.
    """
    by_topic = {topic: _fetch_max_message_bytes(topic, admin_configuration) for topic in topics}
    producer_limit = producer_override.get("message.max.bytes", "")
    compresses = any(producer_override.get(f"compression.{key}", "none") != "none" for key in ("type", "codec"))
    if producer_limit.isdecimal():
        largest = {
            topic: int(producer_limit) if compresses else min(int(producer_limit), limit)
            for topic, limit in by_topic.items()
        }
    else:
        largest = by_topic
    configuration = {
        "message.max.bytes": str(min(max(_MIN_PRODUCER_BYTES, *largest.values()), _MAX_PRODUCER_BYTES)),
        # A batch of several records must not exceed the topic's limit.
        "batch.size": str(min(_BATCH_BYTES, *by_topic.values())),
        **producer_override,
    }
    return SizeLimits({topic: limit - _FRAME_BYTES for topic, limit in largest.items()}, configuration)


def _fetch_max_message_bytes(topic: str, configuration: Mapping[str, Any]) -> int:
    """Return the topic's limit; Kafka's default if the topic does not exist or the request is not authorized. Raises
    SinkError."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    give_up_at = time.monotonic() + _PROPAGATION_S
    while True:
        try:
            admin = AdminClient({"log_level": 0, **configuration})
            [future] = admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
            return int(future.result()["max.message.bytes"].value)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _UNAUTHORIZED or (code == _UNKNOWN and time.monotonic() > give_up_at):
                return MAX_MESSAGE_BYTES
            if code != _UNKNOWN:
                what = f"cannot look up max.message.bytes of topic {topic}: {error.args[0].str()}"
                raise SinkError(what, is_retriable=True) from None
        time.sleep(0.1)


_TIMEOUT_S = 30.0
_PROPAGATION_S = 5.0
"""Time after which the metadata of a new topic are expected on all brokers."""
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
_UNAUTHORIZED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def measure_record(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """Return the size of a record in bytes, without its framing."""
    of_headers = sum(len(name) + len(value_ or b"") + HEADER_FRAME_BYTES for name, value_ in headers)
    return len(key or b"") + len(value or b"") + of_headers
