"""Calls to Spark's internal classes."""

from pyspark.sql import Observation
from pyspark.sql import functions as f

from odradek.spark_it.spark.internals import union_without_observations


def parts(frame):
    """The rows of each partition of Spark."""
    return [[tuple(row) for row in part] for part in frame.rdd.glom().collect()]


def test_the_partitions_of_a_frame_follow_those_of_another(spark):
    many = f.array(f.struct(f.lit("h").alias("key"), f.col("id"))).alias("many")
    number = spark.range(0, 12, 1, 4).select("id", many, f.spark_partition_id().alias("part"))
    odd, four = number.filter("id % 2 = 1"), number.filter("id % 4 = 0")
    found = union_without_observations([odd, four, odd])
    assert found.schema.simpleString() == number.schema.simpleString()
    assert [[row[0] for row in part] for part in parts(found)] == [
        [n for n in range(low, low + 3) if keeps(n)]
        for keeps in (lambda n: n % 2 == 1, lambda n: n % 4 == 0, lambda n: n % 2 == 1)
        for low in (0, 3, 6, 9)
    ]
    # The frames have the same origin, but their columns stay separate: each row has its own partition's number.
    assert parts(found)[0][0] == (1, [("h", 1)], 0)
    assert all(row[2] == index % 4 for index, part in enumerate(parts(found)) for row in part)
    assert parts(found.filter("id < 0")) == [[]] * 12


def test_a_frame_that_the_optimizer_finds_empty_has_no_partitions(spark):
    number = spark.range(0, 4, 1, 2)
    nothing = number.filter(f.lit(False))
    assert parts(union_without_observations([nothing, number])) == parts(number)
    assert union_without_observations([nothing, nothing]).count() == 0


def test_an_observation_is_set_by_the_rows_and_not_by_the_union(spark):
    observation = Observation()
    observed = spark.range(0, 12, 1, 4).observe(observation, f.count(f.lit(1)).alias("rows"))
    assert union_without_observations([observed.filter("id = 1"), observed.filter("id = 2")]).take(1)
    assert not observation._jo.future().isCompleted()
    observed.collect()
    assert observation.get == {"rows": 12}
