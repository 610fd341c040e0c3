import threading
from urllib.request import urlopen

import pytest

from odradek.spark_it.execution import reporter as reporter_module
from odradek.spark_it.execution.batch import BatchFunction, BatchOutcome, BatchWriter, StoppedError
from odradek.spark_it.execution.metrics import MetricsServer
from odradek.spark_it.execution.reporter import Reporter
from odradek.spark_it.interfaces.sink import SinkError
from odradek.spark_it.state.progress import read_progress, write_progress
from spark_it.tests.unit.support import CONSOLE, SOURCE, UNUSED, pipeline
from spark_it.tests.unit.test_reset import FakeCluster


def writer(text="", stop=None):
    said = []
    one = pipeline(SOURCE + CONSOLE + f"[errors]\nretry.delay.max.ms = 2\n{text}")
    return BatchWriter(UNUSED, None, one.errors, 1, said.append, stop or threading.Event()), said


def failing(times, error):
    left = iter([error] * times)

    def do():
        for one in left:
            raise one
        return "done"

    return do


def test_retriable_errors_are_retried():
    one, said = writer()
    assert one.retry_until_done(failing(3, SinkError("down", is_retriable=True))) == "done"
    assert said == ["down; retrying in 0.002 s"] * 3


def test_permanent_errors_are_not_retried():
    one, said = writer()
    with pytest.raises(SinkError, match="no table"):
        one.retry_until_done(failing(1, SinkError("no table")))
    with pytest.raises(ZeroDivisionError):
        one.retry_until_done(lambda: 1 / 0)
    assert said == []


def test_retries_end_at_the_timeout():
    one, _ = writer("retry.timeout = 0\n")
    with pytest.raises(SinkError, match="down"):
        one.retry_until_done(failing(1, SinkError("down", is_retriable=True)))


def test_retries_end_when_the_pipeline_is_to_stop():
    stop = threading.Event()
    one, _ = writer(stop=stop)
    stop.set()
    with pytest.raises(StoppedError):
        one.retry_until_done(failing(1, SinkError("down", is_retriable=True)))


def test_no_batch_begins_when_the_pipeline_is_to_stop():
    stop = threading.Event()
    done = []

    def write(frame, batch_id):
        done.append(batch_id)
        return BatchOutcome(batch_id, 1, 0)

    guarded = BatchFunction(write, stop)
    guarded(UNUSED, 0)
    stop.set()
    guarded.wait_until_idle()
    with pytest.raises(RuntimeError):
        guarded(UNUSED, 1)
    assert done == [0] and isinstance(guarded.failure, StoppedError)
    assert guarded.take_outcome(0).written == 1 and guarded.take_outcome(0) is None and guarded.take_outcome(1) is None


def event(batch, end, latest, *, did=True, rows=10):
    source = {"endOffset": {"orders": {"0": end}}, "latestOffset": {"orders": {"0": latest}}}
    duration = {"triggerExecution": 500} | ({"addBatch": 400} if did else {})
    return {"batchId": batch, "numInputRows": rows, "durationMs": duration, "sources": [source]}


def reported(tmp_path, group, *events, outcomes):
    one = pipeline(SOURCE + '[expect.orders]\nx = { sql = "1 > 0" }\n' + CONSOLE, folder=tmp_path)
    said = []
    guarded = BatchFunction(lambda frame, batch_id: outcomes[batch_id], threading.Event())
    for batch in outcomes:
        guarded(UNUSED, batch)
    with Reporter(one, group, said.append, is_stateful=False) as reporter:
        reporter.process_events(events, guarded)
        reporter.process_events(events, guarded)
    return said, read_progress(one.state_folder)


def test_messages_about_batches(tmp_path):
    group = FakeCluster()
    outcomes = {
        4: BatchOutcome(4, written=7, dead_lettered=1, read=10, broken={("orders", "x"): 3}),
        5: BatchOutcome(5, written=10, dead_lettered=0),
    }
    events = [event(4, 10, 30), event(5, 20, 30), event(6, 20, 30, did=False)]
    said, progress = reported(tmp_path, group, *events, outcomes=outcomes)
    assert said == [
        "batch 4: 10 read, 7 written, 1 dead letters, 2 dropped in 0.5 s, lag 20",
        "  3 rows of orders violate expectation x",
        "batch 5: 10 read, 10 written in 0.5 s, lag 10",
    ]
    assert group.offsets == {("orders", 0): 20}
    assert (progress.batch, progress.read, progress.written) == (5, 20, 17)
    assert (progress.dead_lettered, progress.dropped) == (1, 2)
    assert progress.rows_per_second == 20.0


def test_a_problem_of_another_thread_is_stored(tmp_path, monkeypatch):
    """Batches are written on a thread of Spark, while the main thread stores the progress."""
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    has_begun, may_go_on = threading.Event(), threading.Event()
    at_once = []

    def slow(state_folder, progress):
        at_once.append(threading.current_thread())
        if threading.current_thread() is not threading.main_thread():
            has_begun.set()
            assert may_go_on.wait(30)
        write_progress(state_folder, progress)
        at_once.remove(threading.current_thread())
        assert not at_once

    guarded = BatchFunction(lambda frame, batch_id: BatchOutcome(0, 10, 0), threading.Event())
    guarded(UNUSED, 0)
    with Reporter(one, None, lambda _: None, is_stateful=False) as reporter:
        monkeypatch.setattr(reporter_module, "write_progress", slow)
        other = threading.Thread(target=reporter.report_problem, args=("down",))
        other.start()
        assert has_begun.wait(30)
        threading.Timer(0.2, may_go_on.set).start()
        reporter.process_events([event(0, 10, 10)], guarded)
        other.join(30)
    progress = read_progress(one.state_folder)
    assert (progress.batch, progress.written, progress.last_error) == (0, 10, "down")


def test_an_error_that_ends_a_run_is_stored(tmp_path):
    one = pipeline(SOURCE + CONSOLE, folder=tmp_path)
    said = []
    with pytest.raises(SinkError), Reporter(one, None, said.append, is_stateful=False):
        raise SinkError("no table")
    assert read_progress(one.state_folder).last_error == "no table" and said == []


def test_a_port_in_use(tmp_path):
    with MetricsServer("other", 0) as other:
        one = pipeline(f"metrics.port = {other.port}\n{SOURCE}{CONSOLE}", folder=tmp_path)
        with pytest.raises(OSError, match="in use") as error, Reporter(one, None, print, is_stateful=False):
            pass
    assert error.value.filename == f"metrics.host 127.0.0.1, metrics.port {other.port}"


def test_the_lag_stays_on_the_page_after_a_problem(tmp_path):
    one = pipeline(f"metrics.port = 0\n{SOURCE}{CONSOLE}", folder=tmp_path)
    guarded = BatchFunction(lambda frame, batch_id: BatchOutcome(0, 10, 0), threading.Event())
    guarded(UNUSED, 0)
    with Reporter(one, None, lambda _: None, is_stateful=False) as reporter:
        reporter.process_events([event(0, 10, 30)], guarded)
        reporter.report_problem("down")
        page = urlopen(f"http://localhost:{reporter._metrics.port}/metrics", timeout=60).read().decode()
    assert 'records_lag{connector="orders",topic="orders",partition="0"} 20' in page


def test_a_group_that_cannot_be_committed_does_not_stop_the_run(tmp_path):
    group = FakeCluster()
    group.fails = True
    said, progress = reported(tmp_path, group, event(0, 10, 10), outcomes={0: BatchOutcome(0, 10, 0)})
    assert said[0] == "down" and progress.last_error == "down" and progress.batch == 0
