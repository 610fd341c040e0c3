"""Creation of the source for a connector. A source's module is imported only when a pipeline uses it.

Each module has `make(name, source, pipeline) -> Stream`, where `source` has the keys of `[source.NAME]`; for topics it
also takes a folder for stored registry responses (`formats.stored_responses`).
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


def make_stream(name: str, pipeline: Pipeline, responses: Path | None = None) -> Stream:
    """Return the source of a pipeline by its name. `responses` is a folder for registry responses that are stored for
    a batch."""
    source: Source = pipeline.sources[name]
    make = import_module(MODULES[source.connector.partition(":")[0]]).make
    takes_responses = responses is not None and isinstance(source, TopicSource)
    stream: Stream = make(name, source, pipeline, responses) if takes_responses else make(name, source, pipeline)
    return stream
