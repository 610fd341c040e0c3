"""Keys of each kind of source, declared once as in `settings`."""

import re
from typing import ClassVar

from odradek.properties import boolean, integer, long, password, string, string_list
from odradek.spark_it.definition.durations import instant_ms, interval_ms, is_instant, is_interval
from odradek.spark_it.definition.settings import NAME, PYTHON, Prefix, RecordFormat, Required, Settings

_OFFSET = re.compile(r"[A-Za-z0-9._-]{1,249}:\d+:\d+")


class Source(Settings):
    """Keys of every source."""

    connector = string("connector", "", doc="Kind of source; python:module.Class for a DataSource of one's own.")
    watermark = string(
        "watermark",
        None,
        check=lambda text: _column_and_delay(text) is not None,
        note="a column and a duration, such as placed 10 minutes",
        doc="Column with the event time, and how late a row may be.",
    )
    required: ClassVar[Required] = (connector,)
    place: ClassVar[Required] = (connector,)
    shape: ClassVar[Required] = (watermark,)

    watermark_column: str | None
    watermark_ms: int | None

    def derive(self) -> None:
        super().derive()
        self.watermark_column, self.watermark_ms = (self.watermark and _column_and_delay(self.watermark)) or (
            None,
            None,
        )


def _column_and_delay(text: str) -> tuple[str, int] | None:
    column, _, delay = text.partition(" ")
    return (column, interval_ms(delay)) if NAME.fullmatch(column) and is_interval(delay) else None


class TopicSource(Source, RecordFormat):
    """Records of Kafka topics. Beside the columns of the value, SQL sees `_key`, `_topic`, `_partition`, `_offset`,
    `_timestamp` and, if asked for, `_headers`."""

    title = "Source: topic"

    topics = string_list("topics", (), unique=True, doc="Topics to read. Either this or topics.regex.")
    topics_regex = string(
        "topics.regex",
        None,
        check=lambda text: _compiles(text),
        note="a regular expression",
        doc="Topics to read, those whose whole name matches.",
    )
    auto_offset_reset = string(
        "auto.offset.reset",
        "earliest",
        choices=("earliest", "latest"),
        doc="Where a pipeline begins that has no checkpoint.",
    )
    start_timestamp = string(
        "start.timestamp",
        None,
        check=is_instant,
        note="an instant such as 2026-01-01T00:00:00Z",
        doc="Begin with the first record of this time or later instead.",
    )
    start_offsets = string_list(
        "start.offsets",
        (),
        unique=True,
        check=lambda all_: all(_OFFSET.fullmatch(one) for one in all_),
        note="topic:partition:offset, nothing twice",
        doc="Begin with these offsets instead; auto.offset.reset holds for other partitions.",
    )
    max_offsets_per_trigger = long("max.offsets.per.trigger", None, minimum=1, doc="Most records in one batch.")
    isolation_level = string(
        "isolation.level",
        "read_committed",
        choices=("read_committed", "read_uncommitted"),
        doc="Whether records of open and aborted transactions are left out.",
    )
    fail_on_data_loss = boolean(
        "fail.on.data.loss", True, doc="Whether the pipeline stops when records are gone before it read them."
    )
    include_headers = boolean("include.headers", False, doc="Whether SQL sees the headers.")
    keep_unknown_fields = boolean(
        "keep.unknown.fields",
        False,
        doc="Whether fields of a JSON value that are not in the schema come as `_rescued`.",
    )

    place: ClassVar[Required] = (topics, topics_regex)

    start_timestamp_ms: int | None
    start_offsets_by_partition: dict[tuple[str, int], int]

    def derive(self) -> None:
        super().derive()
        self.start_timestamp_ms = None if self.start_timestamp is None else instant_ms(self.start_timestamp)
        split = (entry.split(":") for entry in self.start_offsets)
        self.start_offsets_by_partition = {(topic, int(partition)): int(offset) for topic, partition, offset in split}


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


class FilesSource(Source):
    """Files that appear in a folder. A file is read once and must not change after it is there. Of folders within it
    only those are looked into that are called column=value, for a column of the schema. A row of json, csv and text is
    one line; no quoted field goes on in the next. No name may have one of {}[]*? or a backslash: Spark would read other
    files twice, so the pipeline stops, but for an empty file, which it does not see."""

    title = "Source: files"

    path = string("path", "", doc="Folder to watch; any file system that Spark reads.")
    format = string("format", "", choices=("json", "csv", "parquet", "text"), doc="How the files are written.")
    schema = string("schema", None, doc="Columns as Spark DDL; text has none but `value`.")
    file_pattern = string("file.pattern", None, doc="Only files whose name matches, with * and ?.")
    max_files_per_trigger = integer("max.files.per.trigger", None, minimum=1, doc="Most files in one batch.")
    csv_header = boolean(
        "csv.header",
        True,
        doc="Whether the first line of a CSV file is left out; columns go by their place, not by the names in it.",
    )
    csv_delimiter = string(
        "csv.delimiter", ",", may_be_empty=False, doc="What is between the fields of a CSV file; `'\\t'` for a tab."
    )
    required: ClassVar[Required] = (path, format)
    place: ClassVar[Required] = (path,)
    shape: ClassVar[Required] = (format, schema)


def is_overlap(text: str) -> bool:
    """Return whether the text is a number or a duration."""
    return (text.isascii() and text.isdigit()) or is_interval(text)


class JdbcSource(Source):
    """Rows of a database table with a column that only grows. A row that commits after one with the same or a larger
    value was read is missed, unless it comes within the overlap; changes and deletions are not seen. Rows where the
    column is null are left out, and in PostgreSQL those where it is NaN, infinite, before the year 1, or 9999-12-31 or
    later: no other row would come after them. A warning when a run begins counts them."""

    title = "Source: jdbc"

    connection_url = string("connection.url", "", doc="JDBC address, such as jdbc:postgresql://host/database.")
    connection_user = string("connection.user", None, doc="Database user.")
    connection_password = password("connection.password", doc="Password of the user.")
    table_whitelist = string("table.whitelist", None, doc="Table to read; one. Either this or query.")
    query = string("query", None, doc="SELECT whose rows are read, in place of a table.")
    mode = string(
        "mode",
        "incrementing",
        choices=("incrementing", "timestamp"),
        doc="What the column that grows holds: numbers or times.",
    )
    incrementing_column_name = string("incrementing.column.name", None, doc="Column that grows, for mode incrementing.")
    timestamp_column_name = string("timestamp.column.name", None, doc="Column that grows, for mode timestamp.")
    overlap = string(
        "overlap",
        None,
        check=is_overlap,
        note="a number (incrementing) or a duration (timestamp)",
        doc="How far below its end each poll looks again for rows that committed late; needs pk.fields.",
    )
    pk_fields = string_list("pk.fields", (), unique=True, doc="Columns that tell a row from all others.")
    batch_max_rows = integer("batch.max.rows", 100_000, minimum=1, doc="Most rows in one batch.")
    required: ClassVar[Required] = (connection_url,)
    place: ClassVar[Required] = (
        connection_url,
        table_whitelist,
        query,
        mode,
        incrementing_column_name,
        timestamp_column_name,
    )


class GeneratorSource(Source):
    """Numbered rows `value BIGINT, timestamp TIMESTAMP`, the same in every run, for trials and tests."""

    title = "Source: generator"

    rows_per_trigger = integer("rows.per.trigger", 1000, minimum=1, doc="Rows in one batch.")
    iterations = long("iterations", None, minimum=1, doc="Rows in all; without it they never end.")
    start_timestamp = string(
        "start.timestamp",
        "2026-01-01T00:00:00Z",
        check=is_instant,
        note="an instant such as 2026-01-01T00:00:00Z",
        doc="Time of the first row.",
    )
    interval_ms = integer("interval.ms", 1, minimum=0, doc="Milliseconds from one row's time to the next one's.")

    place: ClassVar[Required] = (start_timestamp, interval_ms)

    start_timestamp_ms: int

    def derive(self) -> None:
        super().derive()
        self.start_timestamp_ms = instant_ms(self.start_timestamp)


class PythonSource(Source):
    """A `pyspark.sql.datasource.DataSource` of one's own with a stream reader: `connector = "python:module.Class"`."""

    title = "Source: python"
    prefixes = (Prefix("options.", "Options for the class."),)
    is_place_passed = True


SOURCES: dict[str, type[Source]] = {
    "topic": TopicSource,
    "files": FilesSource,
    "jdbc": JdbcSource,
    "generator": GeneratorSource,
    PYTHON: PythonSource,
}
