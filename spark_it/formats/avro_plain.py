"""Avro schemas for fastavro: parsed, without logical types, and without constructs that fastavro handles wrongly."""

from typing import Any

import fastavro

from odradek.spark_it.formats.avro_types import Schema

WHOLE = "whole"
"""The name of the field with the decoded value. A record with one field is encoded like the field alone."""


def make_reading_schemas(written: Schema, wanted: Schema | None) -> tuple[Schema, Schema | None]:
    """Return the writer's and the reader's schema as records with the single field WHOLE, because fastavro would parse
    any other schema than a record again for each value."""
    if isinstance(wanted, dict) and isinstance(written, dict) and "fields" in wanted and "fields" in written:
        # Like Avro's Java library, ignore the name of the top-level record.
        wanted = {**wanted, "aliases": [*wanted.get("aliases", ()), written["name"]]}
    read = None if wanted is None else make_plain_schema(_wrap_in_record(wanted))
    return _reject_negative_indexes(make_plain_schema(_wrap_in_record(written))), read


def make_plain_schema(schema: Schema) -> Schema:
    """Return a schema without logical types, parsed by fastavro."""
    return fastavro.parse_schema(_remove_logical_types(schema))


def _wrap_in_record(schema: Schema) -> Schema:
    return {"type": "record", "name": "odradek_whole", "fields": [{"name": WHOLE, "type": schema}]}


class _Branches(list[Any]):
    """The branches of a union or symbols of an enum; a negative index raises IndexError."""

    def __len__(self) -> int:
        """Return 0, because fastavro adds the length to a negative index."""
        return 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index < 0:
            raise IndexError("list index out of range")
        return super().__getitem__(index)


def _reject_negative_indexes(schema: Schema) -> Schema:
    """Return a schema whose unions and enums reject a negative index; fastavro would count from the end."""
    if isinstance(schema, list):
        return _Branches(_reject_negative_indexes(one) for one in schema)
    if not isinstance(schema, dict):
        return schema
    checked = dict(schema)
    if "symbols" in checked:
        checked["symbols"] = _Branches(checked["symbols"])
    for key in ("items", "values"):
        if key in checked:
            checked[key] = _reject_negative_indexes(checked[key])
    if "fields" in checked:
        checked["fields"] = [{**field, "type": _reject_negative_indexes(field["type"])} for field in checked["fields"]]
    if "__named_schemas" in checked:
        checked["__named_schemas"] = {
            name: _reject_negative_indexes(one) for name, one in checked["__named_schemas"].items()
        }
    return checked


def _remove_logical_types(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_remove_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("logicalType", "__named_schemas")}
    kept.pop("__fastavro_parsed", None)
    for key in ("items", "values"):
        if key in kept:
            kept[key] = _remove_logical_types(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": _remove_logical_types(field["type"])} for field in kept["fields"]]
    return kept
