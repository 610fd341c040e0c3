"""Names of metrics and labels in Prometheus."""

import pytest

from odradek.server.telemetry.names import make_labels, make_metric_name
from odradek.server.telemetry.otlp import Kind


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("org.apache.kafka.producer.latency.avg", "", Kind.GAUGE, "org_apache_kafka_producer_latency_avg"),
        ("org.apache.kafka.a.time", "ms", Kind.GAUGE, "org_apache_kafka_a_time_milliseconds"),
        ("org.apache.kafka.a.milliseconds", "ms", Kind.GAUGE, "org_apache_kafka_a_milliseconds"),
        ("org.apache.kafka.a.rate", "By/s", Kind.GAUGE, "org_apache_kafka_a_rate_bytes_per_second"),
        ("org.apache.kafka.a", "{requests}/s", Kind.GAUGE, "org_apache_kafka_a_per_second"),
        ("org.apache.kafka.a", "{requests}", Kind.GAUGE, "org_apache_kafka_a"),
        ("org.apache.kafka.a", "widgets", Kind.HISTOGRAM, "org_apache_kafka_a_widgets"),
        ("org.apache.kafka.a.total", "", Kind.COUNTER, "org_apache_kafka_a_total"),
        ("org.apache.kafka.total.a", "s", Kind.COUNTER, "org_apache_kafka_a_seconds_total"),
        ("org.apache.kafka.a.total", "", Kind.GAUGE, "org_apache_kafka_a_total"),
        ("org.apache.kafka.idle", "1", Kind.GAUGE, "org_apache_kafka_idle_ratio"),
        ("org.apache.kafka.made", "1", Kind.COUNTER, "org_apache_kafka_made_total"),
        ("org.apache.kafka..b--c", "", Kind.GAUGE, "org_apache_kafka_b_c"),
        ("up", "", Kind.GAUGE, "kafka_client_metric_up"),
        ("kafka_server_x", "", Kind.GAUGE, "kafka_client_metric_kafka_server_x"),
        ("info", "", Kind.GAUGE, "kafka_client_metric_info"),
        ("\u00e4\n{", "", Kind.GAUGE, "kafka_client_metric_"),
    ],
)
def test_names_are_those_of_prometheus(name: str, unit: str, kind: Kind, expected: str) -> None:
    assert make_metric_name(name, unit, kind) == expected


def test_labels_are_valid_sorted_and_never_those_of_the_broker():
    attributes = (
        ("topic", "t"), ("node.id", "1"), ("client_id", "x"), ("le", "1"), ("9", "n"), ("_u", "u"), ("\u00e4", "a"),
    )  # fmt: skip
    assert make_labels(attributes) == (
        ("exported_client_id", "x"), ("exported_le", "1"), ("key_", "a"), ("key_9", "n"), ("key_u", "u"),
        ("node_id", "1"), ("topic", "t"),
    )  # fmt: skip
    assert make_labels((("a.b", "1"), ("a_b", "2"))) == (("a_b", "2"),)
