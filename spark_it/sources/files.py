"""The files source: new files in a folder, with Spark's file source. The checkpoint records which files were read."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from odradek.spark_it.dead_letters.headers import DATA_EXCEPTION, FailureStage
from odradek.spark_it.definition.durations import TIMESTAMP_OPTIONS
from odradek.spark_it.definition.source_keys import FilesSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.json import JsonFormat, parse_struct
from odradek.spark_it.interfaces.kafka_types import TopicPartition
from odradek.spark_it.interfaces.source import Stream
from odradek.spark_it.sources.csv_lines import CORRUPT, LINE_OPTIONS, CsvLines, decode_line
from odradek.spark_it.sources.file_lines import make_location_headers
from odradek.spark_it.spark.columns import ERROR_TYPE, ORIGIN_TYPE, column

_FILE = "__odradek_file"
_PATTERN = r"\*|%3F|%5[BCD]|%7[BD]"
_IS_PATTERN = "a file or folder name contains one of {}[]*?\\, so Spark would read other files twice; rename it: "
"""The characters of patterns in a percent-encoded address, and the error message."""
_LINE, _PARSED, _DECODED = "value", "__odradek_parsed", "__odradek_decoded"
_TEXTS, _MESSAGE = "__odradek_texts", "__odradek_message"
_BLANK = r"^[ \t\r]*$"
_ANY_AGE = "36500d"
"""Spark's default ignores files that are more than a week older than the newest one."""


def make(name: str, source: FilesSource, pipeline: Pipeline) -> "FilesStream":
    return FilesStream(name, source, pipeline.locate_path(source.path))


class FilesStream(Stream):
    """A `Stream` of files. A line that cannot be decoded is bad (json, csv); an unreadable file (parquet) stops the
    pipeline.

    Lines of JSON are decoded like records of topics.
    """

    def __init__(self, name: str, source: FilesSource, path: str) -> None:
        self._name = name
        self._source = source
        self._path = path
        self._json = JsonFormat(source.schema, "schema")

    def schema(self, spark: SparkSession) -> StructType:
        if self._source.schema is None:
            return StructType([StructField("value", StringType())])
        return parse_struct(self._source.schema, "schema")

    def read_stream(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        source = self._source
        options = {"maxFileAge": _ANY_AGE}
        if source.file_pattern is not None:
            options["pathGlobFilter"] = source.file_pattern
        if source.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
        if source.format == "json":
            frame = self._read_lines(spark, "text", options).filter(~f.col(_LINE).rlike(_BLANK))
        elif source.format == "csv":
            options |= {**LINE_OPTIONS, "header": "true" if source.csv_header else "false"}
            # A line that the reader could not parse is in CORRUPT.
            line = decode_line(f.coalesce(f.col(CORRUPT), f.col(_LINE)))
            frame = self._read_lines(spark, "csv", options, CORRUPT).withColumn(_LINE, line).drop(CORRUPT)
        else:
            schema = self.schema(spark)
            frame = spark.readStream.format(source.format).schema(schema).options(**options).load(self._path)
        return frame.select("*", f.col("_metadata.file_path").alias(_FILE)).filter(self._check_name())

    def _read_lines(self, spark: SparkSession, reader: str, options: Mapping[str, str], *others: str) -> DataFrame:
        """Read the lines of files into `get_value`, and columns of the schema from partition folders column=value.

        `others` are additional string columns of the reader.
        """
        texts = [StructField(name, StringType()) for name in (_LINE, *others)]

        def read(fields: Sequence[StructField]) -> DataFrame:
            schema = StructType([*texts, *fields])
            return spark.readStream.format(reader).schema(schema).options(**options).load(self._path)

        # Spark infers the types of partition columns that are not in this schema.
        folders = {name.casefold() for name in read([]).columns[len(texts) :]}
        return read([one for one in self.schema(spark).fields if one.name.casefold() in folders])

    def decode(self, raw: DataFrame) -> DataFrame:
        if self._source.format == "json":
            return self._decode_json(raw)
        if self._source.format == "csv":
            return self._decode_csv(raw)
        # Spark adds a column for each partition folder, even if the schema does not have it.
        names = self.schema(raw.sparkSession).names
        row = f.struct(*(column(name) for name in names))
        is_text = self._source.format == "text"
        return raw.select(
            row.alias("row"),
            f.lit(None).cast(ERROR_TYPE).alias("error"),
            f.lit(None).cast(ORIGIN_TYPE).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            (f.col("value") if is_text else f.to_json(row, TIMESTAMP_OPTIONS)).cast("binary").alias("value"),
            make_location_headers(f.col(_FILE), f.lit(is_text), has_header=False).alias("headers"),
        )

    def _decode_csv(self, raw: DataFrame) -> DataFrame:
        line, parsed, texts, message = f.col(_LINE), f.col(_PARSED), f.col(_TEXTS), f.col(_MESSAGE)
        schema, in_folders = self.schema(raw.sparkSession), _find_folder_columns(raw)
        lines = CsvLines(
            StructType([one for one in schema.fields if one.name.casefold() not in in_folders]),
            self._source.csv_delimiter,
        )
        row = f.struct(
            *(
                column(name) if name.casefold() in in_folders else lines.get_value(name, parsed, texts).alias(name)
                for name in schema.names
            )
        )
        is_bad = message.isNotNull()
        frame = raw.withColumn(_PARSED, lines.parse(line)).withColumn(_TEXTS, lines.parse_as_texts(line, parsed))
        return frame.withColumn(_MESSAGE, lines.make_error(line, parsed, texts)).select(
            row.alias("row"),
            f.when(is_bad, self._make_error(message)).cast(ERROR_TYPE).alias("error"),
            f.lit(None).cast(ORIGIN_TYPE).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            f.when(is_bad, line).otherwise(f.to_json(row, TIMESTAMP_OPTIONS)).cast("binary").alias("value"),
            make_location_headers(f.col(_FILE), is_bad, has_header=self._source.csv_header).alias("headers"),
        )

    def _make_error(self, message: Column) -> Column:
        return f.struct(
            f.lit(FailureStage.VALUE_CONVERTER.value).alias("stage"),
            f.lit(self._source.format).alias("class_name"),
            f.lit(DATA_EXCEPTION).alias("exception_class_name"),
            f.concat(f.lit("a line "), message, f.lit(", in "), f.col(_FILE)).alias("message"),
        )

    def _check_name(self) -> Column:
        """Return a condition that is true, but raises an error for a file name that is a glob pattern, because Spark
        would read matching files of the batch twice."""
        file = f.col(_FILE)
        stop = f.raise_error(f.concat(f.lit(f"source {self._name}: {_IS_PATTERN}"), file)).cast("boolean")
        is_pattern = (file.contains("%") | file.contains("*")) & file.rlike(_PATTERN)
        return f.when(is_pattern, stop).otherwise(True)

    def _decode_json(self, raw: DataFrame) -> DataFrame:
        line, decoded = f.col(_LINE), f.col(_DECODED)
        in_folders = _find_folder_columns(raw)
        names = self.schema(raw.sparkSession).names
        columns = (column(name) if name.casefold() in in_folders else decoded["value"][name] for name in names)
        frame = raw.withColumn(_PARSED, self._json.parse(line))
        return frame.withColumn(_DECODED, self._json.decode_parsed(f.col(_PARSED), line)).select(
            f.struct(*(one.alias(name) for one, name in zip(columns, names, strict=True))).alias("row"),
            f.when(decoded["error"].isNotNull(), self._make_error(decoded["error"])).cast(ERROR_TYPE).alias("error"),
            f.lit(None).cast(ORIGIN_TYPE).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            line.cast("binary").alias("value"),
            make_location_headers(f.col(_FILE), f.lit(True), has_header=False).alias("headers"),
        )


def _find_folder_columns(raw: DataFrame) -> set[str]:
    """Return the names of columns of partition folders, in lower case."""
    return {name.casefold() for name in raw.columns if name not in (_LINE, _FILE)}
