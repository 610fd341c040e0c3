"""Files that appear in a folder, by Spark's own file source. Which ones are read is in the checkpoint."""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from odradek.spark_it.checkpoint import TopicPartition
from odradek.spark_it.deadletter import Stage
from odradek.spark_it.formats.json import JsonFormat, struct_of
from odradek.spark_it.source_settings import FilesSource
from odradek.spark_it.sources import DATA_EXCEPTION, ERROR_TYPE, ORIGIN_TYPE, Stream, column
from odradek.spark_it.sources.file_lines import place
from odradek.spark_it.spec import Pipeline
from odradek.spark_it.times import WRITTEN

_CORRUPT = "__odradek_corrupt"
_FILE = "__odradek_file"
_PATTERN = r"\*|%3F|%5[BCD]|%7[BD]"
_IS_PATTERN = "a file or folder has one of {}[]*?\\ in its name, for which Spark reads others twice; rename it: "
"""In an address, and for people."""
_LINE, _PARSED, _DECODED = "value", "__odradek_parsed", "__odradek_decoded"
_BLANK = r"^[ \t\r]*$"
_ANY_AGE = "36500d"
"""Without it Spark passes over a file that is a week older than the newest one, without a word."""


def make(name: str, source: FilesSource, pipeline: Pipeline) -> "FilesStream":
    return FilesStream(name, source, pipeline.located(source.path))


class FilesStream(Stream):
    """A line that is no row is bad (json, csv); a file that cannot be read at all (parquet) stops the pipeline.

    Lines of JSON are decoded as records of topics are.
    """

    def __init__(self, name: str, source: FilesSource, path: str) -> None:
        self._name = name
        self._source = source
        self._path = path
        self._json = JsonFormat(source.schema, "schema")

    def schema(self, spark: SparkSession) -> StructType:
        if self._source.schema is None:
            return StructType([StructField("value", StringType())])
        return struct_of(self._source.schema, "schema")

    def raw(self, spark: SparkSession, start: Mapping[TopicPartition, int] | None) -> DataFrame:
        source, schema = self._source, self.schema(spark)
        options = {"maxFileAge": _ANY_AGE}
        if source.file_pattern is not None:
            options["pathGlobFilter"] = source.file_pattern
        if source.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
        if source.format == "csv":
            schema = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
            options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
            # A quote within quotes is doubled, as by RFC 4180 and by the files sink.
            options |= {"header": "true" if source.csv_header else "false", "sep": source.csv_delimiter, "escape": '"'}
        if source.format == "json":
            frame = self._lines(spark, options)
        else:
            frame = spark.readStream.format(source.format).schema(schema).options(**options).load(self._path)
        return frame.select("*", f.col("_metadata.file_path").alias(_FILE)).filter(self._is_name())

    def _lines(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        """Read the lines of JSON files into `value`, and columns of the schema from folders called column=value."""

        def lines(fields: Sequence[StructField]) -> DataFrame:
            schema = StructType([StructField(_LINE, StringType()), *fields])
            return spark.readStream.format("text").schema(schema).options(**options).load(self._path)

        # Without the schema's field Spark infers the type of such a column.
        folders = {name.casefold() for name in lines([]).columns[1:]}
        found = lines([one for one in self.schema(spark).fields if one.name.casefold() in folders])
        return found.filter(~f.col(_LINE).rlike(_BLANK))

    def decoded(self, raw: DataFrame) -> DataFrame:
        if self._source.format == "json":
            return self._decoded_json(raw)
        # Spark adds a column for folders that are called column=value, whether they are in the schema or not.
        names = self.schema(raw.sparkSession).names
        row = f.struct(*(column(name) for name in names))
        has_bad = _CORRUPT in raw.columns
        corrupt = f.col(_CORRUPT) if has_bad else f.lit(None).cast("string")
        text = f.col("value") if self._source.format == "text" else f.to_json(row, WRITTEN)
        is_line = f.lit(True) if self._source.format == "text" else corrupt.isNotNull()
        has_header = self._source.format == "csv" and self._source.csv_header
        error = f.struct(
            f.lit(Stage.VALUE_CONVERTER.value).alias("stage"),
            f.lit(self._source.format).alias("class_name"),
            f.lit(DATA_EXCEPTION).alias("exception_class_name"),
            f.concat(f.lit(f"a line is no row with {self._source.schema}, in "), f.col(_FILE)).alias("message"),
        )
        return raw.select(
            row.alias("row"),
            f.when(corrupt.isNotNull(), error).cast(ERROR_TYPE).alias("error"),
            f.lit(None).cast(ORIGIN_TYPE).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            f.coalesce(corrupt, text).cast("binary").alias("value"),
            place(f.col(_FILE), is_line, has_header=has_header).alias("headers"),
        )

    def _is_name(self) -> Column:
        """True; it fails for a file whose name is a pattern: Spark reads the other files of such a batch twice."""
        file = f.col(_FILE)
        stop = f.raise_error(f.concat(f.lit(f"source {self._name}: {_IS_PATTERN}"), file)).cast("boolean")
        is_pattern = (file.contains("%") | file.contains("*")) & file.rlike(_PATTERN)
        return f.when(is_pattern, stop).otherwise(True)

    def _decoded_json(self, raw: DataFrame) -> DataFrame:
        line, decoded = f.col(_LINE), f.col(_DECODED)
        in_folders = {name.casefold() for name in raw.columns if name not in (_LINE, _FILE)}
        names = self.schema(raw.sparkSession).names
        columns = (column(name) if name.casefold() in in_folders else decoded["value"][name] for name in names)
        error = f.struct(
            f.lit(Stage.VALUE_CONVERTER.value).alias("stage"),
            f.lit(self._source.format).alias("class_name"),
            f.lit(DATA_EXCEPTION).alias("exception_class_name"),
            f.concat(f.lit("a line "), decoded["error"], f.lit(", in "), f.col(_FILE)).alias("message"),
        )
        frame = raw.withColumn(_PARSED, self._json.parsed(line))
        return frame.withColumn(_DECODED, self._json.of_parsed(f.col(_PARSED), line)).select(
            f.struct(*(one.alias(name) for one, name in zip(columns, names, strict=True))).alias("row"),
            f.when(decoded["error"].isNotNull(), error).cast(ERROR_TYPE).alias("error"),
            f.lit(None).cast(ORIGIN_TYPE).alias("origin"),
            f.lit(None).cast("binary").alias("key"),
            line.cast("binary").alias("value"),
            place(f.col(_FILE), f.lit(True), has_header=False).alias("headers"),
        )
