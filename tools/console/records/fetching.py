"""Record batches from the leaders of partitions, by Fetch requests."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from odradek.protocol.batches.record_batch import BatchHeader, InvalidRecordError, iter_batches, read_header
from odradek.protocol.batches.record_reader import Record, iter_records
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
)
from odradek.tools.kafka.cluster import Cluster, check, make_error
from odradek.tools.kafka.offsets import group_by_leader

PARTITION_BYTES: Final = 1 << 20
RESPONSE_BYTES: Final = 8 << 20
_FETCH_VERSION: Final = 12
"""The newest version in which topics have names."""

_MOST_DECOMPRESSED_BYTES: Final = 64 << 20


class Fetched(NamedTuple):
    """Batches of a partition, not yet decoded. The first one may begin before `start`."""

    data: bytes | memoryview
    start: int
    high_watermark: int

    def iter_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over the headers and bytes of complete batches."""
        try:
            for batch in iter_batches(self.data):
                yield read_header(batch), batch
        except InvalidRecordError:
            return

    def iter_records(self, header: BatchHeader, batch: memoryview) -> Iterator[Record]:
        """Iterate over the records of a batch from `start` on. Raises ValueError if it cannot be decoded."""
        if not header.is_control:
            for record in iter_records(batch, _MOST_DECOMPRESSED_BYTES):
                if record.offset >= self.start:
                    yield record


def fetch_records(
    cluster: Cluster, topic: str, offsets: Mapping[int, int], leaders: Mapping[int, int]
) -> dict[int, Fetched]:
    """Return batches from an offset of each partition on, about PARTITION_BYTES of each.

    Partitions without a leader are missing in the result, and so are those whose offset does not exist any more or
    yet. Raises RequestError.
    """
    found: dict[int, Fetched] = {}
    keys = {(topic, partition): leaders[partition] for partition in offsets}
    for leader, topics in group_by_leader(keys, keys).items():
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=RESPONSE_BYTES,
            isolation_level=0,
            topics=[
                FetchRequestFetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequestFetchPartition(
                            partition=partition,
                            fetch_offset=offsets[partition],
                            partition_max_bytes=PARTITION_BYTES,
                        )
                        for partition in topics[topic]
                    ],
                )
            ],
        )
        response = cluster.broker(leader).send(request, FetchResponse, _FETCH_VERSION)
        check(response.error_code)
        for each in response.responses:
            for one in each.partitions:
                if one.error_code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                    continue
                if one.error_code:
                    raise make_error(one.error_code, None, f"{topic}-{one.partition_index}")
                data = one.records if isinstance(one.records, bytes | memoryview) else b""
                start = offsets[one.partition_index]
                found[one.partition_index] = Fetched(data, start, one.high_watermark)
    return found
