"""Rows of a database table by its column that only grows, exactly as they were when they were read first.

Spark cannot stream from a database, and to ask it a second time for the rows of a range may give others: some commit
late, some change. So a thread of the driver polls it and puts what is new into files of the pipeline's state
(`JdbcSpool`), which Spark streams: a batch is one of them, and a batch that is repeated has the same rows.
"""

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from odradek.spark_it import checkpoint
from odradek.spark_it.checkpoint import TopicPartition
from odradek.spark_it.events import Event, newest
from odradek.spark_it.lock import checkpoint_folder, read_lock
from odradek.spark_it.source_settings import JdbcSource
from odradek.spark_it.sources import SourceError, decoded_rows
from odradek.spark_it.sources.jdbc_poll import Poll
from odradek.spark_it.sources.jdbc_spool import Spool
from odradek.spark_it.spec import Pipeline

AHEAD = 4
"""Polls that are put by while the query is still at an earlier one."""
KEPT = 100
"""Polls that are kept after the query is done with them: as many batches as Spark keeps the offsets of."""
_LONGEST_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.2
_STARTS_WITHIN_S = 300.0

_log = logging.getLogger(__name__)


def make(name: str, source: JdbcSource, pipeline: Pipeline) -> "JdbcStream":
    return JdbcStream(name, source, pipeline)


class JdbcStream:
    """A `Stream`. With the trigger available-now it has all rows there are before the query starts."""

    def __init__(self, name: str, source: JdbcSource, pipeline: Pipeline) -> None:
        self._name = name
        self._source = source
        self._pipeline = pipeline
        self._poll: Poll | None = None
        self._poller: _Poller | None = None

    def schema(self, spark: SparkSession) -> StructType:
        return self._prepared(spark).schema

    def _prepared(self, spark: SparkSession) -> Poll:
        if self._poll is None:
            self._poll = Poll(self._name, self._source, spark)
        return self._poll

    def raw(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        poll = self._prepared(spark)
        spool = self._spool()
        if self._pipeline.settings.trigger_ms is None:
            while poll.into(spool):
                pass
        else:
            pause_s = min(max(self._pipeline.settings.trigger_ms / 2000, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            self.close()
            self._poller = _Poller(poll, spool, spark, self._pipeline.name, pause_s)
            self._poller.start()
        # One file is one poll is one batch, in the order of their times.
        return spark.readStream.schema(poll.schema).option("maxFilesPerTrigger", 1).parquet(str(spool.rows))

    def _spool(self) -> Spool:
        """Where the polls of the checkpoint are, which begin anew with it."""
        state = self._pipeline.state_folder
        lock = read_lock(state)
        generation = 0 if lock is None else lock.generation
        folder = state / "source" / self._name
        for path in folder.glob("[0-9]*"):
            if path.name != str(generation):
                shutil.rmtree(path, ignore_errors=True)
        spool = Spool(folder / str(generation))
        found = None if lock is None else checkpoint.read(checkpoint_folder(state, lock))
        if found is None or found.planned is None:
            spool.clear()
        return spool

    def decoded(self, raw: DataFrame) -> DataFrame:
        return decoded_rows(raw)

    def close(self) -> None:
        """Ends the polling, which ends by itself when the query does."""
        if self._poller is not None:
            self._poller.end()
            self._poller = None


class _Poller(threading.Thread):
    """Polls as long as the query runs, and not much faster than it takes what there is."""

    def __init__(self, poll: Poll, spool: Spool, spark: SparkSession, query_name: str, pause_s: float) -> None:
        super().__init__(name=f"poll {query_name}", daemon=True)
        self._poll = poll
        self._spool = spool
        self._spark = spark
        self._query_name = query_name
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._taken = spool.last_number()

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=60)

    def run(self) -> None:
        starts_until = time.monotonic() + _STARTS_WITHIN_S
        has_started, said = False, ""
        while not self._ended.is_set():
            try:
                query = self._query()
                has_started = has_started or query is not None
                if query is None and (has_started or time.monotonic() > starts_until):
                    return
                if query is not None:
                    self._tidy(newest(query))
                if self._spool.last_number() - self._taken < AHEAD and self._poll.into(self._spool):
                    said = ""
                    continue
            except SourceError as error:
                # A database that is down: the query waits for rows meanwhile.
                if str(error) != said:
                    said = str(error)
                    _log.warning("%s; it is tried again", said)
            except Exception:
                if self._spark.sparkContext._jsc is None or self._ended.is_set():
                    return
                _log.exception("source %s cannot be polled", self._query_name)
            self._ended.wait(self._pause_s)

    def _query(self) -> Any:
        return next((query for query in self._spark.streams.active if query.name == self._query_name), None)

    def _tidy(self, event: Event | None) -> None:
        """Reads how far the query has come, and deletes what it will not ask for again."""
        for source in event["sources"] if event is not None else ():
            if str(self._spool.rows) in source["description"] and source["endOffset"]:
                # The source counts its batches, each of which is a file.
                taken = source["endOffset"]["logOffset"]
                self._taken = max(self._taken, taken)
                # What an earlier run has put by may not be taken yet, whatever `_taken` began with.
                self._spool.drop_before(taken - KEPT)
