"""Paths from a source to the sink around a table."""

from odradek.spark_it.definition.spec import Pipeline


def is_bypassed(pipeline: Pipeline, table: str) -> bool:
    """Return whether rows of a source of `table` reach the sink on another path as well, as in a UNION."""
    written = pipeline.sink_input
    if written is None:
        return False
    sources = {name.casefold() for name in pipeline.sources}
    of_table = _behind(pipeline, table, without=None) & sources
    return bool(of_table & _behind(pipeline, written, without=table))


def _behind(pipeline: Pipeline, table: str, *, without: str | None) -> set[str]:
    """The tables that one is made of, itself included, but for what leads through `without`."""
    left, found = [table.casefold()], set[str]()
    while left:
        name = left.pop()
        if name in found or (without is not None and name == without.casefold()):
            continue
        found.add(name)
        step = pipeline.transform(name)
        left += [] if step is None else map(str.casefold, pipeline.inputs(step))
    return found
