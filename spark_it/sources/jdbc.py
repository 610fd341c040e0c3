"""The database source: rows of a table in the order of an increasing column, each with its values at the first read.

Spark cannot stream from a database, and a second query for the same range may return other rows, because some commit
late and some change. So a thread of the driver polls the table and writes new rows to files in the pipeline's state
(`Spool`), which Spark streams. A batch is one file, and a repeated batch has the same rows.

A poller belongs to one run of the query and ends with it. The poller of the next run claims the spool.
"""

import logging
import shutil
import threading
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from odradek.spark_it.definition.source_keys import JdbcSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.sources.jdbc_poll import PolledTable
from odradek.spark_it.sources.jdbc_spool import Spool, SpoolFencedError
from odradek.spark_it.spark.columns import make_decoded_rows
from odradek.spark_it.spark.events import Event, read_newest_event
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock

MAX_POLLS_AHEAD = 4
"""Maximum number of polls in the spool that the query has not read."""
RETAINED_POLLS = 100
"""Number of processed polls that are retained: the number of batches whose offsets Spark retains."""
_LONGEST_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.2
_JOIN_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


def make(name: str, source: JdbcSource, pipeline: Pipeline) -> "JdbcStream":
    return JdbcStream(name, source, pipeline)


class JdbcStream(Stream):
    """A `Stream` of a table. With trigger available-now it reads all existing rows before the query starts."""

    def __init__(self, name: str, source: JdbcSource, pipeline: Pipeline) -> None:
        self._name = name
        self._source = source
        self._pipeline = pipeline
        self._table: PolledTable | None = None
        self._spool: Spool | None = None
        self._poller: _Poller | None = None

    def schema(self, spark: SparkSession) -> StructType:
        return self._get_table(spark).schema

    def _get_table(self, spark: SparkSession) -> PolledTable:
        if self._table is None:
            self._table = PolledTable(self._name, self._source, spark)
        return self._table

    def read_stream(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        table = self._get_table(spark)
        self.close()
        self._spool = self._claim_spool()
        warning = table.describe_skipped_rows()
        if warning is not None:
            _log.warning("%s", warning)
        if self._pipeline.settings.trigger_ms is None:
            try:
                while table.poll_into(self._spool):
                    pass
            except SpoolFencedError as error:
                raise SourceError(f"source {self._name}: {error}") from None
        # Each poll is one file, and each file one batch, in the order of modification times.
        return spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(self._spool.address)

    def start_background_work(self, query: StreamingQuery) -> None:
        """Start polling for a run of the query."""
        trigger_ms = self._pipeline.settings.trigger_ms
        if trigger_ms is None:
            return
        assert self._table is not None and self._spool is not None
        pause_s = min(max(trigger_ms / 2000, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        self._poller = _Poller(self._name, self._table, self._spool, query, pause_s)
        self._poller.start()

    def _claim_spool(self) -> Spool:
        """Claim the spool of the checkpoint's generation, and clear it if the checkpoint has no batch. The claim fences
        the poller of an earlier run."""
        state = self._pipeline.state_folder
        lock = read_lock(state)
        generation = 0 if lock is None else lock.generation
        folder = state / "source" / self._name
        for path in folder.glob("[0-9]*"):
            if path.name != str(generation):
                shutil.rmtree(path, ignore_errors=True)
        spool = Spool(folder / str(generation))
        spool.claim()
        existing = None if lock is None else checkpoint.read(get_checkpoint_folder(state, lock))
        if existing is None or existing.planned is None:
            spool.clear()
        return spool

    def decode(self, raw: DataFrame) -> DataFrame:
        return make_decoded_rows(raw)

    def close(self) -> None:
        """Stop polling. A poll that is still running is fenced when the spool is claimed again."""
        if self._poller is not None:
            self._poller.end()
            self._poller = None


class _Poller(threading.Thread):
    """Thread that polls during one run of the query, at most MAX_POLLS_AHEAD polls ahead of it."""

    def __init__(self, name: str, table: PolledTable, spool: Spool, query: StreamingQuery, pause_s: float) -> None:
        super().__init__(name=f"poll {name}", daemon=True)
        self._table = table
        self._spool = spool
        # A restart creates another query object, with the same name and id.
        self._query = query
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._processed = spool.find_last_number()

    def end(self) -> None:
        self._ended.set()
        self.join(_JOIN_TIMEOUT_S)

    def run(self) -> None:
        reported = ""
        while not self._ended.is_set():
            try:
                if not self._query.isActive:
                    return
                self._drop_processed(read_newest_event(self._query))
                if self._spool.find_last_number() - self._processed < MAX_POLLS_AHEAD and self._table.poll_into(
                    self._spool
                ):
                    reported = ""
                    continue
            except SpoolFencedError:
                return
            except Exception as error:
                if self._ended.is_set():
                    return
                # For example, the database is unavailable. The query waits for rows.
                if str(error) != reported:
                    reported = str(error)
                    _log.warning(
                        "%s; retrying",
                        reported if isinstance(error, SourceError) else f"{self.name} fails: {reported}",
                        exc_info=not isinstance(error, SourceError),
                    )
            self._ended.wait(self._pause_s)

    def _drop_processed(self, event: Event | None) -> None:
        """Update the query's position from its event, and delete the polls that it will not read again."""
        for source in event["sources"] if event is not None else ():
            if source["description"] == f"FileStreamSource[{self._spool.address}]" and source["endOffset"]:
                # The offset of Spark's file source is its batch number; each batch is one file.
                processed = source["endOffset"]["logOffset"]
                self._processed = max(self._processed, processed)
                # Not `_processed`: it starts with the last poll of an earlier run, which may not be processed yet.
                self._spool.drop_before(processed - RETAINED_POLLS)
