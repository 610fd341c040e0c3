"""AlterReplicaLogDirs (key 34)."""

from odradek.protocol.schema import Message, Struct
from odradek.protocol.types import Int16, Int32


class AlterReplicaLogDirsRequestAlterReplicaLogDirTopic(Struct):
    name: str
    partitions: list[Int32]


class AlterReplicaLogDirsRequestAlterReplicaLogDir(Struct):
    path: str
    topics: list[AlterReplicaLogDirsRequestAlterReplicaLogDirTopic]


class AlterReplicaLogDirsRequest(Message, key=34, versions="1-2", flexible=2):
    """Move replicas to other log directories of their broker (KIP-113)."""

    dirs: list[AlterReplicaLogDirsRequestAlterReplicaLogDir]


class AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32
    error_code: Int16


class AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult(Struct):
    topic_name: str
    partitions: list[AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult]


class AlterReplicaLogDirsResponse(Message, key=34, versions="1-2", flexible=2):
    """Result for each partition."""

    throttle_time_ms: Int32
    results: list[AlterReplicaLogDirsResponseAlterReplicaLogDirTopicResult]
