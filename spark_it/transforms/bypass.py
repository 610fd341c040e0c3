"""Paths from a source to the sink that do not include a table."""

from odradek.spark_it.definition.spec import Pipeline


def is_bypassed(pipeline: Pipeline, table: str) -> bool:
    """Return whether rows of a source of `table` also reach the sink on a path without `table`, as in a UNION."""
    written = pipeline.sink_input
    if written is None:
        return False
    sources = {name.casefold() for name in pipeline.sources}
    table_sources = _find_ancestors(pipeline, table, without=None) & sources
    return bool(table_sources & _find_ancestors(pipeline, written, without=table))


def _find_ancestors(pipeline: Pipeline, table: str, *, without: str | None) -> set[str]:
    """Return the tables on which one depends, including itself, without following `without`."""
    pending, visited = [table.casefold()], set[str]()
    while pending:
        name = pending.pop()
        if name in visited or (without is not None and name == without.casefold()):
            continue
        visited.add(name)
        step = pipeline.find_transform(name)
        pending += [] if step is None else map(str.casefold, pipeline.list_inputs(step))
    return visited
