"""Production of one record, to the partition that Kafka's Java client would choose for its key."""

from collections.abc import Sequence
from typing import Final

from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
)
from odradek.tools.kafka.cluster import Cluster, RequestError, make_error
from odradek.tools.kafka.topics.offsets import check_partitions, find_leaders

_TIMEOUT_MS: Final = 10_000
_ACKS_ALL: Final = -1
_PRODUCE_VERSION: Final = 12
"""The newest version in which topics have names."""

_MASK: Final = 0xFFFFFFFF
_FACTOR: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C

Headers = Sequence[tuple[str, bytes | None]]


def choose_partition(key: bytes, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions."""
    return (hash_murmur2(key) & 0x7FFFFFFF) % count


def hash_murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 with Kafka's seed, unsigned."""
    state = _SEED ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _FACTOR & _MASK
        word = (word ^ (word >> 24)) * _FACTOR & _MASK
        state = (state * _FACTOR & _MASK) ^ word
    if len(data) > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    state = (state ^ (state >> 13)) * _FACTOR & _MASK
    return state ^ (state >> 15)


def produce_record(
    cluster: Cluster,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    timestamp_ms: int,
) -> int:
    """Append a record, acknowledged by all in-sync replicas; return its offset. Raises RequestError."""
    where = topic, partition
    leaders = find_leaders(cluster, [topic])
    check_partitions([where], leaders)
    leader = leaders[where]
    if leader < 0:
        raise RequestError("LEADER_NOT_AVAILABLE", f"{topic}-{partition} has no leader")
    batch = build_batch([(timestamp_ms, key, value, tuple(headers))])
    request = ProduceRequest(
        acks=_ACKS_ALL,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[
            ProduceRequestTopicProduceData(
                name=topic, partition_data=[ProduceRequestPartitionProduceData(index=partition, records=batch)]
            )
        ],
    )
    response = cluster.broker(leader).send(request, ProduceResponse, _PRODUCE_VERSION)
    [[result]] = [each.partition_responses for each in response.responses]
    if result.error_code:
        raise make_error(result.error_code, result.error_message, f"{topic}-{partition}")
    return result.base_offset
