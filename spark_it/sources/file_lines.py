"""File names and line numbers of dead letters that come from files.

A row carries its file's name to the dead letter that it may become (`place`). Spark does not number the lines that it
reads, so lines are looked up for dead letters only: their files are read again, as text (`located`). A dead letter has
the text of its line. If several lines of a file have that text, the dead letter names them all, so that a repeated
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
"""Headers of a row on its way: its file, and for one whose value is a line of it, which lines are rows."""
_ALL, _WITHOUT_FIRST = "all", "without first"
LOOKED_UP = 10_000
"""Different texts of a batch. Where there are more, as where the schema is wrong, none is looked up."""
_NAMED = 10
"""Lines with the same text that a dead letter names; `...` stands for more."""


def place(file: Column, is_line: Column, *, has_header: bool) -> Column:
    """Return what a row carries as the headers of its record. `is_line` if its value is a line of the file."""
    rows = f.when(is_line, f.lit(_WITHOUT_FIRST if has_header else _ALL))
    return f.array(_pair(_FILE, file), _pair(_ROWS, rows)).cast(HEADERS_TYPE)


def locator(pipeline: Pipeline) -> Callable[[DataFrame], DataFrame]:
    """Return a function that puts file and line into the headers of a batch's dead letters: `key`, `value`,
    `headers`.
    """
    if not any(isinstance(source, FilesSource) for source in pipeline.sources.values()):
        return lambda dead: dead
    is_asked = pipeline.errors.deadletterqueue_context_headers_enable
    return located if is_asked else _without_places


def located(dead: DataFrame) -> DataFrame:
    """Return the dead letters with headers FILE and LINE where they come from files and are lines of them."""
    letters = dead.select(
        "key",
        "value",
        _others().alias("headers"),
        _header(_FILE).alias("file"),
        _header(_ROWS).alias("rows"),
        f.when(_header(_ROWS).isNotNull(), _digest(f.col("value"))).alias("digest"),
    )
    lines = _lines(letters)
    if lines is None:
        letters = letters.withColumn("line", f.lit(None).cast("string"))
    else:
        letters = letters.join(f.broadcast(lines), ["file", "digest"], "left")
    added = [_headers(name, f.col(column)) for name, column in ((FILE, "file"), (LINE, "line"))]
    return letters.select("key", "value", f.concat("headers", *added).alias("headers"))


def _without_places(dead: DataFrame) -> DataFrame:
    return dead.select("key", "value", _others().alias("headers"))


def _others() -> Column:
    return f.filter("headers", lambda header: ~header["key"].isin(_FILE, _ROWS))


def _header(name: str) -> Column:
    found = f.filter("headers", lambda header: header["key"] == name)
    return f.get(found, f.lit(0))["value"].cast("string")


def _headers(name: str, text: Column) -> Column:
    """The header as an array; empty for null."""
    header = f.array(_pair(name, text)).cast(HEADERS_TYPE)
    return f.when(text.isNull(), f.array().cast(HEADERS_TYPE)).otherwise(header)


def _pair(name: str, text: Column) -> Column:
    return f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value"))


def _digest(text: Column) -> Column:
    # Spark decodes some formats and not others, and puts characters in the place of what is no UTF-8.
    return f.sha2(f.make_valid_utf8(text.cast("string")).cast("binary"), 256)


class _Wanted(NamedTuple):
    """A text that is looked up in a file."""

    file: str
    rows: str
    digest: str


def _lines(letters: DataFrame) -> DataFrame | None:
    """`line` by `file` and `digest`; None if nothing is to be looked up."""
    texts = letters.filter("digest IS NOT NULL").select("file", "rows", "digest").distinct()
    wanted = [_Wanted(*row) for row in texts.limit(LOOKED_UP + 1).collect()]
    if not wanted or len(wanted) > LOOKED_UP:
        return None
    spark = letters.sparkSession
    try:
        named = [(row.file, row.digest, _shown(row.lines)) for row in _found(spark, wanted).collect()]
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None  # deleted since it was read
        raise
    return spark.createDataFrame(named, "file STRING, digest STRING, line STRING")


def _shown(lines: list[int]) -> str:
    return ",".join(map(str, lines[:_NAMED])) + (",..." if len(lines) > _NAMED else "")


def _found(spark: SparkSession, wanted: list[_Wanted]) -> DataFrame:
    """`file`, `digest` and the numbers of the `lines` with that text, from 1 on as in an editor."""
    text = _numbered(spark, sorted({one.file for one in wanted}))
    blocks = text.groupBy("file", "block").agg(
        f.min("number").alias("first"),
        f.count(f.lit(1)).alias("count"),
        # What Spark takes for the header of CSV: the first line of the file that is not blank.
        f.min(f.when(f.col("text").rlike(r"[^\x00-\x20]"), f.col("number"))).alias("header"),
    )
    earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = blocks.withColumn("before", f.coalesce(f.sum("count").over(earlier), f.lit(0)))
    sought = spark.createDataFrame(wanted, "file STRING, rows STRING, digest STRING")
    lines = text.withColumn("digest", _digest(f.col("text"))).join(f.broadcast(sought), ["file", "digest"])
    lines = lines.join(f.broadcast(blocks), ["file", "block"])
    is_header = (f.col("rows") == _WITHOUT_FIRST) & (f.col("block") == 0) & f.col("number").eqNullSafe(f.col("header"))
    line = f.col("before") + f.col("number") - f.col("first") + 1
    every = f.sort_array(f.collect_list(line))
    return lines.filter(~is_header).groupBy("file", "digest").agg(f.slice(every, 1, _NAMED + 1).alias("lines"))


def _numbered(spark: SparkSession, files: list[str]) -> DataFrame:
    """The lines of files, as addresses: `text`, `file`, where the `block` that Spark reads it in begins, and a `number`
    that grows by one from line to line of a block."""
    # Names may have the characters of patterns, and folders column=value make no columns.
    reader = spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true")
    return reader.text([unquote(file) for file in files]).select(
        f.col("value").alias("text"),
        f.col("_metadata.file_path").alias("file"),
        f.col("_metadata.file_block_start").alias("block"),
        f.monotonically_increasing_id().alias("number"),
    )
