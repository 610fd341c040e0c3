"""The pages of the console, with few and with many topics and groups.

A page is requested after the console has forgotten its data: a creation of a topic that is only validated clears the
cache, as each change does. `CPU` is the processor time of the broker and the console for a page, `delay` the longest
delay of another client of the broker meanwhile, `iteration` the most CPU time of an iteration of the event loop.
"""

from __future__ import annotations

import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPResponse
from statistics import median
from typing import NamedTuple, cast
from urllib.error import HTTPError

from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.scale.filling import PROPERTIES, WIDE, Size, fill, name_of
from benchmarks.scale.timing import SLOW_ITERATIONS, IterationTimes, Times, measure_ms, read_children_cpu_ms, summarize
from benchmarks.tools import open_console
from odradek.testing import OdradekBroker

LIMIT_MS = 300.0
FEW = Size(100, 20, 100)
NOTHING = Size(0, 0, 0)
ONE = name_of(0)
TIMEOUT_S = 60

PAGES: Mapping[str, str] = {
    "overview": "",
    "broker": "brokers/1",
    "topics": "topics",
    "topics, last page": "topics?page=1000",
    "topics by size": "topics?sort=-size",
    "topics, search": "topics?search=01",
    "topic": f"topics/{ONE}",
    "topic that does not exist": f"topics/{ONE}x",
    "wide topic": f"topics/{WIDE}",
    "records": f"topics/{ONE}/records",
    "records of a wide topic": f"topics/{WIDE}/records",
    "record": f"topics/{ONE}/records/0/5",
    "value of a record": f"topics/{ONE}/records/0/5/value",
    "tail": f"topics/{ONE}/tail",
    "tail of a wide topic": f"topics/{WIDE}/tail",
    "new records": f"topics/{ONE}/tail/records?after=0:50",
    "groups": "groups",
    "groups, last page": "groups?page=1000",
    "groups, search": "groups?search=01",
    "group": f"group?name={ONE}",
    "group that does not exist": f"group?name={ONE}x",
    "wide group": f"group?name={WIDE}",
    "readers": "readers",
    "transactions": "transactions",
    "hanging transactions": f"transactions/hanging?topic={ONE}",
    "hanging transactions of all": "transactions/hanging",
    "ACLs": "acls",
    "users": "users",
    "quotas": "quotas",
    "new topic": "new-topic",
    "configuration": f"topics/{ONE}/config",
    "deletion": f"topics/{ONE}/delete",
    "deletion of a wide topic": f"topics/{WIDE}/delete",
    "production": f"topics/{ONE}/produce",
    "production, wide topic": f"topics/{WIDE}/produce",
    "reset": f"group/reset?name={ONE}",
    "reset of a wide group": f"group/reset?name={WIDE}",
}


class Loads(NamedTuple):
    """The loads of one page."""

    cold: Times
    cpu_ms: float
    cached: Times
    size_bytes: int
    delay_ms: float
    longest_iteration_ms: str


class Browser:
    """A client of a console that permits changes."""

    def __init__(self, url: str) -> None:
        self._url = url
        found = re.search(rb'name="token" value="(\w+)"', self.load("new-topic"))
        assert found is not None
        self._token = found[1].decode()

    def load(self, path: str, data: bytes | None = None) -> bytes:
        """Return a page, also one of an error of the user. Raises HTTPError for other errors, and OSError."""
        try:
            response = cast(HTTPResponse, urllib.request.urlopen(self._url + path, data, timeout=TIMEOUT_S))
        except HTTPError as error:
            with error:
                if error.code != 404:
                    raise
                return error.read()
        with response:
            return response.read()

    def clear_cache(self) -> None:
        """Validate a topic, after which the console reads all data again."""
        form = {"token": self._token, "step": "check", "name": "bench-validated", "configs": ""}
        self.load("new-topic", urllib.parse.urlencode(form).encode())


def measure_pages(broker: OdradekBroker, rounds: int) -> dict[str, Loads]:
    """Return the loads of each page."""
    found = {}
    metrics_url = f"{broker.metrics_url}/metrics"
    with open_console(broker.bootstrap_servers, "--allow-changes", "--metrics-url", metrics_url) as url:
        browser = Browser(url)
        iterations = IterationTimes(broker)
        for name, path in PAGES.items():
            found[name] = _measure_page(broker, browser, path, rounds, iterations)
            print(f"  {name:28} {found[name].cold} {found[name].delay_ms:8.1f}", file=sys.stderr, flush=True)
    return found


def _measure_page(broker: OdradekBroker, browser: Browser, path: str, rounds: int, iterations: IterationTimes) -> Loads:
    size_bytes = len(browser.load(path))
    cold, cpu, cached = [], [], []
    iterations.take()
    for _ in range(rounds):
        browser.clear_cache()
        before_ms = read_children_cpu_ms()
        cold.append(measure_ms(lambda: browser.load(path)))
        cpu.append(read_children_cpu_ms() - before_ms)
        cached.append(measure_ms(lambda: browser.load(path)))
    delays: list[Delays] = []
    browser.clear_cache()
    with measure_delays(broker.port, delays):
        browser.load(path)
    return Loads(summarize(cold), median(cpu), summarize(cached), size_bytes, delays[0].max_ms, iterations.take())


def measure(many: Size, rounds: int) -> None:
    """Print the times of each page with few and with many topics, and their ratio."""
    with OdradekBroker({**PROPERTIES, **SLOW_ITERATIONS, "metrics.listener": "http://127.0.0.1:0"}) as broker:
        fill(broker, NOTHING, FEW)
        few_loads = measure_pages(broker, rounds)
        fill(broker, FEW, many)
        many_loads = measure_pages(broker, rounds)
    print(f"pages with {FEW}\nand with   {many}: ms, data read again (cached); longest delay of another client\n")
    print(
        f"{'':28} {'median':>9} {'max':>9}  {'median':>9} {'max':>9} {'ratio':>6} {'cached':>8} {'KB':>7} {'delay':>7}"
    )
    for name, few in few_loads.items():
        loads = many_loads[name]
        ratio = loads.cold.median_ms / few.cold.median_ms
        mark = "  over the target" if loads.cold.max_ms >= LIMIT_MS else ""
        cells = f"{loads.cold} {loads.cpu_ms:6.1f} {ratio:6.2f} {loads.cached.median_ms:8.1f}"
        delays = f"{loads.delay_ms:7.1f} {loads.longest_iteration_ms:>10}"
        print(f"{name:28} {few.cold} {few.cpu_ms:6.1f}  {cells} {loads.size_bytes / 1000:7.0f} {delays}{mark}")
