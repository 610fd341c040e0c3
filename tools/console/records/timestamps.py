"""Bounds of the timestamps of partitions, by which a page of a topic with many partitions reads only some of them."""

from collections.abc import Collection, Mapping
from typing import Final

from odradek.protocol.messages.list_offsets import ListOffsetsRequest
from odradek.tools.kafka.cluster import Cluster
from odradek.tools.kafka.connection.connection_errors import UnsupportedRequestError
from odradek.tools.kafka.topics.offsets import MAX_TIMESTAMP, fetch_offsets

_MAX_TIMESTAMP_VERSION: Final = 7


def fetch_newest_times(
    cluster: Cluster, topic: str, partitions: Collection[int], leaders: Mapping[int, int]
) -> dict[int, int]:
    """Return the highest timestamp of partitions; those are missing whose leader does not report it."""
    try:
        for leader in {leaders[one] for one in partitions}:
            cluster.broker(leader).require_version(ListOffsetsRequest, _MAX_TIMESTAMP_VERSION, "the highest timestamp")
    except UnsupportedRequestError:
        return {}
    return _fetch(cluster, topic, partitions, leaders, MAX_TIMESTAMP)


def fetch_oldest_times(
    cluster: Cluster, topic: str, partitions: Collection[int], leaders: Mapping[int, int]
) -> dict[int, int]:
    """Return the timestamp of the first record of partitions; those are missing whose leader does not report it."""
    return _fetch(cluster, topic, partitions, leaders, 0)


def _fetch(
    cluster: Cluster, topic: str, partitions: Collection[int], leaders: Mapping[int, int], position: int
) -> dict[int, int]:
    keys = {(topic, one): leaders[one] for one in partitions}
    # What is missing is read as if it could have records of any time.
    found = fetch_offsets(cluster, dict.fromkeys(keys, position), keys, problems=[])
    return {partition: one.timestamp_ms for (_, partition), one in found.items() if one.timestamp_ms >= 0}
