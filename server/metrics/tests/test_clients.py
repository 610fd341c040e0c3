"""Metrics of clients in the text format."""

from odradek.server.metrics.collectors.clients import collect_clients
from odradek.server.metrics.exposition import write_families
from odradek.server.telemetry.otlp import DecodedMetrics, HistogramValue, Kind, Metric, Point
from odradek.server.telemetry.series import PushingClient
from odradek.server.telemetry.tests.test_client_telemetry import World


def expose(world: World) -> list[str]:
    written: list[bytes] = []
    list(write_families(collect_clients(world.telemetry), written.append))
    return b"".join(written).decode().splitlines()


def test_pushed_metrics_are_exposed_with_their_counts():
    world = World()
    histogram = HistogramValue(3, 1.5, (0.5,), (1, 2))
    points = [
        Point(Metric("org.apache.kafka.a", "Two\nlines \\.", "", Kind.GAUGE, False), (("t", 'x"y\n'),), float("nan")),
        Point(Metric("b", "", "", Kind.HISTOGRAM, False), (), histogram),
        Point(Metric("c", "", "", Kind.COUNTER, False), (), 5.0),
        Point(Metric("c_total", "", "", Kind.GAUGE, False), (("k", "v"),), 6.0),
    ]
    client = PushingClient(bytes(16), (("client_id", "c1"),), 1000)
    list(world.telemetry._series.put_in_steps(client, DecodedMetrics((), points, 2), 0))
    lines = expose(world)
    assert [line for line in lines if line.startswith("odradek_")] == [
        "odradek_client_metrics_instances 0",
        "odradek_client_metrics_series 7",
        "odradek_client_metrics_pushes_total 0",
        "odradek_client_metrics_invalid_pushes_total 0",
        "odradek_client_metrics_throttled_requests_total 0",
        "odradek_client_metrics_unknown_subscriptions_total 0",
        "odradek_client_metrics_dropped_points_total 2",
    ]
    assert lines[lines.index("# HELP kafka_client_metric_b ") :] == [
        "# HELP kafka_client_metric_b ",
        "# TYPE kafka_client_metric_b histogram",
        'kafka_client_metric_b_bucket{client_id="c1",le="0.5"} 1.0',
        'kafka_client_metric_b_bucket{client_id="c1",le="+Inf"} 3.0',
        'kafka_client_metric_b_sum{client_id="c1"} 1.5',
        'kafka_client_metric_b_count{client_id="c1"} 3.0',
        "# HELP kafka_client_metric_c_total ",
        "# TYPE kafka_client_metric_c_total untyped",
        'kafka_client_metric_c_total{client_id="c1"} 5.0',
        'kafka_client_metric_c_total{client_id="c1",k="v"} 6.0',
        r"# HELP org_apache_kafka_a Two\nlines \\.",
        "# TYPE org_apache_kafka_a gauge",
        r'org_apache_kafka_a{client_id="c1",t="x\"y\n"} nan',
    ]


def test_without_clients_there_are_no_metrics():
    assert list(collect_clients(None)) == []
