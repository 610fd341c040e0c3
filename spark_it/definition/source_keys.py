"""Keys of each kind of source, declared once as in `settings`."""

import re
from typing import ClassVar

from odradek.properties import boolean, integer, long, password, string, string_list
from odradek.spark_it.definition.durations import is_instant, is_interval, parse_instant_ms, parse_interval_ms
from odradek.spark_it.definition.settings import NAME, PYTHON, Prefix, RecordFormat, Required, Settings

_OFFSET = re.compile(r"[A-Za-z0-9._-]{1,249}:\d+:\d+")


class Source(Settings):
    """Keys of every source."""

    connector = string("connector", "", doc="Kind of source; python:module.Class for a Python DataSource.")
    watermark = string(
        "watermark",
        None,
        check=lambda text: _parse_watermark(text) is not None,
        note="a column and a duration, such as placed 10 minutes",
        doc="Column with the event time, and the maximum delay of a row, as in Spark's withWatermark.",
    )
    required: ClassVar[Required] = (connector,)
    identity_keys: ClassVar[Required] = (connector,)
    column_keys: ClassVar[Required] = (watermark,)

    watermark_column: str | None
    watermark_ms: int | None

    def derive(self) -> None:
        super().derive()
        self.watermark_column, self.watermark_ms = (self.watermark and _parse_watermark(self.watermark)) or (
            None,
            None,
        )


def _parse_watermark(text: str) -> tuple[str, int] | None:
    column, _, delay = text.partition(" ")
    return (column, parse_interval_ms(delay)) if NAME.fullmatch(column) and is_interval(delay) else None


class TopicSource(Source, RecordFormat):
    """Records of Kafka topics. Besides the columns of the value there are columns `_key`, `_topic`, `_partition`,
    `_offset`, `_timestamp` and, with `include.headers`, `_headers`."""

    title = "Source: topic"

    topics = string_list("topics", (), unique=True, doc="Topics to read. Either this or topics.regex.")
    topics_regex = string(
        "topics.regex",
        None,
        check=lambda text: _is_pattern(text),
        note="a regular expression",
        doc="Regular expression that matches the full names of the topics to read.",
    )
    auto_offset_reset = string(
        "auto.offset.reset",
        "earliest",
        choices=("earliest", "latest"),
        doc="Start of a pipeline without checkpoint.",
    )
    start_timestamp = string(
        "start.timestamp",
        None,
        check=is_instant,
        note="an instant such as 2026-01-01T00:00:00Z",
        doc="Start at the first record with this timestamp or a later one instead.",
    )
    start_offsets = string_list(
        "start.offsets",
        (),
        unique=True,
        check=lambda all_: all(_OFFSET.fullmatch(one) for one in all_),
        note="topic:partition:offset, without duplicates",
        doc="Start at these offsets instead; auto.offset.reset applies to other partitions.",
    )
    max_offsets_per_trigger = long(
        "max.offsets.per.trigger", None, minimum=1, doc="Maximum number of records per batch."
    )
    isolation_level = string(
        "isolation.level",
        "read_committed",
        choices=("read_committed", "read_uncommitted"),
        doc="read_committed: records of open and aborted transactions are not read.",
    )
    fail_on_data_loss = boolean(
        "fail.on.data.loss", True, doc="Whether the pipeline stops when records were deleted before it read them."
    )
    include_headers = boolean("include.headers", False, doc="Whether there is a column `_headers`.")
    keep_unknown_fields = boolean(
        "keep.unknown.fields",
        False,
        doc="Whether fields of a JSON value that are not in the schema are kept in column `_rescued`.",
    )

    identity_keys: ClassVar[Required] = (topics, topics_regex)

    start_timestamp_ms: int | None
    start_offsets_by_partition: dict[tuple[str, int], int]

    def derive(self) -> None:
        super().derive()
        self.start_timestamp_ms = None if self.start_timestamp is None else parse_instant_ms(self.start_timestamp)
        split = (entry.split(":") for entry in self.start_offsets)
        self.start_offsets_by_partition = {(topic, int(partition)): int(offset) for topic, partition, offset in split}


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


class FilesSource(Source):
    """New files in a folder. Each file is read once and must not change afterwards. Of its subfolders only partition
    folders `column=value` are read, for a column of the schema. A row of json, csv and text is one line; a quoted field
    must not span lines. A file name must not contain any of {}[]*? or a backslash, because Spark would then read other
    files twice; the pipeline stops at such a file, unless it is empty."""

    title = "Source: files"

    path = string("path", "", doc="Folder to watch, on any file system that Spark supports.")
    format = string("format", "", choices=("json", "csv", "parquet", "text"), doc="File format.")
    schema = string("schema", None, doc="Columns as Spark DDL; format text has only column `value`.")
    file_pattern = string("file.pattern", None, doc="Read only files whose name matches this pattern with * and ?.")
    max_files_per_trigger = integer("max.files.per.trigger", None, minimum=1, doc="Maximum number of files per batch.")
    csv_header = boolean(
        "csv.header",
        True,
        doc="Whether the first line of a CSV file is skipped; columns are assigned by position, not by header name.",
    )
    csv_delimiter = string(
        "csv.delimiter", ",", may_be_empty=False, doc="Field delimiter of a CSV file; `'\\t'` for a tab."
    )
    required: ClassVar[Required] = (path, format)
    identity_keys: ClassVar[Required] = (path,)
    column_keys: ClassVar[Required] = (format, schema)


def is_overlap(text: str) -> bool:
    """Return whether the text is a number or a duration."""
    return (text.isascii() and text.isdigit()) or is_interval(text)


class JdbcSource(Source):
    """Rows of a database table with a column of increasing values. A row that commits after a row with the same or a
    larger value was read is missed, unless it is within the overlap. Updates and deletions are not captured. Rows with
    null in the column are skipped, and in PostgreSQL rows with NaN, infinity, or a time before the year 1 or from
    9999-12-31 on, because no later row could follow them. A warning at the start of a run has their number."""

    title = "Source: jdbc"

    connection_url = string("connection.url", "", doc="JDBC address, such as jdbc:postgresql://host/database.")
    connection_user = string("connection.user", None, doc="Database user.")
    connection_password = password("connection.password", doc="Password of the user.")
    table_whitelist = string("table.whitelist", None, doc="One table to read. Either this or query.")
    query = string("query", None, doc="SELECT statement to read instead of a table.")
    mode = string(
        "mode",
        "incrementing",
        choices=("incrementing", "timestamp"),
        doc="Type of the increasing column: numbers or times.",
    )
    incrementing_column_name = string("incrementing.column.name", None, doc="Column with increasing numbers.")
    timestamp_column_name = string("timestamp.column.name", None, doc="Column with increasing times.")
    overlap = string(
        "overlap",
        None,
        check=is_overlap,
        note="a number (incrementing) or a duration (timestamp)",
        doc="Distance below the last value that each poll reads again, for rows that committed late; needs pk.fields.",
    )
    pk_fields = string_list("pk.fields", (), unique=True, doc="Columns that identify a row.")
    batch_max_rows = integer("batch.max.rows", 100_000, minimum=1, doc="Maximum number of rows per batch.")
    required: ClassVar[Required] = (connection_url,)
    identity_keys: ClassVar[Required] = (
        connection_url,
        table_whitelist,
        query,
        mode,
        incrementing_column_name,
        timestamp_column_name,
    )


class GeneratorSource(Source):
    """Numbered rows `value BIGINT, timestamp TIMESTAMP`, the same in every run, for experiments and tests."""

    title = "Source: generator"

    rows_per_trigger = integer("rows.per.trigger", 1000, minimum=1, doc="Rows per batch.")
    iterations = long("iterations", None, minimum=1, doc="Total number of rows; unlimited by default.")
    start_timestamp = string(
        "start.timestamp",
        "2026-01-01T00:00:00Z",
        check=is_instant,
        note="an instant such as 2026-01-01T00:00:00Z",
        doc="Timestamp of the first row.",
    )
    interval_ms = integer("interval.ms", 1, minimum=0, doc="Milliseconds between the timestamps of two rows.")

    identity_keys: ClassVar[Required] = (start_timestamp, interval_ms)

    start_timestamp_ms: int

    def derive(self) -> None:
        super().derive()
        self.start_timestamp_ms = parse_instant_ms(self.start_timestamp)


class PythonSource(Source):
    """A subclass of `pyspark.sql.datasource.DataSource` with a stream reader: `connector = "python:module.Class"`."""

    title = "Source: python"
    prefixes = (Prefix("options.", "Options of the DataSource."),)
    is_identity_passed = True


SOURCES: dict[str, type[Source]] = {
    "topic": TopicSource,
    "files": FilesSource,
    "jdbc": JdbcSource,
    "generator": GeneratorSource,
    PYTHON: PythonSource,
}
