"""The source for a connector. A source's module is imported only when a pipeline uses it.

Each module has `make(name, source, pipeline) -> Stream`, where `source` has the keys of `[source.NAME]`; `make` of
topics also takes a folder for stored registry responses (`formats.decisions`).
"""

from importlib import import_module
from pathlib import Path

from odradek.spark_it.definition.settings import PYTHON
from odradek.spark_it.definition.source_keys import Source, TopicSource
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.interfaces.source import Stream

MODULES = {
    "topic": "odradek.spark_it.sources.topic",
    "files": "odradek.spark_it.sources.files",
    "jdbc": "odradek.spark_it.sources.jdbc",
    "generator": "odradek.spark_it.sources.generator",
    PYTHON: "odradek.spark_it.sources.python_source",
}


def stream_of(name: str, pipeline: Pipeline, decisions: Path | None = None) -> Stream:
    """Return the source of a pipeline by its name. `decisions` is a folder for registry responses that are stored for a
    batch."""
    source: Source = pipeline.sources[name]
    make = import_module(MODULES[source.connector.partition(":")[0]]).make
    takes_decisions = decisions is not None and isinstance(source, TopicSource)
    stream: Stream = make(name, source, pipeline, decisions) if takes_decisions else make(name, source, pipeline)
    return stream
