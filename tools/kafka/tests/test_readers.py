"""Readers in the metrics of brokers."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

import pytest

from odradek.tools.kafka.groups.readers import Reader, fetch_readers, make_url, parse_readers

TEXT = """\
# TYPE odradek_reader_lag gauge
odradek_reader_lag{client_id="a\\"b\\\\c\\nd",topic="t",partition="3"} 7
odradek_reader_lag{client_id="incomplete",topic="t",partition="3"} 7
odradek_reader_offset{client_id="a\\"b\\\\c\\nd",topic="t",partition="3"} 93
odradek_reader_last_fetch_timestamp_seconds{client_id="a\\"b\\\\c\\nd",topic="t",partition="3"} 1700000000.5
kafka_log_log_size{topic="t",partition="3"} 1
"""


def test_readers_are_read_from_metrics():
    assert list(parse_readers(TEXT)) == [Reader('a"b\\c\nd', "t", 3, 93, 7, 1700000000.5)]


@pytest.mark.parametrize(
    ("listener", "broker_host", "url"),
    [
        ("127.0.0.1:9404", "broker", "http://127.0.0.1:9404/metrics"),
        (":9404", "broker", "http://broker:9404/metrics"),
        ("0.0.0.0:9404", "::1", "http://[::1]:9404/metrics"),
        ("http://[::]:9404", "broker", "http://broker:9404/metrics"),
    ],
)
def test_the_address_of_the_metrics(listener, broker_host, url):
    assert make_url(listener, broker_host) == url


def test_only_the_metrics_of_readers_are_requested():
    paths = []

    class Handler(BaseHTTPRequestHandler):
        """A server that ignores the query."""

        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(TEXT.encode())

        def log_message(self, *_):
            """Do nothing."""

    names = "&".join(f"name%5B%5D=odradek_reader_{one}" for one in ("lag", "offset", "last_fetch_timestamp_seconds"))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        found = fetch_readers(cast(Any, None), [url, f"{url}?job=a"])
        server.shutdown()
        thread.join()
    assert len(found) == 2 and found[0].client_id == 'a"b\\c\nd'
    assert sorted(paths) == [f"/metrics?job=a&{names}", f"/metrics?{names}"]
