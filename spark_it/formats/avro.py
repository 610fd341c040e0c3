"""Format avro: plain Avro with one schema for all records, or Confluent's wire format with schemas in a registry.

A record is decoded with its writer's schema and converted to `value.schema`, by default to the newest schema of the
subject. Records are written with `value.schema`, by default with a schema derived from the columns.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pyspark.sql import Column
from pyspark.sql import types as t

from odradek.spark_it.definition.settings import PartFormat
from odradek.spark_it.definition.spec import Pipeline
from odradek.spark_it.formats.avro_codec import RecordError, make_decoder, make_encoder
from odradek.spark_it.formats.avro_types import find_mismatches, parse_schema_text, to_avro_schema, to_spark_type
from odradek.spark_it.formats.columns import Decoder, UnavailableError, decode_column, encode_column, fail_on_error
from odradek.spark_it.formats.format import FormatError, Side
from odradek.spark_it.formats.registry import (
    RegistryAddress,
    RegistryError,
    add_schema_id,
    get_registry,
    split_schema_id,
)
from odradek.spark_it.formats.stored_responses import ResponseLocation, SchemaResponse, StoredResponses


class AvroFormat:
    """Keys or values of a topic in Avro. `schema_text` is JSON; None for the schema of the registry or the columns.

    With a `location` all attempts at a batch use the same registry responses.
    """

    name = "avro"

    def __init__(
        self,
        schema_text: str | None,
        address: RegistryAddress | None,
        subject: str | None,
        record_name: str,
        location: ResponseLocation | None = None,
    ) -> None:
        self._schema_text = schema_text
        self._address = address
        self._subject = subject
        self._record_name = record_name
        self._location = location
        self._registered_ids: dict[str, int] = {}

    def schema(self) -> t.DataType:
        """Return the type of decoded values. Raises FormatError, also for a subject that is not in the registry."""
        text = self._find_schema()
        return to_spark_type(parse_schema_text(text, "the schema"), "the schema")

    def decode(self, column: Column) -> Column:
        """Decode a BINARY column to STRUCT<value: schema(), error: STRING>."""
        if self._address is None:
            make: Callable[[], Decoder] = partial(make_decoder, self._find_schema())
        elif self._location is None:
            make = partial(make_registry_decoder, self._address, self._find_schema())
        else:
            make = partial(_make_batch_decoder, self._address, self._find_schema(), self._location)
        return decode_column(column, self.schema(), make)

    def encode(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as BINARY; a value that the schema does not allow fails the batch."""
        return fail_on_error(self.encode_or_error(column, data_type), "cannot be written as Avro")

    def encode_or_error(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as STRUCT<value: BINARY, error: STRING>. The schema is registered. Raises FormatError."""
        text = self._schema_text
        if text is None:
            text = json.dumps(to_avro_schema(data_type, self._record_name))
        schema = parse_schema_text(text, "the schema")
        mismatches = [*find_mismatches(data_type, schema, "the row")]
        if mismatches:
            raise FormatError(f"the columns do not fit the Avro schema: {'; '.join(mismatches)}")
        if self._address is None:
            return encode_column(column, data_type, partial(make_encoder, text))
        return encode_column(column, data_type, partial(make_registry_encoder, text, self._register(text)))

    def _find_schema(self) -> str:
        if self._schema_text is not None:
            return self._schema_text
        if self._address is None:
            raise FormatError("format avro needs a schema or schema.registry.url")
        subject = self._require_subject()
        try:
            found = get_registry(self._address).fetch_latest(subject)
        except (RegistryError, UnavailableError) as error:
            raise FormatError(str(error)) from None
        if found is None:
            raise FormatError(
                f"schema registry {self._address.url} has no subject {subject}; register its schema, or specify one"
            )
        self._schema_text = found.schema
        return found.schema

    def _register(self, text: str) -> int:
        assert self._address is not None
        if text not in self._registered_ids:
            try:
                self._registered_ids[text] = get_registry(self._address).register(self._require_subject(), text)
            except (RegistryError, UnavailableError) as error:
                raise FormatError(str(error)) from None
        return self._registered_ids[text]

    def _require_subject(self) -> str:
        if self._subject is None:
            raise FormatError("a source of several topics needs a subject or a schema")
        return self._subject


@lru_cache(maxsize=64)
def make_registry_decoder(address: RegistryAddress, reader: str, location: ResponseLocation | None = None) -> Decoder:
    """Return a decoder of records with any schema of a registry; it converts them to schema `reader`."""
    responses = None if location is None else StoredResponses(location)
    decoders: dict[int, Decoder] = {}

    def decode(data: bytes) -> Any:
        schema_id, record = split_schema_id(data)
        decoder = decoders.get(schema_id)
        if decoder is None:
            decoder = decoders[schema_id] = make_decoder_for(schema_id)
        return decoder(record)

    def make_decoder_for(schema_id: int) -> Decoder:
        writer, reason = request(schema_id) if responses is None else responses.get(schema_id, request)
        if writer is None:
            raise RecordError(reason)
        try:
            parse_schema_text(writer, f"schema {schema_id} of the registry")
        except FormatError as error:
            raise RecordError(str(error)) from None
        return make_decoder(writer, reader)

    def request(schema_id: int) -> SchemaResponse:
        return _request_schema(address, schema_id)

    return decode


def _make_batch_decoder(address: RegistryAddress, reader: str, location: ResponseLocation) -> Decoder:
    return make_registry_decoder(address, reader, location.get_batch_location())


def _request_schema(address: RegistryAddress, schema_id: int) -> SchemaResponse:
    try:
        writer = get_registry(address).schema(schema_id)
    except RegistryError as error:
        # A rejected request, for example without authorization, does not make the record bad.
        if error.status != HTTPStatus.OK:
            raise UnavailableError(str(error)) from None
        return SchemaResponse(None, str(error))
    return SchemaResponse(writer, None if writer is not None else f"the registry has no schema {schema_id}")


@lru_cache(maxsize=64)
def make_registry_encoder(schema: str, schema_id: int) -> Callable[[Any], bytes]:
    """Return an encoder of values with a schema; it prefixes them with the schema's id."""
    encode = make_encoder(schema)
    return lambda value: add_schema_id(schema_id, encode(value))


def make_format(
    part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side, location: ResponseLocation | None = None
) -> AvroFormat:
    """Return the format of keys or values of a topic. Raises FormatError for an invalid schema."""
    text = None
    if part.schema is not None:
        is_file = part.schema.endswith(".avsc")
        what = f"{side}.schema: {part.schema}" if is_file else f"{side}.schema"
        text = _read_schema_file(part.schema, pipeline, what) if is_file else part.schema
        to_spark_type(parse_schema_text(text, what), what)
    address = None
    if part.registry_url is not None:
        for url in part.registry_url.split(","):
            if not re.match(r"https?://[^/]", url.strip()):
                shown = re.sub(r"[^/@,]*@", "", part.registry_url)
                raise FormatError(f"schema.registry.url = {shown}: write http://host:port")
        address = RegistryAddress.parse(part.registry_url, part.registry_user_info)
    subject = part.subject or (None if topic is None else f"{topic}-{side}")
    record_name = re.sub(r"\W|^(?=\d)", "_", f"{topic or pipeline.name}_{side}", flags=re.ASCII)
    return AvroFormat(text, address, subject, record_name, location)


def _read_schema_file(file: str, pipeline: Pipeline, what: str) -> str:
    try:
        return Path(pipeline.locate_path(file)).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{what} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
