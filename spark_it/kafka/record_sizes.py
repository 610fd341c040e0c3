"""The size of records, and the largest that a topic accepts.

A broker refuses the whole request if one record is too large, and does not report which one. So records are measured
before they are produced.
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
"""What is around key, value and headers of a record that is alone in its batch; 61 of the batch, at most 36 of it."""
HEADER_FRAME_BYTES = 10
"""What is around a header's name and value, at most."""
_BATCH_BYTES = 1_000_000
_LEAST_BYTES, _MOST_BYTES = 1000, 1_000_000_000
"""What librdkafka takes as message.max.bytes."""


class Sizes(NamedTuple):
    """The largest size of records by topic, as `size` measures them, and the configuration of a producer for them."""

    largest: Mapping[str, int]
    configuration: Mapping[str, str]


def sizes(topics: Iterable[str], admin_configuration: Mapping[str, Any], producer_override: Mapping[str, str]) -> Sizes:
    """Return the limits of topics, and `message.max.bytes` if it is set; both apply before compression.

    A topic's limit applies to compressed records, whose size is unknown beforehand: for a producer that compresses only
    its own limit counts. Raises SinkError.
    """
    by_topic = {topic: _max_message_bytes(topic, admin_configuration) for topic in topics}
    own = producer_override.get("message.max.bytes", "")
    compresses = any(producer_override.get(f"compression.{key}", "none") != "none" for key in ("type", "codec"))
    if own.isdecimal():
        largest = {topic: int(own) if compresses else min(int(own), most) for topic, most in by_topic.items()}
    else:
        largest = by_topic
    configuration = {
        "message.max.bytes": str(min(max(_LEAST_BYTES, *largest.values()), _MOST_BYTES)),
        # Small records must not become a batch that is too large.
        "batch.size": str(min(_BATCH_BYTES, *by_topic.values())),
        **producer_override,
    }
    return Sizes({topic: most - _FRAME_BYTES for topic, most in largest.items()}, configuration)


def _max_message_bytes(topic: str, configuration: Mapping[str, Any]) -> int:
    """Kafka's default if the topic does not exist, or the broker does not tell everybody. Raises SinkError."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    give_up_at = time.monotonic() + _HEARD_S
    while True:
        try:
            admin = AdminClient({"log_level": 0, **configuration})
            [said] = admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
            return int(said.result()["max.message.bytes"].value)
        except KafkaException as error:
            code = error.args[0].code()
            if code in _UNSAID or (code == _UNKNOWN and time.monotonic() > give_up_at):
                return MAX_MESSAGE_BYTES
            if code != _UNKNOWN:
                what = f"cannot look up max.message.bytes of topic {topic}: {error.args[0].str()}"
                raise SinkError(what, is_retriable=True) from None
        time.sleep(0.1)


_TIMEOUT_S = 30.0
_HEARD_S = 5.0
"""How long it may take until brokers have heard of a new topic."""
_UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
_UNSAID = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def size(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """Return the bytes of a record without its framing."""
    of_headers = sum(len(name) + len(said or b"") + HEADER_FRAME_BYTES for name, said in headers)
    return len(key or b"") + len(value or b"") + of_headers
