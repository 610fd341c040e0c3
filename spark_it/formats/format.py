"""The interface of a format, which converts keys and values of records to columns and back, and the format for a name.

Each format's module is imported when it is used. It has `make(part, pipeline, topic, side) -> Format`; `make` of a
format with a registry also takes a `Place`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from odradek.spark_it.formats.decisions import Place

Side = Literal["key", "value"]

MODULES = {
    "json": "odradek.spark_it.formats.json",
    "string": "odradek.spark_it.formats.raw",
    "bytes": "odradek.spark_it.formats.raw",
    "avro": "odradek.spark_it.formats.avro",
    "protobuf": "odradek.spark_it.formats.protobuf",
}


class FormatError(Exception):
    """A schema that is invalid or does not match the columns; `str()` has the reason and the remedy."""


class Format(Protocol):
    """The format of one side of a topic's records. `name` is its name in dead letters."""

    name: str

    def schema(self) -> "DataType":
        """Return the type of decoded values: a struct of columns, or the type of a single value. Raises FormatError."""

    def decode(self, column: "Column") -> "Column":
        """Decode a BINARY column to STRUCT<value: schema(), error: STRING>; one of them is null, for null both are."""

    def encode(self, column: "Column", data_type: "DataType") -> "Column":
        """Encode a column of type `data_type` as BINARY; null as null. Raises FormatError if the type is unsuitable."""


def format_of(
    part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side, place: "Place | None" = None
) -> Format:
    """Return the format of one side of a topic; `topic` is None if several topics are read. `place` is for stored
    registry responses. Raises FormatError."""
    make = import_module(MODULES[part.format]).make
    with_place = () if place is None or part.registry_url is None else (place,)
    made: Format = make(part, pipeline, topic, side, *with_place)
    return made
