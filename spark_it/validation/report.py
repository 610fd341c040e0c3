"""Validation of a pipeline without its data, and its report."""

from collections.abc import Callable, Iterable, Iterator

from odradek.spark_it.definition.guarantees import Guarantee, guarantee, refusals, why_stateful
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.definition.spec import Pipeline

Analysis = Callable[[Pipeline], tuple[str | None, Iterable[Problem]]]
"""An analysis of a pipeline. Returns the reason why it is stateful, None if it is not, and its problems."""


def analyse_statements(pipeline: Pipeline) -> tuple[str | None, Iterable[Problem]]:
    """Analyse only the statements, without Spark."""
    return why_stateful(pipeline), ()


def validate(pipeline: Pipeline, analyse: Analysis = analyse_statements) -> Guarantee:
    """Return the guarantee of a pipeline; every run calls this first.

    Raises PipelineError for problems of the analysis, and for a pipeline that requires exactly-once writes and cannot
    guarantee them.
    """
    stateful, analysis_problems = analyse(pipeline)
    problems = [*analysis_problems, *refusals(pipeline, stateful)]
    if problems:
        raise PipelineError(pipeline.file, problems)
    return guarantee(pipeline, stateful)


def summary(pipeline: Pipeline, guaranteed: Guarantee) -> Iterator[str]:
    """Yield lines about sources, transforms, expectations, sink and guarantee."""
    yield f"{pipeline.name}: {pipeline.file} is valid"
    for name, source in pipeline.sources.items():
        yield f"  source {name} ({source.connector})"
    for step in pipeline.transforms:
        what = "sql" if step.sql is not None else f"python {step.python}"
        yield f"  transform {step.name} ({what}) of {', '.join(pipeline.inputs(step)) or 'nothing'}"
    for expectation in pipeline.expectations:
        yield f"  expect {expectation.name} of {expectation.table}: {expectation.settings.action}"
    yield f"  sink {pipeline.sink.connector} of {pipeline.sink_input}"
    yield from str(guaranteed).split("\n")
