"""Readers in the metrics of brokers."""

import pytest

from odradek.tools.kafka.readers import Reader, make_url, parse_readers

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
