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
from odradek.spark_it.formats.avro_codec import RecordError, decoder, encoder
from odradek.spark_it.formats.avro_types import misfits, parsed, schema_of, spark_type
from odradek.spark_it.formats.columns import Decoder, UnavailableError, decoded, encoded, or_fail
from odradek.spark_it.formats.decisions import Answer, Answers, Place
from odradek.spark_it.formats.format import FormatError, Side
from odradek.spark_it.formats.registry import Address, RegistryError, framed, registry_at, unframed


class AvroFormat:
    """Keys or values of a topic in Avro. `schema_text` is JSON; None for the schema of the registry or the columns.

    With a `place` all attempts at a batch use the same registry responses.
    """

    name = "avro"

    def __init__(
        self,
        schema_text: str | None,
        address: Address | None,
        subject: str | None,
        record_name: str,
        place: Place | None = None,
    ) -> None:
        self._schema_text = schema_text
        self._address = address
        self._subject = subject
        self._record_name = record_name
        self._place = place
        self._written: dict[str, int] = {}

    def schema(self) -> t.DataType:
        """Return the type of decoded values. Raises FormatError, also for a subject that is not in the registry."""
        text = self._wanted()
        return spark_type(parsed(text, "the schema"), "the schema")

    def decode(self, column: Column) -> Column:
        """STRUCT<value: schema(), error: STRING> of a BINARY column."""
        if self._address is None:
            maker: Callable[[], Decoder] = partial(decoder, self._wanted())
        elif self._place is None:
            maker = partial(framed_decoder, self._address, self._wanted())
        else:
            maker = partial(_decoder_of_batch, self._address, self._wanted(), self._place)
        return decoded(column, self.schema(), maker)

    def encode(self, column: Column, data_type: t.DataType) -> Column:
        """Encode a column as BINARY; a value that the schema does not allow fails the batch."""
        return or_fail(self.encode_or_error(column, data_type), "cannot be written as Avro")

    def encode_or_error(self, column: Column, data_type: t.DataType) -> Column:
        """STRUCT<value: BINARY, error: STRING> of a column. The schema is registered. Raises FormatError."""
        text = self._schema_text
        if text is None:
            text = json.dumps(schema_of(data_type, self._record_name))
        schema = parsed(text, "the schema")
        wrong = [*misfits(data_type, schema, "the row")]
        if wrong:
            raise FormatError(f"the columns do not fit the Avro schema: {'; '.join(wrong)}")
        if self._address is None:
            return encoded(column, data_type, partial(encoder, text))
        return encoded(column, data_type, partial(framed_encoder, text, self._registered(text)))

    def _wanted(self) -> str:
        if self._schema_text is not None:
            return self._schema_text
        if self._address is None:
            raise FormatError("format avro needs a schema or schema.registry.url")
        subject = self._of_subject()
        try:
            found = registry_at(self._address).latest(subject)
        except (RegistryError, UnavailableError) as error:
            raise FormatError(str(error)) from None
        if found is None:
            raise FormatError(
                f"schema registry {self._address.url} has no subject {subject}; register its schema, or specify one"
            )
        self._schema_text = found.schema
        return found.schema

    def _registered(self, text: str) -> int:
        assert self._address is not None
        if text not in self._written:
            try:
                self._written[text] = registry_at(self._address).register(self._of_subject(), text)
            except (RegistryError, UnavailableError) as error:
                raise FormatError(str(error)) from None
        return self._written[text]

    def _of_subject(self) -> str:
        if self._subject is None:
            raise FormatError("a source of several topics needs a subject or a schema")
        return self._subject


@lru_cache(maxsize=64)
def framed_decoder(address: Address, reader: str, place: Place | None = None) -> Decoder:
    """Return a decoder for records with any schema of a registry, converted to schema `reader`."""
    answers = None if place is None else Answers(place)
    decoders: dict[int, Decoder] = {}

    def decode(data: bytes) -> Any:
        schema_id, record = unframed(data)
        known = decoders.get(schema_id)
        if known is None:
            known = decoders[schema_id] = of_id(schema_id)
        return known(record)

    def of_id(schema_id: int) -> Decoder:
        writer, why_not = ask(schema_id) if answers is None else answers.get(schema_id, ask)
        if writer is None:
            raise RecordError(why_not)
        try:
            parsed(writer, f"schema {schema_id} of the registry")
        except FormatError as error:
            raise RecordError(str(error)) from None
        return decoder(writer, reader)

    def ask(schema_id: int) -> Answer:
        return _asked(address, schema_id)

    return decode


def _decoder_of_batch(address: Address, reader: str, place: Place) -> Decoder:
    return framed_decoder(address, reader, place.of_batch())


def _asked(address: Address, schema_id: int) -> Answer:
    try:
        writer = registry_at(address).schema(schema_id)
    except RegistryError as error:
        # An error of the request, such as missing authorization, does not make the record bad.
        if error.status != HTTPStatus.OK:
            raise UnavailableError(str(error)) from None
        return Answer(None, str(error))
    return Answer(writer, None if writer is not None else f"the registry has no schema {schema_id}")


@lru_cache(maxsize=64)
def framed_encoder(schema: str, schema_id: int) -> Callable[[Any], bytes]:
    """Return an encoder of values with a schema, which are prefixed with its id."""
    encode = encoder(schema)
    return lambda value: framed(schema_id, encode(value))


def make(part: PartFormat, pipeline: Pipeline, topic: str | None, side: Side, place: Place | None = None) -> AvroFormat:
    """Return the format of one side of a topic. Raises FormatError for an invalid schema."""
    text = None
    if part.schema is not None:
        is_file = part.schema.endswith(".avsc")
        what = f"{side}.schema: {part.schema}" if is_file else f"{side}.schema"
        text = _read(part.schema, pipeline, what) if is_file else part.schema
        spark_type(parsed(text, what), what)
    address = None
    if part.registry_url is not None:
        for url in part.registry_url.split(","):
            if not re.match(r"https?://[^/]", url.strip()):
                shown = re.sub(r"[^/@,]*@", "", part.registry_url)
                raise FormatError(f"schema.registry.url = {shown}: write http://host:port")
        address = Address.of(part.registry_url, part.registry_user_info)
    subject = part.subject or (None if topic is None else f"{topic}-{side}")
    record_name = re.sub(r"\W|^(?=\d)", "_", f"{topic or pipeline.name}_{side}", flags=re.ASCII)
    return AvroFormat(text, address, subject, record_name, place)


def _read(file: str, pipeline: Pipeline, what: str) -> str:
    try:
        return Path(pipeline.located(file)).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{what} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
