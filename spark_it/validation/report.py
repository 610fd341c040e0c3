"""`validate`: all that can be said of a pipeline without its data."""

from collections.abc import Callable, Iterable, Iterator

from odradek.spark_it.definition.guarantees import Guarantee, guarantee, refusals, why_stateful
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.definition.spec import Pipeline

Analysis = Callable[[Pipeline], tuple[str | None, Iterable[Problem]]]
"""A deeper look at a pipeline, by Spark on empty frames: why it keeps state, if it does, and what is wrong with it."""


def read_off(pipeline: Pipeline) -> tuple[str | None, Iterable[Problem]]:
    """The look that needs no Spark."""
    return why_stateful(pipeline), ()


def validate(pipeline: Pipeline, analyse: Analysis = read_off) -> Guarantee:
    """What a pipeline guarantees that `spec_reader` has read; whoever runs one asks it first.

    Raises PipelineError for what the analysis finds wrong, and for what cannot be exactly once and has to be.
    """
    stateful, found = analyse(pipeline)
    problems = [*found, *refusals(pipeline, stateful)]
    if problems:
        raise PipelineError(pipeline.file, problems)
    return guarantee(pipeline, stateful)


def summary(pipeline: Pipeline, guaranteed: Guarantee) -> Iterator[str]:
    """Lines for people: the way of the rows, and the guarantee."""
    yield f"{pipeline.name}: {pipeline.file} is in order"
    for name, source in pipeline.sources.items():
        yield f"  source {name} ({source.connector})"
    for step in pipeline.transforms:
        what = "sql" if step.sql is not None else f"python {step.python}"
        yield f"  transform {step.name} ({what}) of {', '.join(pipeline.inputs(step)) or 'nothing'}"
    for expectation in pipeline.expectations:
        yield f"  expect {expectation.name} of {expectation.table}: {expectation.settings.action}"
    yield f"  sink {pipeline.sink.connector} of {pipeline.sink_input}"
    yield from str(guaranteed).split("\n")
