"""Keys of each kind of sink, declared once as in `settings`."""

from typing import ClassVar

from odradek.properties import boolean, integer, password, string, string_list
from odradek.spark_it.definition.settings import PYTHON, Prefix, RecordFormat, Required, Settings


class Sink(Settings):
    """Keys of every sink."""

    connector = string("connector", "", doc="Kind of sink; python:module.function for a Python function.")
    input = string(
        "input", None, doc="Source or transform that is written; by default the last transform, or the only source."
    )
    exactly_once_support = string(
        "exactly.once.support",
        None,
        choices=("required", "requested"),
        doc="required: refuse a pipeline that does not write exactly once (the default, if the sink can); requested: "
        "run it nevertheless; `validate` prints the resulting guarantee.",
    )
    required: ClassVar[Required] = (connector,)
    identity_keys: ClassVar[Required] = (connector,)


class TopicSink(Sink, RecordFormat):
    """Records in a Kafka topic, written in transactions: readers need `isolation.level=read_committed`."""

    title = "Sink: topic"

    topic = string("topic", "", doc="Topic to write to.")
    key_fields = string_list(
        "key.fields", (), unique=True, doc="Columns of the record key; by default records have no key."
    )
    include_headers = boolean("include.headers", False, doc="Whether column `headers` is written as record headers.")
    required: ClassVar[Required] = (topic,)
    identity_keys: ClassVar[Required] = (topic,)


class FilesSink(Sink):
    """Files, in one folder per batch, which any reader can read."""

    title = "Sink: files"

    path = string("path", "", doc="Folder to write to, on any file system that Spark supports.")
    format = string("format", "", choices=("json", "csv", "parquet", "text"), doc="File format.")
    compression_type = string(
        "compression.type", None, doc="Compression codec, one that Spark supports for the format."
    )
    required: ClassVar[Required] = (path, format)
    identity_keys: ClassVar[Required] = (path,)


class DeltaSink(Sink):
    """A Delta table."""

    title = "Sink: delta"

    path = string("path", "", doc="Folder of the table; created if it is missing.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether missing columns are added to the table.")
    required: ClassVar[Required] = (path,)
    identity_keys: ClassVar[Required] = (path,)


class IcebergSink(Sink):
    """An Iceberg table."""

    title = "Sink: iceberg"

    iceberg_tables = string("iceberg.tables", "", doc="One table, as namespace.table.")
    auto_create = boolean("auto.create", True, doc="Whether a missing table is created.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether missing columns are added to the table.")
    required: ClassVar[Required] = (iceberg_tables,)
    identity_keys: ClassVar[Required] = (iceberg_tables,)
    prefixes = (Prefix("iceberg.catalog.", "Configuration of the catalog, such as type and warehouse."),)
    is_identity_passed = True


class JdbcSink(Sink):
    """A database table. Table pipeline_batches, in the same schema, records which batches are written."""

    title = "Sink: jdbc"

    connection_url = string("connection.url", "", doc="JDBC address, such as jdbc:postgresql://host/database.")
    connection_user = string("connection.user", None, doc="Database user.")
    connection_password = password("connection.password", doc="Password of the user.")
    table_name_format = string("table.name.format", "", doc="Table to write to, optionally with its schema.")
    insert_mode = string(
        "insert.mode",
        "insert",
        choices=("insert", "upsert"),
        doc="upsert: a row replaces the row with the same pk.fields.",
    )
    pk_fields = string_list("pk.fields", (), unique=True, doc="Columns of the table's primary key.")
    auto_create = boolean("auto.create", False, doc="Whether a missing table is created.")
    auto_evolve = boolean("auto.evolve", False, doc="Whether missing columns are added to the table.")
    cast = string_list(
        "cast",
        (),
        unique=True,
        doc="Columns whose values the database may round or truncate to the table's type, as in timestamp(0).",
    )
    batch_size = integer("batch.size", 3000, minimum=1, doc="Rows per INSERT statement.")
    required: ClassVar[Required] = (connection_url, table_name_format)
    identity_keys: ClassVar[Required] = (connection_url, table_name_format)


class ConsoleSink(Sink):
    """Rows on standard output."""

    title = "Sink: console"

    rows = integer("rows", 20, minimum=1, doc="Maximum number of rows shown per batch.")
    truncate = boolean("truncate", True, doc="Whether long values are truncated.")


class PythonSink(Sink):
    """A Python function, `function(data_frame, batch_id)`: `connector = "python:module.function"`. An exception stops
    the pipeline, except `odradek.spark_it.sinks.SinkError(text, is_retriable=True)`, after which the batch is retried.
    """

    title = "Sink: python"
    prefixes = (Prefix("options.", "Keyword arguments for the function."),)


SINKS: dict[str, type[Sink]] = {
    "topic": TopicSink,
    "files": FilesSink,
    "delta": DeltaSink,
    "iceberg": IcebergSink,
    "jdbc": JdbcSink,
    "console": ConsoleSink,
    PYTHON: PythonSink,
}
