"""DescribeCluster (key 60)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32


class DescribeClusterRequest(Message, key=60, versions="0-2", flexible=0):
    """List the brokers of the cluster (KIP-700)."""

    include_cluster_authorized_operations: bool
    endpoint_type: Int8 = field(since=1, default=1)
    include_fenced_brokers: bool = field(since=2)


class DescribeClusterResponseDescribeClusterBroker(Struct):
    broker_id: Int32
    host: str
    port: Int32
    rack: str | None = None
    is_fenced: bool = field(since=2)


class DescribeClusterResponse(Message, key=60, versions="0-2", flexible=0):
    """Brokers of the cluster."""

    throttle_time_ms: Int32
    error_code: Int16
    error_message: str | None = None
    endpoint_type: Int8 = field(since=1, default=1)
    cluster_id: str
    controller_id: Int32 = -1
    brokers: list[DescribeClusterResponseDescribeClusterBroker]
    cluster_authorized_operations: Int32 = -2147483648
