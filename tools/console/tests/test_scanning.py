import random
from itertools import count, islice, pairwise
from typing import Any, cast

import pytest

from odradek.protocol.batches.batch_builder import build_batch
from odradek.protocol.batches.record_reader import iter_records
from odradek.protocol.messages.fetch import (
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.protocol.messages.list_offsets import (
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.records import scanning
from odradek.tools.console.records.scanning import MOST_RECORDS, Ranges, Scanner
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.connection_errors import UnsupportedRequestError
from odradek.tools.kafka.topics.offsets import LATEST, MAX_TIMESTAMP


class FakeCluster:
    """A broker with batches, each with its next offset, by partition."""

    def __init__(self, batches):
        self.batches = batches
        self.is_old = False
        self.requests = 0

    def fetch_topics(self, names):
        partitions = [
            MetadataResponsePartition(
                error_code=0, partition_index=one, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
            )
            for one in self.batches
        ]
        return [MetadataResponseTopic(error_code=0, name="t", is_internal=False, partitions=partitions)]

    def broker(self, node_id):
        return self

    def require_version(self, request_type, version, purpose):
        if self.is_old:
            raise UnsupportedRequestError(purpose)

    def ask_broker(self, node_id, request, response_type):
        partitions = []
        for asked in request.topics[0].partitions:
            records = [one for _, batch in self.batches[asked.partition_index] for one in iter_records(batch)]
            found = max(records, key=lambda one: one.timestamp) if asked.timestamp == MAX_TIMESTAMP else records[0]
            offset = records[-1].offset + 1 if asked.timestamp == LATEST else found.offset
            partitions.append(
                ListOffsetsResponseListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=0, offset=offset, timestamp=found.timestamp
                )
            )
        topic = ListOffsetsResponseListOffsetsTopicResponse(name="t", partitions=partitions)
        return ListOffsetsResponse(topics=[topic])

    def send(self, request, response_type, last_version):
        self.requests += 1
        partitions = []
        for asked in request.topics[0].partitions:
            data = b""
            for next_offset, batch in self.batches[asked.partition]:
                if next_offset > asked.fetch_offset and (not data or len(data) + len(batch) <= 1 << 20):
                    data += batch
                elif data:
                    break
            partitions.append(
                FetchResponsePartitionData(
                    partition_index=asked.partition,
                    error_code=0,
                    high_watermark=0,
                    aborted_transactions=None,
                    records=data,
                )
            )
        return FetchResponse(
            throttle_time_ms=0,
            error_code=0,
            session_id=0,
            responses=[FetchResponseFetchableTopicResponse(topic="t", partitions=partitions)],
        )


def make_batches(count, size, first=0, timestamp=lambda offset: offset, value_bytes=1):
    made = []
    for base in range(first, first + count, size):
        offsets = range(base, min(base + size, first + count))
        rows = [(timestamp(one), b"key-%d" % one, b"v" * value_bytes, ()) for one in offsets]
        made.append((offsets[-1] + 1, build_batch(rows, base_offset=base)))
    return made


def make(batches, needle=b"", monotonic=lambda: 0.0):
    cluster = FakeCluster(batches)
    ranges = Ranges(
        dict.fromkeys(batches, 1),
        {one: 0 if not each else each[0][0] - 1 for one, each in batches.items()},
        {one: each[-1][0] if each else 0 for one, each in batches.items()},
    )
    # The first offset of a partition is that of its first batch.
    first = {one: int.from_bytes(each[0][1][:8], "big") if each else 0 for one, each in batches.items()}
    ranges = ranges._replace(first=first)
    return cluster, ranges, lambda: Scanner(cast(Any, cluster), "t", ranges, needle, monotonic)


def offsets_of(scan):
    return [(record.partition, record.offset) for record in scan.records]


BATCHES = {
    0: make_batches(230, 7),
    1: make_batches(40, 40, first=1000, timestamp=lambda offset: 100),
    2: [],
    3: make_batches(90, 1, first=5, timestamp=lambda offset: 500 - offset),
}
ALL = {
    (partition, one)
    for partition, (first, count) in {0: (0, 230), 1: (1000, 40), 3: (5, 90)}.items()
    for one in range(first, first + count)
}


@pytest.mark.parametrize("needle", [b"", b"7"])
@pytest.mark.parametrize("is_forward", [True, False])
def test_pages_have_each_record_once(needle, is_forward):
    _, ranges, scanner = make(BATCHES, needle)
    expected = {(partition, one) for partition, one in ALL if needle.decode() in f"key-{one}"}
    found, positions = [], ranges.first if is_forward else ranges.end
    for _ in range(40):
        scan = scanner().scan_forward(positions) if is_forward else scanner().scan_backward(positions)
        page = offsets_of(scan)
        assert len(page) <= MOST_RECORDS and scan.is_complete
        assert all(one < other for one, other in pairwise(page) if one[0] == other[0])
        found += page
        positions = scan.after if is_forward else scan.before
    assert sorted(found) == sorted(expected)


def test_the_page_before_a_page_ends_where_that_begins():
    _, ranges, scanner = make({0: make_batches(200, 10)})
    second = scanner().scan_forward({0: 60})
    assert offsets_of(scanner().scan_backward(second.before))[-1] == (0, 59)
    newest = scanner().scan_backward(ranges.end)
    assert offsets_of(newest) == [(0, one) for one in range(150, 200)]
    assert offsets_of(scanner().scan_forward(newest.after)) == []


def make_wide(count, records=3):
    """Partitions whose records have distinct timestamps, in the order of their offsets."""
    times = iter(random.Random(1).sample(range(10**6), count * records))
    found = {}
    for partition in range(count):
        own = sorted(islice(times, records))
        found[partition] = make_batches(records, 2, timestamp=own.__getitem__)
    return found


@pytest.mark.parametrize("is_forward", [True, False])
def test_pages_of_many_partitions_are_in_the_order_of_the_timestamps(is_forward):
    batches = make_wide(300)
    cluster, ranges, scanner = make(batches)
    expected = sorted(
        (record.timestamp, partition, record.offset)
        for partition, each in batches.items()
        for _, batch in each
        for record in iter_records(batch)
    )
    found, positions = [], ranges.first if is_forward else ranges.end
    for page in range(18):
        scan = scanner().scan_forward(positions) if is_forward else scanner().scan_backward(positions)
        rows = [(one.timestamp_ms, one.partition, one.offset) for one in scan.records]
        found = found + rows if is_forward else rows + found
        positions = scan.after if is_forward else scan.before
        assert scan.is_ordered and scan.partitions_read <= scan.partitions
        if page == 0:
            assert (scan.partitions, scan.partitions_read, scan.scanned, cluster.requests) == (300, 50, 150, 1)
    assert found == expected


def test_the_newest_records_of_a_partition_among_many_are_not_left_out():
    batches = make_wide(200)
    batches[7] = make_batches(100, 10, timestamp=lambda offset: 10**6 + offset)
    _, ranges, scanner = make(batches)
    assert offsets_of(scanner().scan_backward(ranges.end)) == [(7, one) for one in range(50, 100)]


def test_a_page_reads_a_part_of_the_partitions_whose_times_are_not_known(monkeypatch):
    monkeypatch.setattr(scanning, "MOST_PARTITIONS", 500)
    cluster, ranges, scanner = make(make_wide(700))
    cluster.is_old = True
    scan = scanner().scan_backward(ranges.end)
    assert (scan.partitions, scan.partitions_read, scan.is_ordered) == (700, 500, False)
    console = Console(lambda: cast(Any, cluster), "", ConsoleSettings())
    text = make_app(console).test_client().get("/topics/t/records").get_data(as_text=True)
    assert "Only 500 of 700 partitions were read" in text


def test_positions_outside_the_log_are_moved_into_it():
    _, _, scanner = make({0: make_batches(10, 10, first=100)})
    assert len(scanner().scan_forward({0: 3}).records) == 10
    assert len(scanner().scan_backward({0: 10**12}).records) == 10


def test_the_newest_of_large_records_are_shown_without_reading_all():
    cluster, ranges, scanner = make({0: make_batches(60, 1, value_bytes=700_000)})
    scan = scanner().scan_backward(ranges.end)
    assert offsets_of(scan) == [(0, 59)]
    assert cluster.requests == 2
    assert scan.records[0].value.is_shortened and scan.records[0].value.size_bytes == 700_000
    assert offsets_of(scanner().scan_backward(scan.before))[-1] == (0, 58)


def test_a_search_ends_at_its_limits_and_continues_there(monkeypatch):
    monkeypatch.setattr(scanning, "MOST_BYTES", 2000)
    _, ranges, scanner = make({0: make_batches(500, 10)}, needle=b"key-499")
    scan = scanner().scan_forward(ranges.first)
    assert not scan.is_complete and not scan.records and 0 < scan.after[0] < 500
    monkeypatch.undo()
    assert offsets_of(scanner().scan_forward(scan.after)) == [(0, 499)]
    times = iter([0.0, 0.0, 10.0, 10.0, 10.0, 10.0])
    _, ranges, scanner = make({0: make_batches(500, 10)}, b"key-499", lambda: next(times))
    scan = scanner().scan_forward(ranges.first)
    assert (scan.is_complete, scan.after[0]) == (False, 10)


def test_a_damaged_batch_is_reported_and_skipped():
    batches = make_batches(30, 10)
    batches[1] = (20, batches[1][1][:-3] + b"\x7f\x7f\x7f")
    _, ranges, scanner = make({0: batches})
    scan = scanner().scan_forward(ranges.first)
    assert [one for _, one in offsets_of(scan) if one < 10 or one >= 20] == [*range(10), *range(20, 30)]
    assert scan.problems[0].startswith("t-0: the batch at offset 10 cannot be decoded: ")


@pytest.mark.parametrize("needle", [b"none", b"key-2999"])
def test_a_scan_ends_within_a_large_batch(needle):
    times = count(0, 1.5)
    _, _, make_scanner = make({0: make_batches(3_000, 3_000)}, needle, lambda: next(times))
    first = make_scanner().scan_forward({0: 0})
    # The limit of 4 s is exceeded at the third of the checks, one of which is before the batch.
    assert (first.scanned, first.after, first.is_complete) == (2_000, {0: 2_000}, False)
    rest = make_scanner().scan_forward(first.after)
    assert (rest.scanned, rest.after) == (1_000, {0: 3_000})
    assert offsets_of(rest) == ([(0, 2_999)] if needle == b"key-2999" else [])


@pytest.mark.parametrize("path", ["/topics/t/records/0/1", "/topics/t/records/0/1/value"])
def test_a_record_in_a_batch_that_cannot_be_decoded(path):
    [(next_offset, batch)] = make_batches(3, 3)
    damaged = bytearray(batch)
    damaged[22] |= 1  # the flag of gzip
    cluster = FakeCluster({0: [(next_offset, bytes(damaged))]})
    console = Console(lambda: cast(Any, cluster), "", ConsoleSettings())
    response = make_app(console).test_client().get(path)
    assert response.status_code == 502
    assert "t-0: the batch at offset 0 cannot be decoded" in response.get_data(as_text=True)
