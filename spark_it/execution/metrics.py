"""Metrics of a running pipeline for Prometheus over HTTP. Where Kafka Connect has the metric (`sink-task-metrics`,
`task-error-metrics`), the name is that of its JMX metric in Prometheus.

Source: Kafka's documentation, "Connect Monitoring"; Prometheus, "Exposition formats", version 0.0.4.
"""

import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Literal, NamedTuple, Self

from odradek.spark_it.state.lag import PartitionLag
from odradek.spark_it.state.progress import Progress

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATHS = ("/", "/metrics")


class _Metric(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    doc: str
    value: float | int | None


def make_page(name: str, progress: Progress | None, lags: Iterable[PartitionLag] = ()) -> str:
    """Return the page of pipeline `name`; without progress it has only `odradek_pipeline_up`."""
    return "".join(f"{line}\n" for line in _make_lines(name, progress, lags))


def _make_lines(name: str, progress: Progress | None, lags: Iterable[PartitionLag]) -> Iterator[str]:
    connector = f'connector="{_escape(name)}"'
    for metric in _make_metrics(progress):
        if metric.value is not None:
            yield f"# HELP {metric.name} {metric.doc}"
            yield f"# TYPE {metric.name} {metric.kind}"
            yield f"{metric.name}{{{connector}}} {metric.value}"
    lag_metric = "kafka_consumer_fetch_manager_records_lag"
    for index, lag in enumerate(lags):
        if not index:
            yield f"# HELP {lag_metric} Records between the group's position and the end."
            yield f"# TYPE {lag_metric} gauge"
        yield f'{lag_metric}{{{connector},topic="{_escape(lag.topic)}",partition="{lag.partition}"}} {lag.lag}'


def _make_metrics(progress: Progress | None) -> Iterator[_Metric]:
    yield _Metric("odradek_pipeline_up", "gauge", "1 while the pipeline runs.", 1)
    if progress is None:
        return
    yield _Metric("odradek_pipeline_batch", "gauge", "Number of the last completed batch.", progress.batch)
    yield _Metric(
        "odradek_pipeline_batch_timestamp_ms",
        "gauge",
        "Time of the last completed batch, ms since 1970.",
        progress.at_ms,
    )
    task, errors = "kafka_connect_sink_task", "kafka_connect_task_error"
    yield _Metric(f"{task}_sink_record_read_total", "counter", "Records read by this run.", progress.read)
    yield _Metric(f"{task}_sink_record_send_total", "counter", "Rows written by this run.", progress.written)
    yield _Metric(
        f"{task}_sink_record_read_rate", "gauge", "Rows per second of the last batch.", progress.rows_per_second
    )
    yield _Metric(
        f"{errors}_deadletterqueue_produce_requests", "counter", "Dead letters of this run.", progress.dead_lettered
    )
    yield _Metric(
        f"{errors}_total_records_skipped", "counter", "Rows that expectations of this run dropped.", progress.dropped
    )
    yield _Metric(
        f"{errors}_last_error_timestamp", "gauge", "Time of the last error, ms since 1970.", progress.last_error_at_ms
    )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without the look-up of the host name in the base class, which can block and is not needed."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


class MetricsServer:
    """An HTTP server for a pipeline's metrics page, until `close` or the end of the `with` block. Port 0 is any free
    port.

    Raises OSError if the port is in use, or `host` is not an address of this machine.
    """

    def __init__(self, name: str, port: int, host: str = "127.0.0.1") -> None:
        self._name = name
        self._page = make_page(name, None).encode()
        self._server = _Server((host, port), self._make_handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the page."""
        return int(self._server.server_address[1])

    def update(self, progress: Progress, lags: Iterable[PartitionLag] = ()) -> None:
        """Replace the page with one for this progress."""
        self._page = make_page(self._name, progress, lags).encode()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            # A client that sends no request must not occupy a thread indefinitely.
            timeout = 10

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in _PATHS
                page = metrics._page if is_known else b"see /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *_: object) -> None:
                """Log nothing: standard error is for failures."""

        return Handler
