"""Claims of sinks: a sink belongs to the pipeline state that claimed it, whatever a second copy does."""

import pytest
from pyspark.sql import functions as f

from odradek.spark_it.interfaces.marker import make_marker_number
from odradek.spark_it.interfaces.sink import Claim, SinkError
from spark_it.tests.spark.batches import GENERATION, batch, pipeline_of, sink_for

SINKS = {
    "delta": 'connector = "delta"\npath = "lake/shop/t"',
    "iceberg": 'connector = "iceberg"\niceberg.tables = "shop.t"\niceberg.catalog.type = "hadoop"\n'
    'iceberg.catalog.warehouse = "lake"',
    "files": 'connector = "files"\npath = "out"\nformat = "parquet"',
}


@pytest.fixture(params=["delta", "iceberg", "files", "jdbc"])
def made(request, spark, postgres, tmp_path, unique):
    """Make the sinks of copies of one pipeline."""
    text = SINKS.get(request.param)
    if text is None:
        url, user, password = postgres.jdbc_url, postgres.user, postgres.password
        text = f'connector = "jdbc"\nconnection.url = "{url}"\nconnection.user = "{user}"\n'
        text += f'connection.password = "{password}"\nauto.create = true\n'
        text += f'table.name.format = "{unique.replace("-", "_")[-50:]}"'
    rows = spark.range(0, 10, 1, 2).select("id", f.format_string("row %d", "id").alias("text"))

    def copy():
        sink = sink_for(pipeline_of(text, tmp_path, name=unique[-60:]), spark)
        sink.prepare(rows.schema)
        return sink

    return copy, rows


def test_two_copies_of_a_pipeline(spark, made):
    """The second copy is refused until it is reset; after that the first one is refused."""
    copy, rows = made
    one, two = copy(), copy()
    assert one.read_owners() == set()
    for _ in range(2):
        one.claim(Claim("one", GENERATION, is_new=True))
    assert one.read_owners() == two.read_owners() == {"one"}
    # A copy that called `read_owners` before the first one claimed the sink.
    with pytest.raises(SinkError, match="at the same time by another copy"):
        two.claim(Claim("two", GENERATION, is_new=True))
    # Even before the first batch, with the same or a later generation.
    for generation in (GENERATION, GENERATION + 1):
        with pytest.raises(SinkError, match="belongs to another copy of this pipeline"):
            two.write(rows, None, batch(spark, 0, generation, "two"))
    for _ in range(2):
        assert one.write(rows, None, batch(spark, 0, GENERATION, "one")).rows == 10
    assert two.read_marker() == make_marker_number(GENERATION, 0)
    with pytest.raises(SinkError, match="belongs to another copy of this pipeline"):
        two.write(rows, None, batch(spark, 0, GENERATION, "two"))

    later = GENERATION + 1
    two.claim(Claim("two", later, frozenset({"one"}), is_new=True))
    assert one.read_owners() == {"two"}
    with pytest.raises(SinkError, match="belongs to another copy of this pipeline"):
        one.write(rows, None, batch(spark, 1, GENERATION, "one"))
    assert two.write(rows, None, batch(spark, 0, later, "two")).rows == 10
    assert two.write(rows, None, batch(spark, 0, later, "two")).rows == 10
    assert two.read_marker() == make_marker_number(later, 0)
