"""Readers that fetch records, whether or not they commit offsets, as the metrics of Odradek's brokers show them.

Kafka's protocol has no request for them. The HTTP server of `metrics.listener` is found by DescribeConfigs.
"""

import math
import re
import time
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode

from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.topics.configs import BROKER, fetch_configs

LISTENER: Final = "metrics.listener"
UNSUPPORTED: Final = "UNSUPPORTED"
"""Code of the error that a broker reports no readers."""

_TIMEOUT_S: Final = 10.0
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the proxy of the environment, which seldom reaches brokers."""

_PREFIX: Final = "odradek_reader_"
_NAMES: Final = ("lag", "offset", "last_fetch_timestamp_seconds")
_MAX_BYTES: Final = 1 << 28
_PART_BYTES: Final = 1 << 20
_ANY_HOST: Final = ("", "0.0.0.0", "[::]")
_SAMPLE: Final = re.compile(
    rf"^{_PREFIX}({'|'.join(_NAMES)})"
    r'\{client_id="((?:[^"\\]|\\.)*)",topic="([^"]*)",partition="(\d+)"\} (\S+)$',
    re.MULTILINE,
)
_ESCAPE: Final = re.compile(r"\\(.)")


class Reader(NamedTuple):
    """The position of a client in a partition. `fetched_s` is the time of its last fetch."""

    client_id: str
    topic: str
    partition: int
    offset: int
    lag: int
    fetched_s: float


def fetch_readers(cluster: Cluster, urls: Sequence[str] = ()) -> list[Reader]:
    """Return the readers of all brokers, or of those with the metrics at `urls`. Raises RequestError."""
    found = list(urls) or find_metrics_urls(cluster)
    with ThreadPoolExecutor(max(1, min(8, len(found)))) as pool:
        return sorted(reader for text in pool.map(_fetch, found) for reader in parse_readers(text))


def find_metrics_urls(cluster: Cluster) -> list[str]:
    """Return the addresses of the metrics of all brokers. Raises RequestError if one has no `metrics.listener`."""
    hosts = {str(broker.node_id): broker.host for broker in cluster.fetch_metadata(()).brokers}
    configs = fetch_configs(cluster, [(BROKER, name) for name in hosts])
    urls = []
    for name, host in hosts.items():
        text = next((one.value for one in configs[BROKER, name] if one.name == LISTENER), None)
        if not text:
            raise RequestError(UNSUPPORTED, f"broker {name} has no {LISTENER}, which shows the positions of readers")
        urls.append(make_url(text, host))
    return urls


def make_url(listener: str, broker_host: str) -> str:
    """Return the address of the metrics of a broker, whose host is used if the listener has none."""
    host, _, port = listener.removeprefix("http://").rpartition(":")
    if host in _ANY_HOST:
        host = f"[{broker_host}]" if ":" in broker_host else broker_host
    return f"http://{host}:{port}/metrics"


def select_readers(url: str) -> str:
    """Return the address of the metrics of readers alone. Servers that ignore `name[]` return all metrics."""
    address, mark, fragment = url.partition("#")
    names = urlencode([("name[]", f"{_PREFIX}{name}") for name in _NAMES])
    return f"{address}{'&' if '?' in address else '?'}{names}{mark}{fragment}"


def _fetch(url: str) -> str:
    try:
        with _OPENER.open(select_readers(url), timeout=_TIMEOUT_S) as response:
            return _read(response).decode()
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise RequestError("NO_METRICS", f"cannot read {url}: {reason}; see --metrics-url") from None


def _read(response: Any) -> bytes:
    """Return the content of a response. Its timeout applies to each part alone, however small it is."""
    end_s = time.monotonic() + _TIMEOUT_S
    content = bytearray()
    while len(content) < _MAX_BYTES and (part := response.read1(_PART_BYTES)):
        content += part
        if time.monotonic() > end_s:
            raise TimeoutError("timed out")
    return bytes(content)


def parse_readers(text: str) -> Iterable[Reader]:
    """Return the readers in metrics."""
    values: dict[tuple[str, str, int], dict[str, float]] = {}
    for name, client_id, topic, partition, value in _SAMPLE.findall(text):
        unescaped = _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], client_id)
        with suppress(ValueError):
            values.setdefault((unescaped, topic, int(partition)), {})[name] = float(value)
    for key, found in values.items():
        if len(found) == 3 and all(map(math.isfinite, found.values())):
            yield Reader(*key, int(found["offset"]), int(found["lag"]), found["last_fetch_timestamp_seconds"])
