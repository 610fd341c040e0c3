"""The state of a cluster as its clients see it: brokers, controller, and partitions without all of their replicas.

The status is read with Metadata and DescribeConfigs requests, from any one broker of Odradek or Apache Kafka.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from odradek.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.tools.kafka.connection.wire_client import Address, WireClient

MIN_ISR: Final = "min.insync.replicas"
MOST_ROWS: Final = 50
_TOPIC: Final = 2
_TOPICS_PER_REQUEST: Final = 500
_JsonValue = str | int | bool | None | Sequence[int]


class BrokerRow(NamedTuple):
    """A live broker."""

    id: int
    host: str
    port: int
    rack: str | None


class PartitionRow(NamedTuple):
    """A partition. `leader` is None without a leader, `min_isr` if the topic's configuration cannot be read."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    min_isr: int | None

    @property
    def effective_min_isr(self) -> int | None:
        """In-sync replicas that writes with acks=all require. Leaders require no more than there are replicas."""
        return None if self.min_isr is None else min(self.min_isr, len(self.replicas))

    @property
    def is_offline(self) -> bool:
        """True without a leader: clients can neither write nor read."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync."""
        return len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """True if writes with acks=all are refused."""
        least = self.effective_min_isr
        return self.is_offline or (least is not None and len(self.isr) < least)

    @property
    def is_at_min_isr(self) -> bool:
        """True if writes with acks=all are refused after the loss of one more in-sync replica."""
        return len(self.isr) == self.effective_min_isr

    @property
    def states(self) -> list[str]:
        """Names of the states that need attention."""
        states = {
            "offline": self.is_offline,
            "under min ISR": self.is_under_min_isr,
            "under-replicated": self.is_under_replicated,
        }
        return [name for name, holds in states.items() if holds]

    def as_json(self) -> dict[str, _JsonValue]:
        """Return the fields by name."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "leader": self.leader,
            "replicas": self.replicas,
            "isr": self.isr,
            MIN_ISR: self.min_isr,
        }


class ClusterStatus(NamedTuple):
    """Brokers and partitions. `controller` is None while there is none."""

    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerRow]
    partitions: list[PartitionRow]

    @property
    def missing_brokers(self) -> list[int]:
        """Ids of brokers that have replicas and are not live."""
        assigned = {broker for partition in self.partitions for broker in partition.replicas}
        return sorted(assigned - {broker.id for broker in self.brokers})

    @property
    def unhealthy(self) -> list[PartitionRow]:
        """Partitions that are offline, under min ISR or under-replicated."""
        return [partition for partition in self.partitions if partition.states]

    @property
    def is_healthy(self) -> bool:
        """True if each partition has a leader and all of its replicas are in sync."""
        return not self.unhealthy

    def as_json(self) -> str:
        """Format as one JSON object."""
        partitions = self.partitions
        lists = {
            "under_replicated": [row for row in partitions if row.is_under_replicated],
            "under_min_isr": [row for row in partitions if row.is_under_min_isr],
            "at_min_isr": [row for row in partitions if row.is_at_min_isr],
            "offline": [row for row in partitions if row.is_offline],
        }
        document = {
            "cluster_id": self.cluster_id,
            "healthy": self.is_healthy,
            "controller": self.controller,
            "brokers": [broker._asdict() for broker in self.brokers],
            "missing_brokers": self.missing_brokers,
            "topics": len({row.topic for row in partitions}),
            "partitions": len(partitions),
            **{name: [row.as_json() for row in rows] for name, rows in lists.items()},
        }
        return json.dumps(document, indent=2) + "\n"

    def as_table(self) -> str:
        """Format as a table, with at most MOST_ROWS partitions."""
        return "".join(f"{line.rstrip()}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        rows = self.partitions
        yield f"cluster           {self.cluster_id or 'unknown'}"
        yield f"controller        {'none' if self.controller is None else f'broker {self.controller}'}"
        missing = ", ".join(map(str, self.missing_brokers))
        yield f"brokers           {len(self.brokers)}{f' (not live: {missing})' if missing else ''}"
        topics = len({row.topic for row in rows})
        yield f"partitions        {len(rows)} in {topics} topic{'' if topics == 1 else 's'}"
        yield f"offline           {sum(row.is_offline for row in rows)}"
        yield f"under min ISR     {sum(row.is_under_min_isr for row in rows)}"
        yield f"at min ISR        {sum(row.is_at_min_isr for row in rows)}"
        yield f"under-replicated  {sum(row.is_under_replicated for row in rows)}"
        yield ""
        brokers = [[str(row.id), str(Address(row.host, row.port)), row.rack or "-"] for row in self.brokers]
        yield from _align([["BROKER", "ADDRESS", "RACK"], *brokers])
        unhealthy = self.unhealthy
        if not unhealthy:
            return
        yield ""
        shown = [_format_partition(row) for row in unhealthy[:MOST_ROWS]]
        yield from _align([["PARTITION", "LEADER", "REPLICAS", "ISR", "MIN ISR", "STATE"], *shown])
        if len(unhealthy) > MOST_ROWS:
            yield f"and {len(unhealthy) - MOST_ROWS} more; --json lists all"


def fetch_status(client: WireClient) -> ClusterStatus:
    """Read the status from one broker. Raises NoResponseError."""
    metadata = client.send(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse)
    names = [topic.name for topic in metadata.topics if topic.name is not None and topic.partitions]
    min_isrs = _fetch_min_isrs(client, names)
    partitions = [
        PartitionRow(
            topic.name,
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            list(partition.replica_nodes),
            list(partition.isr_nodes),
            min_isrs.get(topic.name),
        )
        for topic in metadata.topics
        if topic.name is not None
        for partition in topic.partitions
    ]
    brokers = [BrokerRow(broker.node_id, broker.host, broker.port, broker.rack) for broker in metadata.brokers]
    controller = metadata.controller_id if metadata.controller_id >= 0 else None
    return ClusterStatus(metadata.cluster_id, controller, sorted(brokers), sorted(partitions))


def _fetch_min_isrs(client: WireClient, topics: Sequence[str]) -> Mapping[str, int]:
    """Return min.insync.replicas by topic; without topics whose configuration cannot be read."""
    found: dict[str, int] = {}
    for start in range(0, len(topics), _TOPICS_PER_REQUEST):
        resources = [
            DescribeConfigsRequestDescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=[MIN_ISR]
            )
            for topic in topics[start : start + _TOPICS_PER_REQUEST]
        ]
        response = client.send(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        for result in response.results:
            for config in result.configs:
                if config.name == MIN_ISR and config.value is not None:
                    found[result.resource_name] = int(config.value)
    return found


def _format_partition(row: PartitionRow) -> list[str]:
    leader = "none" if row.leader is None else str(row.leader)
    min_isr = "?" if row.min_isr is None else str(row.min_isr)
    return [
        f"{row.topic}-{row.partition}",
        leader,
        ",".join(map(str, row.replicas)),
        ",".join(map(str, row.isr)) or "-",
        min_isr,
        ", ".join(row.states),
    ]


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
