"""Validation of a pipeline without its data, and its report."""

from collections.abc import Callable, Iterable, Iterator

from odradek.spark_it.definition.guarantees import (
    DeliveryGuarantee,
    determine_guarantee,
    find_refusals,
    find_stateful_reason,
)
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.definition.spec import Pipeline

Analyse = Callable[[Pipeline], tuple[str | None, Iterable[Problem]]]
"""A function that analyses a pipeline. It returns the reason why the pipeline is stateful, or None, and its
problems."""


def analyse_statements(pipeline: Pipeline) -> tuple[str | None, Iterable[Problem]]:
    """Analyse only the statements, without Spark."""
    return find_stateful_reason(pipeline), ()


def validate(pipeline: Pipeline, analyse: Analyse = analyse_statements) -> DeliveryGuarantee:
    """Return the guarantee of a pipeline; every run calls this first.

    Raises PipelineError for problems of the analysis, and for a pipeline that requires exactly-once writes and cannot
    guarantee them.
    """
    stateful, analysis_problems = analyse(pipeline)
    problems = [*analysis_problems, *find_refusals(pipeline, stateful)]
    if problems:
        raise PipelineError(pipeline.file, problems)
    return determine_guarantee(pipeline, stateful)


def make_summary(pipeline: Pipeline, guaranteed: DeliveryGuarantee) -> Iterator[str]:
    """Yield lines about sources, transforms, expectations, sink and guarantee."""
    yield f"{pipeline.name}: {pipeline.file} is valid"
    for name, source in pipeline.sources.items():
        yield f"  source {name} ({source.connector})"
    for step in pipeline.transforms:
        what = "sql" if step.sql is not None else f"python {step.python}"
        yield f"  transform {step.name} ({what}) of {', '.join(pipeline.list_inputs(step)) or 'nothing'}"
    for expectation in pipeline.expectations:
        yield f"  expect {expectation.name} of {expectation.table}: {expectation.settings.action}"
    yield f"  sink {pipeline.sink.connector} of {pipeline.sink_input}"
    yield from str(guaranteed).split("\n")
