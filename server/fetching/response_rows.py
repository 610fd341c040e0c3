"""The rows of a Fetch response: errors of partitions that cannot be read, topics, and the current leaders (KIP-951)."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.fetch import (
    FetchResponseFetchableTopicResponse,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
)

if TYPE_CHECKING:
    from odradek.replication.replicas.replica_manager import ReplicaManager
    from odradek.server.fetching.limited_read import FetchRow, LimitedRead
    from odradek.server.fetching.session_cache import FetchPartition

_ROW_BYTES: Final = 60
"""Size of a partition in a response, without its records."""

MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Errors of partitions that do not exist."""

_NOT_LED_HERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

FindLeader = Callable[["FetchPartition"], "tuple[int, FetchResponseNodeEndpoint] | None"]
"""Returns the leader epoch and the address of a partition's current leader, if there is one."""


def find_missing_error(replicas: "ReplicaManager", requested: "FetchPartition", *, uses_ids: bool) -> ErrorCode:
    """Return the error of a partition that is not here or is being deleted."""
    try:
        if uses_ids:
            replicas.get_by_id(requested.topic_id, requested.index)
        else:
            replicas.get(requested.topic, requested.index)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def find_cause(
    replicas: "ReplicaManager", requested: "FetchPartition", error: KafkaError, *, uses_ids: bool
) -> KafkaError:
    """Return the error to report for a failed read: UNKNOWN_TOPIC_OR_PARTITION if the partition was deleted."""
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        if uses_ids:
            is_here = (requested.topic_id, requested.index) in replicas.partitions_by_id
        else:
            is_here = (requested.topic, requested.index) in replicas.partitions
        if not is_here and find_missing_error(replicas, requested, uses_ids=uses_ids) in MISSING:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return error


@cache
def get_shared_error(code: ErrorCode) -> KafkaError:
    """Return one shared error for all partitions with this code, because a waiting fetch stores an error for each."""
    return KafkaError(code)


def add_rows(
    topics: list[FetchResponseFetchableTopicResponse], rows: "list[FetchRow]", last: "FetchPartition | None"
) -> None:
    """Add rows to `topics`; `last` is the partition of the row before them."""
    for requested, row in rows:
        if last is None or requested.topic_id != last.topic_id or requested.topic != last.topic:
            topics.append(FetchResponseFetchableTopicResponse(topic=requested.topic, topic_id=requested.topic_id))
            last = requested
        topics[-1].partitions.append(row)


def name_leaders(nodes: dict[int, FetchResponseNodeEndpoint], rows: "list[FetchRow]", find: FindLeader) -> None:
    """Add the current leaders of partitions that this broker does not lead, to the rows and to `nodes` by broker id."""
    for requested, row in rows:
        leader = find(requested) if row.error_code in _NOT_LED_HERE else None
        if leader is not None:
            leader_epoch, node = leader
            row.current_leader = FetchResponseLeaderIdAndEpoch(leader_id=node.node_id, leader_epoch=leader_epoch)
            nodes[node.node_id] = node


def estimate_bytes(read: "LimitedRead") -> int:
    """Return about the size of the response, which is not encoded yet: most of it are records."""
    return read.read_bytes + len(read.rows) * _ROW_BYTES
