"""The latest values of clients: limits, expiry, and the lines for /metrics."""

from odradek.server.telemetry import series as series_module
from odradek.server.telemetry.otlp import (
    DecodedMetrics,
    HistogramValue,
    Kind,
    Metric,
    Point,
    PointValue,
    SummaryValue,
)
from odradek.server.telemetry.series import INFO_NAME, ClientSeries, PushingClient

EXPIRY_MS = 1000


def client(number: int = 1) -> PushingClient:
    return PushingClient(bytes([number]) * 16, (("client_id", f"c{number}"),), EXPIRY_MS)


def point(
    name: str, value: PointValue, kind: Kind = Kind.GAUGE, *, is_delta: bool = False, text: str = "", **labels: str
) -> Point:
    metric = Metric(f"org.apache.kafka.{name}", text, "", kind, is_delta)
    return Point(metric, tuple(labels.items()), value)


def put(
    series: ClientSeries,
    *points: Point,
    of: int = 1,
    now_ms: int = 0,
    resource: dict[str, str] | None = None,
    skipped: int = 0,
) -> None:
    pushed = DecodedMetrics(tuple((resource or {}).items()), list(points), skipped)
    list(series.put_in_steps(client(of), pushed, now_ms))


def lines(series: ClientSeries) -> list[str]:
    found = []
    for family in series.collect():
        for suffix, labels, value in family.samples:
            text = ",".join(f"{name}={of_label}" for name, of_label in labels)
            name = family.name.removeprefix("org_apache_kafka_")
            found.append(f"{family.kind} {name}{suffix}{{{text}}} {value:g}")
    return [line for line in found if INFO_NAME not in line]


def test_the_last_value_counts():
    series = ClientSeries(100)
    put(series, point("g", 1.0, topic="t"), point("g", 2.0, topic="u"), point("c", 5.0, Kind.COUNTER))
    put(series, point("g", 3.0, topic="t"), of=2)
    put(series, point("g", 4.0, topic="t"))
    assert lines(series) == [
        "counter c_total{client_id=c1} 5",
        "gauge g{client_id=c1,topic=t} 4",
        "gauge g{client_id=c1,topic=u} 2",
        "gauge g{client_id=c2,topic=t} 3",
    ]
    assert series.count == 4


def test_differences_are_added():
    series = ClientSeries(100)
    buckets = HistogramValue(3, 1.5, (0.5,), (1, 2))
    for _ in range(3):
        put(series, point("c", 2.0, Kind.COUNTER, is_delta=True), point("h", buckets, Kind.HISTOGRAM, is_delta=True))
    assert lines(series) == [
        "counter c_total{client_id=c1} 6",
        "histogram h_bucket{client_id=c1,le=0.5} 3",
        "histogram h_bucket{client_id=c1,le=+Inf} 9",
        "histogram h_sum{client_id=c1} 4.5",
        "histogram h_count{client_id=c1} 9",
    ]
    put(series, point("h", HistogramValue(1, 1.0, (7.0,), (1, 0)), Kind.HISTOGRAM, is_delta=True))
    assert "histogram h_bucket{client_id=c1,le=7.0} 1" in lines(series)


def test_summaries():
    series = ClientSeries(100)
    put(series, point("s", SummaryValue(4, 8.0, ((0.5, 3.0), (0.99, 9.0))), Kind.SUMMARY))
    assert lines(series) == [
        "summary s{client_id=c1,quantile=0.5} 3",
        "summary s{client_id=c1,quantile=0.99} 9",
        "summary s_sum{client_id=c1} 8",
        "summary s_count{client_id=c1} 4",
    ]
    assert series.count == 4


def test_attributes_of_the_resource_are_in_the_family_of_clients():
    series = ClientSeries(100)
    put(series, point("g", 1.0), resource={"group_id": "g1"})
    put(series, point("g", 1.0), of=2)
    info = next(series.collect())
    assert (info.name, info.kind) == (INFO_NAME, "gauge")
    assert [sample.labels for sample in info.samples] == [
        (("client_id", "c1"), ("group_id", "g1")), (("client_id", "c2"),),
    ]  # fmt: skip


def test_the_first_description_is_the_help():
    series = ClientSeries(100)
    put(series, point("g", 1.0))
    put(series, point("g", 1.0, text="first"), of=2)
    put(series, point("g", 1.0, text="second"), of=3)
    assert [family.help for family in series.collect()][1:] == ["first"]


def test_a_counter_and_a_gauge_of_one_name_are_of_unknown_kind_and_a_histogram_is_dropped():
    series = ClientSeries(100)
    put(series, point("g_total", 1.0))
    put(series, point("g", 2.0, Kind.COUNTER), of=2)
    put(series, point("g_total", HistogramValue(1, 1.0, (), ()), Kind.HISTOGRAM), of=3)
    assert lines(series) == ["unknown g_total{client_id=c1} 1", "unknown g_total{client_id=c2} 2"]
    assert series.dropped == 1


def test_the_number_of_series_is_limited_in_total(monkeypatch):
    series = ClientSeries(5)
    put(series, *(point("g", float(n), n=str(n)) for n in range(4)))
    put(series, point("h", HistogramValue(1, 1.0, (1.0,), (1, 0)), Kind.HISTOGRAM), point("g", 7.0), of=2)
    assert (series.count, series.dropped) == (5, 1)
    assert "gauge g{client_id=c2} 7" in lines(series)
    put(series, *(point("g", 9.0, n=str(n)) for n in range(4)))
    assert (series.count, series.dropped) == (5, 1)


def test_the_number_of_series_of_a_client_is_limited(monkeypatch):
    monkeypatch.setattr(series_module, "MAX_SERIES_PER_INSTANCE", 3)
    series = ClientSeries(100)
    put(series, *(point(f"g{n}", 1.0) for n in range(5)))
    put(series, point("g", 1.0), of=2)
    assert (series.count, series.dropped) == (4, 2)


def test_a_client_without_series_is_not_kept():
    series = ClientSeries(0)
    put(series, point("g", 1.0), skipped=3)
    assert (series.dropped, list(series.collect())) == (4, [])
    assert not series._instances


def test_series_that_are_not_pushed_again_expire():
    series = ClientSeries(100)
    put(series, point("a", 1.0), point("b", 1.0, t="1"), point("b", 1.0, t="2"))
    put(series, point("b", 2.0, t="1"), now_ms=EXPIRY_MS)
    assert series.count == 3
    put(series, point("b", 2.0, t="1"), now_ms=EXPIRY_MS + 1)
    assert lines(series) == ["gauge b{client_id=c1,t=1} 2"]
    assert series.count == 1


def test_clients_that_push_no_more_expire():
    series = ClientSeries(100)
    put(series, point("a", 1.0), point("b", 1.0))
    put(series, point("a", 1.0), of=2, now_ms=500)
    list(series.remove_idle_in_steps(EXPIRY_MS - 1))
    assert series.count == 3
    list(series.remove_idle_in_steps(EXPIRY_MS))
    assert lines(series) == ["gauge a{client_id=c2} 1"]
    series.expire_at(client(2).instance_id, EXPIRY_MS + 1)
    list(series.remove_idle_in_steps(EXPIRY_MS + 1))
    assert (series.count, list(series.collect())) == (0, [])
    assert not series._families and not series._instances


def test_a_scrape_in_slices_survives_changes():
    series = ClientSeries(100)
    for number in range(1, 4):
        put(series, point("a", 1.0), point("b", 1.0), of=number)
    seen = []
    for family in series.collect():
        for sample in family.samples:
            seen.append(sample.labels)
            list(series.remove_idle_in_steps(EXPIRY_MS))
            put(series, point("c", 1.0), of=9, now_ms=EXPIRY_MS)
    assert len(seen) >= 3
    assert lines(series) == ["gauge c{client_id=c9} 1"]


def test_a_push_that_ends_early_leaves_no_client_without_series():
    series = ClientSeries(0)
    pushed = DecodedMetrics((), [point(f"g{n}", 1.0) for n in range(200)], 0)
    steps = series.put_in_steps(client(), pushed, 0)
    next(steps)
    steps.close()
    assert not series._instances
