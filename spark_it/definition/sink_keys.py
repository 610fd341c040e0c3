"""Keys of each kind of sink, declared once as in `settings`."""

from typing import ClassVar

from odradek.properties import boolean, integer, password, string, string_list
from odradek.spark_it.definition.settings import PYTHON, Prefix, RecordFormat, Required, Settings


class Sink(Settings):
    """Keys of every sink."""

    connector = string("connector", "", doc="Kind of sink; python:module.function for one of one's own.")
    input = string(
        "input", None, doc="Source or transform that is written; the last transform, or the only source, without it."
    )
    exactly_once_support = string(
        "exactly.once.support",
        None,
        choices=("required", "requested"),
        doc="required: refuse what cannot be exactly once (the default where the sink can); requested: run it all the "
        "same, and `validate` says what that comes to.",
    )
    required: ClassVar[Required] = (connector,)
    place: ClassVar[Required] = (connector,)


class TopicSink(Sink, RecordFormat):
    """Records of a Kafka topic, in transactions: readers need `isolation.level=read_committed`."""

    title = "Sink: topic"

    topic = string("topic", "", doc="Topic to write to.")
    key_fields = string_list("key.fields", (), unique=True, doc="Columns that are the key; no key without them.")
    include_headers = boolean("include.headers", False, doc="Whether column `headers` is written as the headers.")
    required: ClassVar[Required] = (topic,)
    place: ClassVar[Required] = (topic,)


class FilesSink(Sink):
    """Files in a folder for each batch, which any reader can read."""

    title = "Sink: files"

    path = string("path", "", doc="Folder to write to; any file system that Spark writes.")
    format = string("format", "", choices=("json", "csv", "parquet", "text"), doc="How the files are written.")
    compression_type = string("compression.type", None, doc="Codec, of those that Spark has for the format.")
    required: ClassVar[Required] = (path, format)
    place: ClassVar[Required] = (path,)


class DeltaSink(Sink):
    """A Delta table."""

    title = "Sink: delta"

    path = string("path", "", doc="Folder of the table, which is made if need be.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether the table gets columns that it does not have.")
    required: ClassVar[Required] = (path,)
    place: ClassVar[Required] = (path,)


class IcebergSink(Sink):
    """An Iceberg table."""

    title = "Sink: iceberg"

    iceberg_tables = string("iceberg.tables", "", doc="Table as namespace.table; one.")
    auto_create = boolean("auto.create", True, doc="Whether a table that does not exist is made.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether the table gets columns that it does not have.")
    required: ClassVar[Required] = (iceberg_tables,)
    place: ClassVar[Required] = (iceberg_tables,)
    prefixes = (Prefix("iceberg.catalog.", "Configuration of the catalog, such as type and warehouse."),)
    is_place_passed = True


class JdbcSink(Sink):
    """A database table, and beside it pipeline_batches, which says what is written."""

    title = "Sink: jdbc"

    connection_url = string("connection.url", "", doc="JDBC address, such as jdbc:postgresql://host/database.")
    connection_user = string("connection.user", None, doc="Database user.")
    connection_password = password("connection.password", doc="Password of the user.")
    table_name_format = string("table.name.format", "", doc="Table to write to, with its schema if need be.")
    insert_mode = string(
        "insert.mode",
        "insert",
        choices=("insert", "upsert"),
        doc="upsert: a row takes the place of the one with the same pk.fields.",
    )
    pk_fields = string_list("pk.fields", (), unique=True, doc="Columns of the table's primary key.")
    auto_create = boolean("auto.create", False, doc="Whether a table that does not exist is made.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether the table gets columns that it does not have.")
    cast = string_list(
        "cast",
        (),
        unique=True,
        doc="Columns whose values the database may round or cut to what the table has, as TIMESTAMP in timestamp(0).",
    )
    batch_size = integer("batch.size", 3000, minimum=1, doc="Rows in one statement to the database.")
    required: ClassVar[Required] = (connection_url, table_name_format)
    place: ClassVar[Required] = (connection_url, table_name_format)


class ConsoleSink(Sink):
    """Rows on standard output."""

    title = "Sink: console"

    rows = integer("rows", 20, minimum=1, doc="Most rows shown of a batch.")
    truncate = boolean("truncate", True, doc="Whether long values are cut.")


class PythonSink(Sink):
    """A function of one's own, `function(data_frame, batch_id)`: `connector = "python:module.function"`. What it raises
    stops the pipeline, but for `odradek.spark_it.sinks.SinkError(text, is_retriable=True)`: that is tried again."""

    title = "Sink: python"
    prefixes = (Prefix("options.", "Named arguments for the function."),)


SINKS: dict[str, type[Sink]] = {
    "topic": TopicSink,
    "files": FilesSink,
    "delta": DeltaSink,
    "iceberg": IcebergSink,
    "jdbc": JdbcSink,
    "console": ConsoleSink,
    PYTHON: PythonSink,
}
