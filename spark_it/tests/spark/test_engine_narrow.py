"""What the engine does to Spark's plans."""

import pytest
from pyspark.sql import functions as f

from odradek.spark_it.narrow import beside


def parts(frame):
    """Rows by Spark's partition."""
    return [[tuple(row) for row in part] for part in frame.rdd.glom().collect()]


def test_frames_are_put_together_partition_by_partition(spark):
    many = f.array(f.struct(f.lit("h").alias("key"), f.col("id"))).alias("many")
    number = spark.range(0, 12, 1, 4).select("id", many)
    odd, four = number.filter("id % 2 = 1"), number.filter("id % 4 = 0")
    found = beside([odd, four, odd])
    assert found.schema.simpleString() == number.schema.simpleString()
    assert [[row[0] for row in part] for part in parts(found)] == [
        [n for n in range(low, low + 3) if n % 2 == 1]
        + [n for n in range(low, low + 3) if n % 4 == 0]
        + [n for n in range(low, low + 3) if n % 2 == 1]
        for low in (0, 3, 6, 9)
    ]
    assert parts(found)[0][0] == (1, [("h", 1)])
    assert parts(found.filter("id < 0")) == [[], [], [], []]


def test_a_frame_that_is_known_to_be_empty_has_no_partitions(spark):
    number = spark.range(0, 4, 1, 2)
    nothing = number.filter(f.lit(False))
    assert parts(beside([nothing, number])) == parts(number)
    assert beside([nothing, nothing]).count() == 0


def test_frames_of_other_partitions_are_refused(spark):
    with pytest.raises(AssertionError):
        beside([spark.range(0, 4, 1, 2), spark.range(0, 4, 1, 3)])
