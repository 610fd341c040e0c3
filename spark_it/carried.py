"""Columns that a frame's SQL does not select, brought along nonetheless: the record that a row was made of."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

_KEEPS_COLUMNS = ("SubqueryAlias", "View", "Filter", "Generate", "EventTimeWatermark", "CollectMetrics")
"""Nodes of a plan whose columns are those of the node below them, or those and more."""


def carried(frame: DataFrame, names: Sequence[str]) -> DataFrame | None:
    """The frame with columns that are there somewhere below it as well.

    None where rows of it are not each made of one row there, or where that cannot be seen.
    """
    plan = _with(frame._jdf.queryExecution().analyzed(), frozenset(names), frame)
    if plan is None:
        return None
    jvm: Any = frame.sparkSession._jvm
    java = jvm.org.apache.spark.sql.classic.Dataset.ofRows(frame.sparkSession._jsparkSession, plan)
    return DataFrame(java, frame.sparkSession)


def is_one_of_several(frame: DataFrame, names: Sequence[str]) -> bool:
    """Whether a row of the frame may be one of several that were made of one row where the columns are, as of an array
    that is exploded. Where `carried` does not find the columns it is not."""
    plan, wanted, is_several = frame._jdf.queryExecution().analyzed(), frozenset(names), False
    while not wanted <= _output(plan).keys():
        kind = plan.getClass().getSimpleName()
        if kind != "Project" and kind not in _KEEPS_COLUMNS:
            return False
        is_several = is_several or kind == "Generate"
        plan = plan.child()
    return is_several


def _with(plan: Any, names: frozenset[str], frame: DataFrame) -> Any:
    if names <= _output(plan).keys():
        return plan
    kind = plan.getClass().getSimpleName()
    if kind != "Project" and kind not in _KEEPS_COLUMNS:
        return None
    below = _with(plan.child(), names, frame)
    if below is None:
        return None
    jvm: Any = frame.sparkSession._jvm
    if kind != "Project":
        return plan.withNewChildren(jvm.PythonUtils.toSeq([below]))
    columns, there = plan.projectList(), _output(plan)
    for name, attribute in _output(below).items():
        if name in names and name not in there:
            columns = columns.appended(attribute)
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, below)


def _output(plan: Any) -> dict[str, Any]:
    output = plan.output()
    return {output.apply(index).name(): output.apply(index) for index in range(output.size())}
