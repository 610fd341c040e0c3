"""Avro values as JSON, with a schema.

The JSON is that of Avro's specification, but the values of unions are not tagged: bytes and fixed values are strings
with a character for each byte, and logical types are what they are based on, as in kafka-avro-console-consumer. The
encoder takes tagged values as well.
"""

import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro
from fastavro.validation import validate

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.errors import UndecodableError, UnencodableError


class AvroSchema:
    """A schema, with the schemas to which it refers."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """Parse schemas. Raises ValueError."""
        self._names: dict[str, Any] = {}
        try:
            definitions = {_full_name(schema, ""): schema for schema in map(json.loads, references)}
            complete = _inline(_without_logical_types(json.loads(text)), definitions, "")
            self._schema = fastavro.parse_schema(complete, named_schemas=self._names)
        except (
            fastavro.schema.SchemaParseException,
            fastavro.schema.UnknownType,
            ValueError,
            TypeError,
            KeyError,
        ) as error:
            raise ValueError(f"invalid Avro schema: {error}") from None

    def decode(self, data: bytes) -> Any:
        """Return the JSON of a value. Raises UndecodableError."""
        stream = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:
            # Fastavro raises errors of many types for invalid data.
            raise UndecodableError(f"this is no Avro value of the schema: {_describe(error)}") from None
        if stream.tell() != len(data):
            raise UndecodableError(f"{len(data) - stream.tell()} bytes follow the Avro value")
        return _as_json(value)

    def encode(self, value: Any) -> bytes:
        """Return a value of JSON as Avro. Raises UnencodableError."""
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._schema, self._convert(self._schema, value))
        except UnencodableError:
            raise
        except Exception as error:
            raise UnencodableError(f"the value does not fit the Avro schema: {_describe(error)}") from None
        return stream.getvalue()

    def _convert(self, schema: Any, value: Any) -> Any:
        """Return fastavro's value of JSON's. Raises UnencodableError."""
        if isinstance(schema, list):
            return self._convert_union(schema, value)
        schema = self._expand(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self._convert(kind, value)
        if kind in ("bytes", "fixed"):
            return _to_bytes(value)
        if kind == "array" and isinstance(value, list):
            return [self._convert(schema["items"], each) for each in value]
        if kind == "map" and isinstance(value, dict):
            return {key: self._convert(schema["values"], each) for key, each in value.items()}
        if kind in ("record", "error") and isinstance(value, dict):
            fields = {field["name"]: field["type"] for field in schema["fields"]}
            if unknown := sorted(set(value) - set(fields)):
                raise UnencodableError(f"the schema has no field {unknown[0]}{suggest(unknown[0], fields)}")
            return {name: self._convert(fields[name], each) for name, each in value.items()}
        if kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        return value

    def _convert_union(self, branches: list[Any], value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1:
            ((tag, tagged),) = value.items()
            for branch in branches:
                if _name_branch(branch) == tag:
                    return tag, self._convert(branch, tagged)
        reasons = []
        for branch in branches:
            try:
                converted = self._convert(branch, value)
            except UnencodableError as error:
                reasons.append(str(error))
                continue
            if validate(converted, self._expand(branch), raise_errors=False):
                return converted
        is_optional = len(branches) == 2 and "null" in branches
        reason = reasons[0] if is_optional and reasons else f"{str(value)[:100]} fits no type of the union"
        raise UnencodableError(reason)

    def _expand(self, branch: Any) -> Any:
        return self._names.get(branch, branch) if isinstance(branch, str) else branch


def _name_branch(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch.get("name", branch["type"]))


def _to_bytes(value: Any) -> bytes:
    try:
        return value.encode("latin-1")  # type: ignore[no-any-return]
    except (AttributeError, UnicodeEncodeError):
        raise UnencodableError("bytes must be a string with a character up to U+00FF for each byte") from None


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    return value


def _full_name(schema: Any, namespace: str) -> str:
    name = str(schema["name"])
    within = schema.get("namespace", namespace)
    return name if "." in name or not within else f"{within}.{name}"


def _inline(schema: Any, definitions: dict[str, Any], namespace: str) -> Any:
    """Return a schema with definitions where their names are first used, because fastavro knows no others."""
    if isinstance(schema, str):
        for name in (schema, f"{namespace}.{schema}"):
            if name in definitions:
                found = _without_logical_types(definitions.pop(name))
                return _inline({**found, "name": name}, definitions, name.rpartition(".")[0])
        return schema
    if isinstance(schema, list):
        return [_inline(each, definitions, namespace) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema and schema.get("type") in ("record", "error"):
        namespace = _full_name(schema, namespace).rpartition(".")[0]
    changed = {
        key: _inline(schema[key], definitions, namespace) for key in ("type", "items", "values") if key in schema
    }
    if "fields" in schema:
        changed["fields"] = [_inline(field, definitions, namespace) for field in schema["fields"]]
    return {**schema, **changed}


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in cleaned:
            cleaned[key] = _without_logical_types(cleaned[key])
    if "fields" in cleaned:
        cleaned["fields"] = [_without_logical_types(field) for field in cleaned["fields"]]
    return cleaned


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
