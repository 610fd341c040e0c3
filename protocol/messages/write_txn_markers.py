"""WriteTxnMarkers (key 27)."""

from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.types import Int8, Int16, Int32, Int64


class WriteTxnMarkersRequestWritableTxnMarkerTopic(Struct):
    name: str
    partition_indexes: list[Int32]


class WriteTxnMarkersRequestWritableTxnMarker(Struct):
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: bool
    topics: list[WriteTxnMarkersRequestWritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Int8 = field(since=2)


class WriteTxnMarkersRequest(Message, key=27, versions="1-2", flexible=1):
    """Write transaction markers to partitions (KIP-98, KIP-1228)."""

    markers: list[WriteTxnMarkersRequestWritableTxnMarker]


class WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32
    error_code: Int16


class WriteTxnMarkersResponseWritableTxnMarkerTopicResult(Struct):
    name: str
    partitions: list[WriteTxnMarkersResponseWritableTxnMarkerPartitionResult]


class WriteTxnMarkersResponseWritableTxnMarkerResult(Struct):
    producer_id: Int64
    topics: list[WriteTxnMarkersResponseWritableTxnMarkerTopicResult]


class WriteTxnMarkersResponse(Message, key=27, versions="1-2", flexible=1):
    """Result for each partition."""

    markers: list[WriteTxnMarkersResponseWritableTxnMarkerResult]
