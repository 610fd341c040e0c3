"""Messages and stored progress after a batch, from the events of Spark."""

import threading

import pytest

from odradek.spark_it.execution.batch import BatchFunction, BatchOutcome
from odradek.spark_it.execution.reporter import Reporter
from odradek.spark_it.state.progress import read_progress
from spark_it.tests.unit.support import CONSOLE, SOURCE, UNUSED, StubCluster, pipeline


class FakeCluster(StubCluster):
    def __init__(self):
        self.commits = {}

    def commit(self, group, offsets, metadata=""):
        self.commits[group] = dict(offsets)


def written(outcome):
    """The function of a query that has written one batch."""
    function = BatchFunction(lambda frame, batch_id: outcome, threading.Event())
    function(UNUSED, outcome.id)
    return function


class Reports:
    """Batches of one run, given to a reporter."""

    def __init__(self, folder):
        self.pipeline = pipeline(SOURCE + CONSOLE, folder=folder)
        self.pipeline.state_folder.mkdir(parents=True)
        self.group = FakeCluster()
        self.said = []
        self._reporter = Reporter(self.pipeline, self.group, self.said.append, is_stateful=False)

    def take(self, end, latest, outcome):
        source = {"endOffset": {"orders": end}, "latestOffset": latest and {"orders": latest}}
        event = {
            "batchId": outcome.id,
            "numInputRows": 5,
            "durationMs": {"addBatch": 1, "triggerExecution": 2000},
            "sources": [source],
        }
        with self._reporter as reporter:
            reporter.process_events([event], written(outcome))
        return self.said[-1]


@pytest.fixture
def reports(tmp_path):
    return Reports(tmp_path)


def test_a_batch_and_its_lag(reports):
    line = reports.take({"0": 5, "1": 2}, {"0": 9, "1": 1002}, BatchOutcome(0, 3, 1, read=5))
    assert line == "batch 0: 5 read, 3 written, 1 dead letters, 1 dropped in 2.0 s, lag 1,004"
    assert reports.group.commits == {"orders": {("orders", 0): 5, ("orders", 1): 2}}
    progress = read_progress(reports.pipeline.state_folder)
    assert (progress.batch, progress.read, progress.written, progress.rows_per_second) == (0, 5, 3, 2.5)


def test_an_unknown_lag_is_not_reported(reports):
    """Spark does not look up the latest offsets before it repeats a batch after a crash."""
    line = reports.take({"0": 5}, None, BatchOutcome(7, 5, 0, read=5))
    assert line == "batch 7: 5 read, 5 written in 2.0 s"
    assert reports.group.commits == {"orders": {("orders", 0): 5}}


def test_a_partition_that_two_sources_read(reports):
    """The group's offset does not skip what the slower source has yet to read, and the lag is counted once."""
    fast, slow = ({"endOffset": {"orders": {"0": end}}, "latestOffset": {"orders": {"0": 60}}} for end in (50, 10))
    for batch, sources in enumerate([[fast, slow], [slow, fast]]):
        event = {"batchId": batch, "numInputRows": 5, "durationMs": {"addBatch": 1}, "sources": sources}
        with reports._reporter as reporter:
            reporter.process_events([event], written(BatchOutcome(batch, 5, 0, read=5)))
        assert reports.group.commits == {"orders": {("orders", 0): 10}}
        assert reports.said[-1].endswith("lag 50")
