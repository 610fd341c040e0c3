"""/metrics of a broker with many partitions, and the delays of other clients with and without scrapes.

The other clients send one small request each millisecond (`benchmarks.fairness.ping`), then one record at a time.
`iteration` is the CPU time of the longest iteration of the broker's event loop.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from urllib.parse import urlsplit

from benchmarks import wire
from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.scale.filling import create_topics, name_of
from benchmarks.scale.timing import SLOW_ITERATIONS, IterationTimes, measure_ms, summarize
from odradek.testing import OdradekBroker

LIMIT_MS, DELAY_LIMIT_MS = 200.0, 5.0
PARTITIONS_PER_TOPIC = 10
WARM_UP_S, WINDOW_S = 1.0, 5.0
PAUSE_S = 0.2
TIMEOUT_S = 60


def _scrape(url: str) -> int:
    """Return the number of bytes of a response. A client that does more takes processor time from the broker."""
    address, buffer, size_bytes = urlsplit(url), bytearray(1 << 20), 0
    with socket.create_connection((address.hostname, address.port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall(f"GET {address.path} HTTP/1.0\r\n\r\n".encode())
        while received := connection.recv_into(buffer):
            size_bytes += received
    return size_bytes


class _Producer(threading.Thread):
    """Sends one record at a time until `stop` is set, and keeps the time of each."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.times_ms: list[float] = []
        self._port = port
        self._frame = wire.produce_frame(topic, 0, wire.record_batch(100, 1, wire.now_ms()))

    def run(self) -> None:
        with wire.Admin(self._port) as admin:
            while not self.stop.wait(0.001):
                self.times_ms.append(measure_ms(lambda: admin.exchange(self._frame)))


@contextmanager
def _producing(port: int, topic: str, times_ms: list[float]) -> Iterator[None]:
    producer = _Producer(port, topic)
    producer.start()
    try:
        yield
    finally:
        producer.stop.set()
        producer.join()
        times_ms += producer.times_ms


def _observe(port: int, url: str, topic: str, pause_s: float | None) -> tuple[Delays, list[float]]:
    """Return the delays of the other clients during WINDOW_S with a scrape after each pause; without any for None."""
    delays: list[Delays] = []
    with measure_delays(port, delays):
        _scrape_for(url, pause_s)
    times_ms: list[float] = []
    with _producing(port, topic, times_ms):
        _scrape_for(url, pause_s)
    return delays[0], sorted(times_ms)


def _scrape_for(url: str, pause_s: float | None) -> None:
    end_s = time.monotonic() + WINDOW_S
    while (left_s := end_s - time.monotonic()) > 0:
        if pause_s is not None:
            _scrape(url)
        time.sleep(left_s if pause_s is None else pause_s)


def measure(partitions: int, rounds: int) -> None:
    """Print the times of scrapes and the delays of the other clients."""
    topics = [name_of(number) for number in range(partitions // PARTITIONS_PER_TOPIC)]
    with OdradekBroker({**SLOW_ITERATIONS, "metrics.listener": "http://127.0.0.1:0"}) as broker:
        with wire.Admin(broker.port, timeout_s=120) as admin:
            create_topics(admin, topics, PARTITIONS_PER_TOPIC)
        url = f"{broker.metrics_url}/metrics"
        size_bytes = _scrape(url)
        time.sleep(WARM_UP_S)
        times = summarize([measure_ms(lambda: _scrape(url)) for _ in range(rounds)])
        mark = "  over the target" if times.max_ms >= LIMIT_MS else ""
        print(f"/metrics, {partitions:,} partitions, {size_bytes / 1e6:.1f} MB, ms\n\n{'':28} {'median':>9} {'max':>9}")
        print(f"{'a scrape':28} {times}{mark}\n")
        print(
            f"{'delays of a client, ms':28} {'p50':>7} {'p99.9':>7} {'max':>7}   {'produce':>7} {'p99.9':>7} {'max':>7}"
        )
        rows = {"without scrapes": None, f"a scrape each {PAUSE_S} s": PAUSE_S, "one scrape after another": 0.0}
        iterations = IterationTimes(broker)
        for name, pause_s in rows.items():
            iterations.take()
            delays, produces = _observe(broker.port, url, topics[0], pause_s)
            p999_ms = produces[int(len(produces) * 0.999)]
            print(
                f"{name:28} {delays.p50_ms:7.2f} {delays.p999_ms:7.2f} {delays.max_ms:7.2f}  "
                f" {median(produces):7.2f} {p999_ms:7.2f} {produces[-1]:7.2f}"
                f" {iterations.take():10}",
                flush=True,
            )
