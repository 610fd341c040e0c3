"""Validation of a pipeline without its data, and its report."""

from collections.abc import Callable, Iterable, Iterator

from odradek.spark_it.definition.guarantees import Guarantee, guarantee, refusals, why_stateful
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.definition.spec import Pipeline

Analysis = Callable[[Pipeline], tuple[str | None, Iterable[Problem]]]
"""A deeper look at a pipeline, by Spark on empty frames: why it keeps state, if it does, and what is wrong with it."""


def read_off(pipeline: Pipeline) -> tuple[str | None, Iterable[Problem]]:
    """Analyse a pipeline without Spark."""
    return why_stateful(pipeline), ()


def validate(pipeline: Pipeline, analyse: Analysis = read_off) -> Guarantee:
    """Return the guarantee of a pipeline; every run calls this first.

    Raises PipelineError for problems that the analysis finds, and for a pipeline that must be exactly once and cannot
    be.
    """
    stateful, found = analyse(pipeline)
    problems = [*found, *refusals(pipeline, stateful)]
    if problems:
        raise PipelineError(pipeline.file, problems)
    return guarantee(pipeline, stateful)


def summary(pipeline: Pipeline, guaranteed: Guarantee) -> Iterator[str]:
    """Return lines about the path of the rows, and the guarantee."""
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
