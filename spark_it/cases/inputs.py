"""Given rows of a `[[test]]` case, written as files and read as the frames of sources."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from odradek.spark_it.cases.rows import parse_event_micros, to_json
from odradek.spark_it.definition.source_keys import Source, TopicSource
from odradek.spark_it.definition.spec import Pipeline, Row
from odradek.spark_it.interfaces.source import SourceError, Stream
from odradek.spark_it.sources.connectors import make_stream
from odradek.spark_it.spark.columns import ERROR_TYPE, HEADERS_TYPE, ORIGIN_TYPE

RAW_VALUE = "_value"
"""Column of a given row of a topic with the record's complete value as text; for records that cannot be decoded."""

_NEVER = -(1 << 63)
_PLAIN_FORMATS = ("json", "string", "bytes")
_HEADER = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.StringType())])
_LINE = t.StructType(
    [
        t.StructField("key", t.StringType()),
        t.StructField("value", t.StringType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("headers", t.ArrayType(_HEADER)),
    ]
)


class CaseError(Exception):
    """A case cannot run; `str()` has the reason."""


class CaseInput:
    """The given rows of a source, as files and as frames."""

    def __init__(self, pipeline: Pipeline, name: str, spark: SparkSession, folder: Path) -> None:
        self._pipeline = pipeline
        self._name = name
        self._source: Source = pipeline.sources[name]
        self._spark = spark
        self._folder = folder / "given" / name
        self._stream: Stream = make_stream(name, pipeline)
        source = self._source
        # Records of text formats can be written into a case and are decoded as in a run. For other formats and sources
        # a case gives the decoded rows.
        self._is_record = isinstance(source, TopicSource) and all(
            source.get_part_format(side).format in _PLAIN_FORMATS for side in ("key", "value")
        )
        self._schema: t.StructType | None = None

    def write(self, rows: Sequence[Row], *, separates_late_rows: bool) -> None:
        self._folder.mkdir(parents=True)
        if not self._is_record:
            self._schema = self._find_schema(rows)
            self._check_rows(rows, self._schema)
        lines = [to_json(self._make_line(index, row)) for index, row in enumerate(rows)]
        at = 0
        for index, size in enumerate(self._split_rows(rows) if separates_late_rows else [len(rows)]):
            self._write_file(index, lines[at : at + size])
            at += size

    def _write_file(self, index: int, lines: Sequence[str]) -> None:
        path = self._folder / f"{index:06d}.txt"
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        # Spark reads files in the order of their modification times.
        os.utime(path, (1_000_000_000 + index, 1_000_000_000 + index))

    def _split_rows(self, rows: Sequence[Row]) -> list[int]:
        """Return the number of rows in each file. A row that is late after the preceding rows starts a new file, after
        an empty one."""
        time_of, delay_ms = self._source.watermark_column, self._source.watermark_ms
        if time_of is None or delay_ms is None:
            return [len(rows)]
        sizes = [0]
        latest = watermark = _NEVER
        for row in rows:
            event_times = (value for name, value in row.items() if name.casefold() == time_of.casefold())
            micros = parse_event_micros(next(event_times, None))
            if micros is not None:
                if watermark <= micros < latest - delay_ms * 1000:
                    # Spark compares rows with the watermark of the batch before, so it takes effect a batch later.
                    sizes += [0, 0]
                    watermark = latest - delay_ms * 1000
                latest = max(latest, micros)
            sizes[-1] += 1
        return sizes

    def _make_line(self, index: int, row: Row) -> dict[str, Any]:
        source = self._source
        if not isinstance(source, TopicSource) or not self._is_record:
            return {"value": to_json(row), "topic": self._name, "partition": 0, "offset": index}
        topic = source.topics[0] if source.topics else self._name
        return {
            "key": _to_text(row.get("_key")),
            "value": self._make_value(row),
            "topic": row.get("_topic", topic),
            "partition": row.get("_partition", 0),
            "offset": row.get("_offset", index),
            "timestamp": row.get("_timestamp", "1970-01-01T00:00:00Z"),
            "headers": row.get("_headers"),
        }

    def _make_value(self, row: Row) -> str | None:
        """Return the record's value, without the columns that the source adds."""
        if RAW_VALUE in row:
            return _to_text(row[RAW_VALUE])
        assert isinstance(self._source, TopicSource)
        if self._source.value_format != "json":
            return _to_text(row.get("value"))
        added = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
        return to_json({name: value for name, value in row.items() if name not in added})

    def read_stream(self) -> DataFrame:
        """Return a streaming frame of lines; each batch has one file."""
        return self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self._folder))

    def decode(self, lines: DataFrame) -> DataFrame:
        """Return the frame with the columns of `spark.columns.DECODED`."""
        line = f.from_json("value", _LINE)
        if self._is_record:
            headers = line["headers"].cast(HEADERS_TYPE)
            return self._stream.decode(
                lines.select(
                    line["key"].cast("binary").alias("key"),
                    line["value"].cast("binary").alias("value"),
                    *(line[name].alias(name) for name in ("topic", "partition", "offset", "timestamp")),
                    headers.alias("headers"),
                )
            )
        assert self._schema is not None
        origin = f.struct(*(line[name].alias(name) for name in ("topic", "partition", "offset")))
        is_topic = isinstance(self._source, TopicSource)
        return lines.select(
            f.from_json(line["value"], self._schema).alias("row"),
            f.lit(None).cast(ERROR_TYPE).alias("error"),
            (origin if is_topic else f.lit(None).cast(ORIGIN_TYPE)).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            line["value"].cast("binary").alias("value"),
            f.lit(None).cast(HEADERS_TYPE).alias("headers"),
        )

    def _find_schema(self, rows: Sequence[Row]) -> t.StructType:
        """Return the source's columns; if the source is unavailable, infer them from the given rows."""
        try:
            return self._stream.schema(self._spark)
        except SourceError:
            if not rows:
                raise
            texts = self._spark.createDataFrame([(to_json(row),) for row in rows], "value STRING")
            inferred = self._spark.read.json(texts.rdd.map(lambda one: one[0]))
            return inferred.schema

    def _check_rows(self, rows: Sequence[Row], schema: t.StructType) -> None:
        """Raise CaseError for a row that does not match the source's columns."""
        for index, row in enumerate(rows):
            unknown = [name for name in row if name not in schema.names]
            if unknown:
                raise CaseError(f"given.{self._name}: row {index + 1}: unknown column {', '.join(unknown)}")
        if not rows:
            return
        corrupt = "__odradek_corrupt"
        schema_with_corrupt = t.StructType([*schema.fields, t.StructField(corrupt, t.StringType())])
        texts = self._spark.createDataFrame([(n, to_json(row)) for n, row in enumerate(rows)], "n INT, value STRING")
        read = f.from_json("value", schema_with_corrupt, {"columnNameOfCorruptRecord": corrupt})
        for bad in texts.select("n", read[corrupt].alias("c")).filter("c IS NOT NULL").orderBy("n").collect():
            raise CaseError(f"given.{self._name}: row {bad.n + 1} is not {schema.simpleString()}: {bad.c}")


def _to_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else to_json(value)
