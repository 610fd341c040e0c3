"""Avro schemas for fastavro: parsed, without logical types, and without constructs that fastavro handles wrongly."""

from typing import Any

import fastavro

from odradek.spark_it.formats.avro_types import Schema

WHOLE = "whole"
"""The field for the decoded value. A record with one field has the same encoding as the field alone."""


def for_reading(written: Schema, wanted: Schema | None) -> tuple[Schema, Schema | None]:
    """Return writer's and reader's schema as records with the single field WHOLE: fastavro would parse any other schema
    than a record again for each value."""
    if isinstance(wanted, dict) and isinstance(written, dict) and "fields" in wanted and "fields" in written:
        # Avro in Java ignores the name of the top-level record, too.
        wanted = {**wanted, "aliases": [*wanted.get("aliases", ()), written["name"]]}
    read = None if wanted is None else for_writing(_within(wanted))
    return _checked(for_writing(_within(written))), read


def for_writing(schema: Schema) -> Schema:
    """Return a schema without logical types."""
    return fastavro.parse_schema(_without_logical(schema))


def _within(schema: Schema) -> Schema:
    return {"type": "record", "name": "odradek_whole", "fields": [{"name": WHOLE, "type": schema}]}


class _Branches(list[Any]):
    """The branches of a union or symbols of an enum, which reject a negative index."""

    def __len__(self) -> int:
        """Return 0, because fastavro adds the length to a negative index."""
        return 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index < 0:
            raise IndexError("list index out of range")
        return super().__getitem__(index)


def _checked(schema: Schema) -> Schema:
    """Return a schema that rejects a negative index of a branch; fastavro would count from the end."""
    if isinstance(schema, list):
        return _Branches(_checked(one) for one in schema)
    if not isinstance(schema, dict):
        return schema
    checked = dict(schema)
    if "symbols" in checked:
        checked["symbols"] = _Branches(checked["symbols"])
    for key in ("items", "values"):
        if key in checked:
            checked[key] = _checked(checked[key])
    if "fields" in checked:
        checked["fields"] = [{**field, "type": _checked(field["type"])} for field in checked["fields"]]
    if "__named_schemas" in checked:
        checked["__named_schemas"] = {name: _checked(one) for name, one in checked["__named_schemas"].items()}
    return checked


def _without_logical(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("logicalType", "__named_schemas")}
    kept.pop("__fastavro_parsed", None)
    for key in ("items", "values"):
        if key in kept:
            kept[key] = _without_logical(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": _without_logical(field["type"])} for field in kept["fields"]]
    return kept
