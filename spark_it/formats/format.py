"""The interface of a format, which converts keys and values of records to columns and back; creation of formats.

Each format's module is imported when it is used. It has `make_format(part, pipeline, topic, side) -> Format`; a format
with a registry also takes a `ResponseLocation`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from odradek.spark_it.formats.stored_responses import ResponseLocation

Side = Literal["key", "value"]

MODULES = {
    "json": "odradek.spark_it.formats.json",
    "string": "odradek.spark_it.formats.raw",
    "bytes": "odradek.spark_it.formats.raw",
    "avro": "odradek.spark_it.formats.avro",
    "protobuf": "odradek.spark_it.formats.protobuf",
}


class FormatError(Exception):
    """A schema is invalid or does not match the columns; `str()` has the reason and the remedy."""


class Format(Protocol):
    """The format of the keys or the values of a topic. `name` is its name in dead letters."""

    name: str

    def schema(self) -> "DataType":
        """Return the type of decoded values: a struct of columns, or the type of a single value. Raises FormatError."""

    def decode(self, column: "Column") -> "Column":
        """Decode a BINARY column to STRUCT<value: schema(), error: STRING>. One field is null; for null both are."""

    def encode(self, column: "Column", data_type: "DataType") -> "Column":
        """Encode a column of type `data_type` as BINARY; null remains null. Raises FormatError for a wrong type."""


def make_format(
    part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side, location: "ResponseLocation | None" = None
) -> Format:
    """Return the format of keys or values of a topic; `topic` is None if several topics are read. Registry responses
    are stored at `location`. Raises FormatError."""
    make = import_module(MODULES[part.format]).make_format
    locations = () if location is None or part.registry_url is None else (location,)
    made: Format = make(part, pipeline, topic, side, *locations)
    return made
