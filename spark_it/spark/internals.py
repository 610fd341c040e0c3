"""Calls of Spark's internal classes: plans, partitions and observations of frames. No other module uses them.

They are tested with the one version of PySpark that the package requires (4.0.0). Each function's docstring, or the
comment above its group, explains why no documented call does the same. Classes of connectors (JDBC, Hadoop's file
systems, Delta Lake, Iceberg) are called by the modules of those connectors, through PySpark's gateway.
"""

import re
import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Observation

from odradek.spark_it.interfaces.sink import Range

_NODE = re.compile(r"^[\s:*+\-()\d~']*([A-Z]\w+)", re.MULTILINE)  # ~ precedes the nodes of a stream
_KEEPS_COLUMNS = ("SubqueryAlias", "View", "Filter", "Generate", "EventTimeWatermark", "CollectMetrics")
"""Plan nodes that keep all columns of their child."""
_POLL_INTERVAL_S = 0.005


# Plans

# `explain` prints a plan; no documented method returns it.


def list_logical_nodes(frame: DataFrame) -> list[str]:
    """Return the names of the nodes in the analyzed logical plan of a frame."""
    return _NODE.findall(frame._jdf.queryExecution().analyzed().treeString())


def list_physical_nodes(frame: DataFrame) -> list[str]:
    """Return the names of the nodes in the physical plan of a frame."""
    return _NODE.findall(frame._jdf.queryExecution().executedPlan().treeString())


def has_logical_node(frame: DataFrame, name: str) -> bool:
    """Return whether the text of the analyzed logical plan contains `name`."""
    return name in frame._jdf.queryExecution().analyzed().toString()


def make_empty_stream(frame: DataFrame) -> DataFrame:
    """Return a streaming frame without rows, with the schema of an empty frame.

    Every documented streaming source reads data; the analysis has none.
    """
    return _detach_rows(frame, is_streaming=True)


def check_streaming(frame: DataFrame, mode: str) -> None:
    """Raise PySparkException for an operation that no stream supports in an output mode (`append` or `update`).

    Spark itself reports it only when a query starts.
    """
    jvm: Any = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    java_mode = modes.Update() if mode == "update" else modes.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), java_mode)


# Counts


def wait_for_metrics(observation: Observation, give_up_at: float) -> dict[str, Any] | None:
    """Return the metrics of an observation; None if Spark has not set them by a time of `time.monotonic`.

    Spark sets them in another thread after the action, and never if there was no action. The documented
    `Observation.get` would block forever then.
    """
    java: Any = observation._jo
    assert java is not None
    while not java.future().isCompleted():
        if time.monotonic() > give_up_at:
            return None
        time.sleep(_POLL_INTERVAL_S)
    return observation.get


# Partitions


def find_offset_ranges(raw: DataFrame) -> tuple[Range, ...]:
    """Return the offset range of each partition of a raw frame of topics.

    Spark's documented interfaces return the offsets of a batch, but not those of each of its partitions.
    """
    rdd: Any = raw._jdf.queryExecution().toRdd()
    while not rdd.getClass().getSimpleName().startswith("DataSourceRDD"):
        rdd = rdd.dependencies().head().rdd()
    ranges = []
    for partition in rdd.partitions():
        inputs = partition.inputPartitions()
        assert inputs.size() == 1
        one = inputs.head().offsetRange()
        at = one.topicPartition()
        ranges.append(Range(at.topic(), at.partition(), one.fromOffset(), one.untilOffset()))
    return tuple(ranges)


def union_without_observations(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of frames with the same columns; the partitions of the frames are concatenated.

    A frame that Spark plans as empty has no partitions. An action on the result does not set the observations of the
    frames. With the documented `unionAll` alone it would set observations that the batch's rows share, with incomplete
    counts.
    """
    return reduce(DataFrame.unionAll, (_detach_rows(frame, is_streaming=False) for frame in frames))


def _detach_rows(frame: DataFrame, *, is_streaming: bool) -> DataFrame:
    """Return a frame with the rows of another, without the plan that computes them."""
    spark = frame.sparkSession
    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), is_streaming), spark)


# Columns of the source record from which a row was computed

# A transform's SQL usually does not select the columns of the source record, and no documented method adds a column of
# an underlying frame. Without them a dead letter of a transform would lack its record's key, value and origin.


def add_source_columns(frame: DataFrame, names: Sequence[str]) -> DataFrame | None:
    """Return the frame with additional columns of an underlying frame.

    None if a row may depend on several rows of that frame.
    """
    plan = _add_to_plan(frame._jdf.queryExecution().analyzed(), frozenset(names), frame)
    if plan is None:
        return None
    jvm: Any = frame.sparkSession._jvm
    java = jvm.org.apache.spark.sql.classic.Dataset.ofRows(frame.sparkSession._jsparkSession, plan)
    return DataFrame(java, frame.sparkSession)


def is_one_of_several(frame: DataFrame, names: Sequence[str]) -> bool:
    """Return whether several rows may come from one row of the underlying frame with these columns, as with explode().
    False if `add_source_columns` returns None."""
    plan, wanted, is_several = frame._jdf.queryExecution().analyzed(), frozenset(names), False
    while not wanted <= _get_attributes(plan).keys():
        kind = plan.getClass().getSimpleName()
        if kind != "Project" and kind not in _KEEPS_COLUMNS:
            return False
        is_several = is_several or kind == "Generate"
        plan = plan.child()
    return is_several


def _add_to_plan(plan: Any, names: frozenset[str], frame: DataFrame) -> Any:
    if names <= _get_attributes(plan).keys():
        return plan
    kind = plan.getClass().getSimpleName()
    if kind != "Project" and kind not in _KEEPS_COLUMNS:
        return None
    child = _add_to_plan(plan.child(), names, frame)
    if child is None:
        return None
    jvm: Any = frame.sparkSession._jvm
    if kind != "Project":
        return plan.withNewChildren(jvm.PythonUtils.toSeq([child]))
    columns, existing = plan.projectList(), _get_attributes(plan)
    for name, attribute in _get_attributes(child).items():
        if name in names and name not in existing:
            columns = columns.appended(attribute)
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, child)


def _get_attributes(plan: Any) -> dict[str, Any]:
    output = plan.output()
    return {output.apply(index).name(): output.apply(index) for index in range(output.size())}
