"""Metrics of readers: the lag of each client in each partition that it fetches, whether or not it commits offsets."""

from typing import Final

from odradek.server.fetching.readers import Readers
from odradek.server.metrics.declaration import Collected, Family, Sample, labels, own_gauge

LAG: Final = own_gauge("reader_lag", "Offsets from the position of a client to the high watermark.")
OFFSET: Final = own_gauge("reader_offset", "Offset that a client reads next, by its last fetch.")
FETCHED: Final = own_gauge("reader_last_fetch_timestamp_seconds", "Time of the last fetch of a client.")

METRICS: Final = (LAG, OFFSET, FETCHED)


def collect_readers(readers: Readers) -> Collected:
    """Return the positions of all readers."""
    lags: list[Sample] = []
    offsets: list[Sample] = []
    times: list[Sample] = []
    for positions in readers.list_positions():
        for one in positions:
            text = labels(client_id=one.client_id, topic=one.partition.topic, partition=one.partition.index)
            lags.append((text, one.lag))
            offsets.append((text, one.offset))
            times.append((text, one.fetched_ms / 1000))
        yield None
    yield Family(LAG, lags)
    yield Family(OFFSET, offsets)
    yield Family(FETCHED, times)
