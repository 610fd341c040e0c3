"""Frames put together partition by partition, which Spark's `unionAll` does not: it puts them one after the other."""

from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from odradek.spark_it.sources import column


def beside(frames: list[DataFrame]) -> DataFrame:
    """The rows of frames with the same columns: partition i has those of partition i of each, in order.

    The frames are narrow over the same partitions. One of which Spark knows that it is empty has none at all.
    """
    there = [frame for frame in frames if _partitions(frame)]
    return reduce(_beside, there) if there else frames[0]


def _partitions(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def _beside(left: DataFrame, right: DataFrame) -> DataFrame:
    """Spark's merge of a full outer join walks through both sides of a partition at once, and a key that is null has no
    partner: each row comes out by itself, those on the left first, and nothing is kept. The planner, which would
    shuffle both sides first, is not asked.
    """
    assert _partitions(left) == _partitions(right)
    spark = left.sparkSession
    jvm: Any = spark._jvm
    # Under names of their own, for columns that both have from one frame are the same ones to Spark.
    sides = [
        frame.select(
            f.lit(True).alias(f"{side}0"),
            *(column(name).alias(f"{side}{index}") for index, name in enumerate(left.columns, 1)),
        )
        for side, frame in (("left", left), ("right", right))
    ]
    plans = [side._jdf.queryExecution().executedPlan() for side in sides]
    catalyst = jvm.org.apache.spark.sql.catalyst
    null = catalyst.expressions.Literal.create(None, jvm.org.apache.spark.sql.types.DataTypes.IntegerType)
    keys = jvm.PythonUtils.toSeq([null])
    outer = getattr(getattr(catalyst.plans, "FullOuter$"), "MODULE$")
    no_condition = jvm.scala.Option.empty()
    merge = jvm.org.apache.spark.sql.execution.joins.SortMergeJoinExec
    rows = merge(keys, keys, outer, no_condition, *plans, False).execute()
    fields = [field for side in sides for field in side.schema.fields]
    types = spark._jsparkSession.parseDataType(_renamed(fields))
    both = DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, types, False), spark)
    width = len(left.columns) + 1
    is_left = f.col("c0").isNotNull()
    return both.select(
        *(
            f.when(is_left, f.col(f"c{index + 1}")).otherwise(f.col(f"c{index + 1 + width}")).alias(name)
            for index, name in enumerate(left.columns)
        )
    )


def _renamed(fields: list[Any]) -> str:
    """The type of both sides' columns, numbered and each perhaps null, as JSON."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f"c{index}", field.dataType) for index, field in enumerate(fields)]).json()
