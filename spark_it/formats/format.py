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
    """A schema that cannot be read, or that a column does not fit; `str()` says what to do."""


class Format(Protocol):
    """How one side of a topic's records is written. `name` is what a dead letter calls it."""

    name: str

    def schema(self) -> "DataType":
        """The type of what is decoded: a struct of columns, or of a single value. Raises FormatError."""

    def decode(self, column: "Column") -> "Column":
        """STRUCT<value: schema(), error: STRING> of a BINARY column; one of both is null, for null both are."""

    def encode(self, column: "Column", data_type: "DataType") -> "Column":
        """BINARY of a column, of null null; `data_type` is the column's. Raises FormatError if it does not fit."""


def format_of(
    part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side, place: "Place | None" = None
) -> Format:
    """The format of one side of a topic; `topic` is None where several topics are read. `place` is for answers of a
    registry that hold for a batch. Raises FormatError."""
    make = import_module(MODULES[part.format]).make
    with_place = () if place is None or part.registry_url is None else (place,)
    made: Format = make(part, pipeline, topic, side, *with_place)
    return made
