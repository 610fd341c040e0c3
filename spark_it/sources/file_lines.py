"""File names and line numbers of dead letters of a files source.

The headers of a row contain its file's name (`make_location_headers`). Spark does not number the lines that it reads,
so lines are looked up only for dead letters, whose files are read again as text (`add_locations`). A dead letter has
the text of its line. If several lines of a file have that text, its header has all of their numbers, so that a repeated
batch has the same dead letters.
"""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from odradek.spark_it.dead_letters.headers import FILE, LINE
from odradek.spark_it.definition.source_keys import FilesSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.spark.columns import HEADERS_TYPE

_FILE = "__odradek_file"
_ROWS = "__odradek_rows"
"""Internal headers of a row: its file; and if its value is a line of the file, the lines of the file that are rows."""
_ALL, _WITHOUT_FIRST = "all", "without first"
MAX_TEXTS = 10_000
"""Maximum number of different texts in a batch. If there are more, for example because of a wrong schema, no line is
looked up."""
_MAX_LINES = 10
"""Maximum number of lines in a header; `...` follows if there are more."""


def make_location_headers(file: Column, is_line: Column, *, has_header: bool) -> Column:
    """Return the internal headers of a row. With `is_line` its value is a line of the file."""
    rows = f.when(is_line, f.lit(_WITHOUT_FIRST if has_header else _ALL))
    return f.array(_make_pair(_FILE, file), _make_pair(_ROWS, rows)).cast(HEADERS_TYPE)


def make_locator(pipeline: Pipeline) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds file and line to the headers of a batch's dead letters."""
    if not any(isinstance(source, FilesSource) for source in pipeline.sources.values()):
        return lambda dead: dead
    has_context_headers = pipeline.errors.deadletterqueue_context_headers_enable
    return add_locations if has_context_headers else _remove_locations


def add_locations(dead: DataFrame) -> DataFrame:
    """Add header FILE to the dead letters of a files source, and LINE if they are lines of the file."""
    letters = dead.select(
        "key",
        "value",
        _get_other_headers().alias("headers"),
        _get_header(_FILE).alias("file"),
        _get_header(_ROWS).alias("rows"),
        f.when(_get_header(_ROWS).isNotNull(), _compute_digest(f.col("value"))).alias("digest"),
    )
    lines = _look_up_lines(letters)
    if lines is None:
        letters = letters.withColumn("line", f.lit(None).cast("string"))
    else:
        letters = letters.join(f.broadcast(lines), ["file", "digest"], "left")
    added = [_make_headers(name, f.col(column)) for name, column in ((FILE, "file"), (LINE, "line"))]
    return letters.select("key", "value", f.concat("headers", *added).alias("headers"))


def _remove_locations(dead: DataFrame) -> DataFrame:
    return dead.select("key", "value", _get_other_headers().alias("headers"))


def _get_other_headers() -> Column:
    return f.filter("headers", lambda header: ~header["key"].isin(_FILE, _ROWS))


def _get_header(name: str) -> Column:
    matching = f.filter("headers", lambda header: header["key"] == name)
    return f.get(matching, f.lit(0))["value"].cast("string")


def _make_headers(name: str, text: Column) -> Column:
    """Return an array with a header; an empty array if the text is null."""
    header = f.array(_make_pair(name, text)).cast(HEADERS_TYPE)
    return f.when(text.isNull(), f.array().cast(HEADERS_TYPE)).otherwise(header)


def _make_pair(name: str, text: Column) -> Column:
    return f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value"))


def _compute_digest(text: Column) -> Column:
    # For some formats Spark has decoded the text and replaced invalid UTF-8.
    return f.sha2(f.make_valid_utf8(text.cast("string")).cast("binary"), 256)


class _SearchedText(NamedTuple):
    """A text to look up in a file."""

    file: str
    rows: str
    digest: str


def _look_up_lines(letters: DataFrame) -> DataFrame | None:
    """Return a frame with `line` by `file` and `digest`; None if no line can be looked up."""
    texts = letters.filter("digest IS NOT NULL").select("file", "rows", "digest").distinct()
    searched = [_SearchedText(*row) for row in texts.limit(MAX_TEXTS + 1).collect()]
    if not searched or len(searched) > MAX_TEXTS:
        return None
    spark = letters.sparkSession
    try:
        lines = [(row.file, row.digest, _format_numbers(row.lines)) for row in _find_lines(spark, searched).collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None  # a file was deleted after it was read
        raise
    return spark.createDataFrame(lines, "file STRING, digest STRING, line STRING")


def _format_numbers(lines: list[int]) -> str:
    return ",".join(map(str, lines[:_MAX_LINES])) + (",..." if len(lines) > _MAX_LINES else "")


def _find_lines(spark: SparkSession, searched: list[_SearchedText]) -> DataFrame:
    """Return a frame with `file`, `digest` and the numbers of the `lines` with that text, counted from 1."""
    text = _read_numbered_lines(spark, sorted({one.file for one in searched}))
    blocks = text.groupBy("file", "block").agg(
        f.min("number").alias("first"),
        f.count(f.lit(1)).alias("count"),
        # Spark's CSV header is the first line of the file that is not blank.
        f.min(f.when(f.col("text").rlike(r"[^\x00-\x20]"), f.col("number"))).alias("header"),
    )
    earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = blocks.withColumn("before", f.coalesce(f.sum("count").over(earlier), f.lit(0)))
    searched_frame = spark.createDataFrame(searched, "file STRING, rows STRING, digest STRING")
    lines = text.withColumn("digest", _compute_digest(f.col("text"))).join(
        f.broadcast(searched_frame), ["file", "digest"]
    )
    lines = lines.join(f.broadcast(blocks), ["file", "block"])
    is_header = (f.col("rows") == _WITHOUT_FIRST) & (f.col("block") == 0) & f.col("number").eqNullSafe(f.col("header"))
    line = f.col("before") + f.col("number") - f.col("first") + 1
    every = f.sort_array(f.collect_list(line))
    return lines.filter(~is_header).groupBy("file", "digest").agg(f.slice(every, 1, _MAX_LINES + 1).alias("lines"))


def _read_numbered_lines(spark: SparkSession, files: list[str]) -> DataFrame:
    """Return the lines of files, which are addresses, with columns `text`, `file`, `block` and `number`.
    `block` is the start of the block that a task reads; `number` increases by one from line to line of a block.
    """
    # Names may contain the characters of patterns, and folders column=value must not become columns.
    reader = spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true")
    return reader.text([unquote(file) for file in files]).select(
        f.col("value").alias("text"),
        f.col("_metadata.file_path").alias("file"),
        f.col("_metadata.file_block_start").alias("block"),
        f.monotonically_increasing_id().alias("number"),
    )
