"""Creation and deletion of one topic."""

from collections.abc import Mapping
from typing import Final

from odradek.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
    CreateTopicsResponse,
)
from odradek.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
)
from odradek.tools.kafka.cluster import Cluster, check

_TIMEOUT_MS: Final = 10_000


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    *,
    is_dry_run: bool,
) -> tuple[int, int]:
    """Create or only validate a topic; return its partitions and replicas, -1 if not reported. Raises RequestError."""
    topic = CreateTopicsRequestCreatableTopic(
        name=name,
        num_partitions=partitions or -1,
        replication_factor=replication_factor or -1,
        assignments=[],
        configs=[CreateTopicsRequestCreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=is_dry_run)
    [result] = cluster.ask_controller(request, CreateTopicsResponse).topics
    check(result.error_code, result.error_message)
    return result.num_partitions, result.replication_factor


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic. Raises RequestError."""
    # Version 6 has `topics`, older ones `topic_names`.
    states = [DeleteTopicsRequestDeleteTopicState(name=name)]
    request = DeleteTopicsRequest(topics=states, topic_names=[name], timeout_ms=_TIMEOUT_MS)
    for result in cluster.ask_controller(request, DeleteTopicsResponse).responses:
        check(result.error_code, result.error_message)
