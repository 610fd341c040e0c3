"""DescribeLogDirs (key 35)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int16, Int32, Int64


class DescribeLogDirsRequestDescribableLogDirTopic(Struct):
    topic: str
    partitions: list[Int32]


class DescribeLogDirsRequest(Message, key=35, versions="1-5", flexible=2):
    """Describe the log directories (KIP-113)."""

    topics: list[DescribeLogDirsRequestDescribableLogDirTopic] | None


class DescribeLogDirsResponseDescribeLogDirsPartition(Struct):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


class DescribeLogDirsResponseDescribeLogDirsTopic(Struct):
    name: str
    partitions: list[DescribeLogDirsResponseDescribeLogDirsPartition]


class DescribeLogDirsResponseDescribeLogDirsResult(Struct):
    error_code: Int16
    log_dir: str
    topics: list[DescribeLogDirsResponseDescribeLogDirsTopic]
    total_bytes: Int64 = field(since=4, default=-1)
    usable_bytes: Int64 = field(since=4, default=-1)
    is_cordoned: bool = field(since=5)


class DescribeLogDirsResponse(Message, key=35, versions="1-5", flexible=2):
    """Log directories, the partitions in them and their sizes (KIP-827)."""

    throttle_time_ms: Int32
    error_code: Int16 = field(since=3)
    results: list[DescribeLogDirsResponseDescribeLogDirsResult]
