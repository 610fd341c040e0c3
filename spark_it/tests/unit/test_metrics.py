import socket
import urllib.error
import urllib.request

import pytest

from odradek.spark_it.execution.metrics import CONTENT_TYPE, MetricsServer, make_page
from odradek.spark_it.state.lag import PartitionLag
from odradek.spark_it.state.progress import Progress

PROGRESS = Progress(
    batch=7, at_ms=1_000, read=100, written=90, dead_lettered=8, dropped=2, rows_per_second=12.5,
    last_error="sink is down", last_error_at_ms=900,
)  # fmt: skip


def get(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return answer.read().decode()


def values(page):
    return dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))


def test_the_page_shows_progress_and_lag():
    page = make_page("orders", PROGRESS, [PartitionLag("in", 3, 5, 5, 0, 12)])
    assert page.endswith("\n")
    assert values(page) == {
        'odradek_pipeline_up{connector="orders"}': "1",
        'odradek_pipeline_batch{connector="orders"}': "7",
        'odradek_pipeline_batch_timestamp_ms{connector="orders"}': "1000",
        'kafka_connect_sink_task_sink_record_read_total{connector="orders"}': "100",
        'kafka_connect_sink_task_sink_record_send_total{connector="orders"}': "90",
        'kafka_connect_sink_task_sink_record_read_rate{connector="orders"}': "12.5",
        'kafka_connect_task_error_deadletterqueue_produce_requests{connector="orders"}': "8",
        'kafka_connect_task_error_total_records_skipped{connector="orders"}': "2",
        'kafka_connect_task_error_last_error_timestamp{connector="orders"}': "900",
        'kafka_consumer_fetch_manager_records_lag{connector="orders",topic="in",partition="3"}': "7",
    }
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) == 10


def test_the_page_omits_what_is_unknown():
    page = make_page("orders", Progress(batch=0, at_ms=1))
    assert "last_error" not in page and "lag" not in page


def test_the_page_is_served_updated_and_closed():
    with MetricsServer("orders", 0) as metrics:
        assert values(get(metrics.port)) == {'odradek_pipeline_up{connector="orders"}': "1"}
        metrics.update(PROGRESS)
        assert get(metrics.port, "/metrics?x=1") == get(metrics.port, "/") == make_page("orders", PROGRESS)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(metrics.port, "/else")
        port = metrics.port
    with socket.socket() as free:
        free.settimeout(5)
        assert free.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_in_use():
    with MetricsServer("one", 0) as first, pytest.raises(OSError, match="in use"):
        MetricsServer("two", first.port)


@pytest.mark.parametrize(("host", "is_reached"), [(None, False), ("0.0.0.0", True)])
def test_the_page_is_served_to_this_machine_alone_by_default(host, is_reached):
    """127.0.0.2 stands for another address of the machine."""
    with MetricsServer("orders", 0, *([host] if host else [])) as metrics, socket.socket() as client:
        assert (client.connect_ex(("127.0.0.2", metrics.port)) == 0) is is_reached
