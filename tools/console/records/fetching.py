"""Record batches from the leaders of partitions, by Fetch requests."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from odradek.protocol.batches.control_records import ControlType, parse_control_record
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
from odradek.tools.kafka.topics.offsets import group_by_leader

PARTITION_BYTES: Final = 1 << 20
RESPONSE_BYTES: Final = 8 << 20
READ_UNCOMMITTED: Final = 0
_FETCH_VERSION: Final = 12
"""The newest version in which topics have names."""

_MOST_DECOMPRESSED_BYTES: Final = 64 << 20


class FetchedBatch(NamedTuple):
    """A batch, not yet decoded. `has_records` is False for markers and for batches of aborted transactions."""

    header: BatchHeader
    data: memoryview
    has_records: bool


class Fetched(NamedTuple):
    """Batches of a partition. The first one may begin before `start`.

    aborted: producer ids and first offsets of aborted transactions, in the order of the offsets; only known to readers
        of committed records
    """

    data: bytes | memoryview
    start: int
    aborted: list[tuple[int, int]]

    def iter_batches(self) -> Iterator[FetchedBatch]:
        """Iterate over the complete batches."""
        waiting = deque(self.aborted)
        aborted_producers: set[int] = set()
        try:
            for batch in iter_batches(self.data):
                header = read_header(batch)
                while waiting and waiting[0][1] <= header.last_offset:
                    aborted_producers.add(waiting.popleft()[0])
                is_aborted = header.is_transactional and header.producer_id in aborted_producers
                if header.is_control and is_aborted and _is_abort(batch):
                    aborted_producers.discard(header.producer_id)
                yield FetchedBatch(header, batch, not header.is_control and not is_aborted)
        except InvalidRecordError:
            return

    def iter_records(self, batch: FetchedBatch) -> Iterator[Record]:
        """Iterate over the records of a batch from `start` on. Raises ValueError if it cannot be decoded."""
        if batch.has_records:
            for record in iter_records(batch.data, _MOST_DECOMPRESSED_BYTES):
                if record.offset >= self.start:
                    yield record


def _is_abort(batch: memoryview) -> bool:
    return any(parse_control_record(record).control_type == ControlType.ABORT for record in iter_records(batch))


def fetch_records(
    cluster: Cluster,
    topic: str,
    offsets: Mapping[int, int],
    leaders: Mapping[int, int],
    isolation_level: int = READ_UNCOMMITTED,
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
            isolation_level=isolation_level,
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
        for topic_response in response.responses:
            for one in topic_response.partitions:
                if one.error_code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                    continue
                if one.error_code:
                    raise make_error(one.error_code, None, f"{topic}-{one.partition_index}")
                data = one.records if isinstance(one.records, bytes | memoryview) else b""
                start = offsets[one.partition_index]
                aborted = [(each.producer_id, each.first_offset) for each in one.aborted_transactions or ()]
                aborted.sort(key=lambda transaction: transaction[1])
                found[one.partition_index] = Fetched(data, start, aborted)
    return found
