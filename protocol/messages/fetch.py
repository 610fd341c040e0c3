"""Fetch (key 1)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64, Records, Uuid


class FetchRequestReplicaState(Struct):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchRequestFetchPartition(Struct):
    partition: Int32
    current_leader_epoch: Int32 = field(since=9, default=-1)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = field(since=12, default=-1)
    log_start_offset: Int64 = field(since=5, default=-1)
    partition_max_bytes: Int32
    replica_directory_id: Uuid = field(since=17, tag=0)
    high_watermark: Int64 = field(since=18, tag=1, default=9223372036854775807)


class FetchRequestFetchTopic(Struct):
    topic: str = field(until=12)
    topic_id: Uuid = field(since=13)
    partitions: list[FetchRequestFetchPartition]


class FetchRequestForgottenTopic(Struct):
    topic: str = field(until=12)
    topic_id: Uuid = field(since=13)
    partitions: list[Int32]


class FetchRequest(Message, key=1, versions="4-18", flexible=12):
    """Read record batches from partitions, and wait a limited time while there are none (fetch sessions: KIP-227)."""

    cluster_id: str | None = field(since=12, tag=0, default=None)
    replica_id: Int32 = field(until=14, default=-1)
    replica_state: FetchRequestReplicaState = field(since=15, tag=1)
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 2147483647
    isolation_level: Int8
    session_id: Int32 = field(since=7)
    session_epoch: Int32 = field(since=7, default=-1)
    topics: list[FetchRequestFetchTopic]
    forgotten_topics_data: list[FetchRequestForgottenTopic] = field(since=7)
    rack_id: str = field(since=11)


class FetchResponseEpochEndOffset(Struct):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class FetchResponseSnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class FetchResponseAbortedTransaction(Struct):
    producer_id: Int64
    first_offset: Int64


class FetchResponsePartitionData(Struct):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field(since=5, default=-1)
    diverging_epoch: FetchResponseEpochEndOffset = field(since=12, tag=0)
    current_leader: FetchResponseLeaderIdAndEpoch = field(since=12, tag=1)
    snapshot_id: FetchResponseSnapshotId = field(since=12, tag=2)
    aborted_transactions: list[FetchResponseAbortedTransaction] | None
    preferred_read_replica: Int32 = field(since=11, default=-1)
    records: Records | None


class FetchResponseFetchableTopicResponse(Struct):
    topic: str = field(until=12)
    topic_id: Uuid = field(since=13)
    partitions: list[FetchResponsePartitionData]


class FetchResponseNodeEndpoint(Struct):
    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


class FetchResponse(Message, key=1, versions="4-18", flexible=12):
    """Closed record batches, with the high watermark, last stable offset and log start offset."""

    throttle_time_ms: Int32
    error_code: Int16 = field(since=7)
    session_id: Int32 = field(since=7)
    responses: list[FetchResponseFetchableTopicResponse]
    node_endpoints: list[FetchResponseNodeEndpoint] = field(since=16, tag=0)
