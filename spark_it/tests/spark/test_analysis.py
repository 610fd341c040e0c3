"""What Spark finds in a pipeline before it runs; no broker and no data are asked for."""

import pytest

from odradek.spark_it.analysis import Analysis
from spark_it.tests.unit.support import CONSOLE, pipeline, transform

GENERATOR = 'name = "g"\n[source.g]\nconnector = "generator"\n'


@pytest.mark.parametrize(
    ("sql", "why", "said"),
    [
        ("SELECT value FROM g WHERE value > (SELECT 1)", None, None),
        ("SELECT value FROM g SORT BY value", None, None),
        ("SELECT value FROM g DISTRIBUTE BY value", "Exchange in step", None),
        ("SELECT value FROM g ORDER BY value", "Exchange in step", "Sorting is not supported on streaming"),
        ("SELECT value FROM g OFFSET 1", "CollectLimit in step", "Offset is not supported on streaming"),
    ],
)
def test_what_brings_rows_together_is_looked_at_as_the_stream_that_it_is_run_as(spark, sql, why, said):
    stateful, problems = Analysis(spark)(pipeline(GENERATOR + transform(sql) + CONSOLE))
    assert stateful == why
    assert [problem.message.startswith(f"transform step: {said}") for problem in problems] == [True] * (
        said is not None
    )
