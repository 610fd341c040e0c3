"""Keys of a pipeline file, each declared once; parsing, messages and docs/pipelines.md derive from the declarations.

This module declares the keys of the file and those that sources and sinks share; `source_keys` and `sink_keys` declare
the others.

A class declares the keys of one kind of table, with Kafka Connect's names where they exist; its docstring is the text
of the reference. Key `value.format` is attribute `value_format`. A required key has an empty default.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

from odradek.properties import Kind, Property, PropertySet, boolean, integer, long, password, string, string_list
from odradek.spark_it.definition.durations import is_interval, parse_interval_ms
from odradek.spark_it.definition.passwords import hide_passwords

AVAILABLE_NOW = "available-now"
PYTHON = "python"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,200}")  # also the name of a folder
_SECRET = re.compile(r"(?i)password|passwd|secret|token|credential|access.?key")
_PYTHON_NAME = re.compile(r"(python:)?[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def is_python_name(text: str) -> bool:
    """Return whether the text is `module.name`, with or without `python:` before it."""
    return _PYTHON_NAME.fullmatch(text) is not None


Required = tuple[Property[Any], ...]


class Prefix(NamedTuple):
    """Keys with a common prefix, passed on without interpretation; `holds` is the type of their values."""

    start: str
    doc: str
    holds: Literal["texts", "rows"] = "texts"


class Settings(PropertySet):
    """Keys of one table. `passed[prefix]` maps the keys with this prefix, without it, to their values.

    `identity_keys` has the keys that identify the data that is read or written; a change of one invalidates the
    checkpoint. With `is_identity_passed` the passed keys, except secrets, belong to them as well. `column_keys` has the
    keys that determine the columns; Spark may keep state of these columns.
    """

    title: ClassVar[str] = ""
    required: ClassVar[Required] = ()
    identity_keys: ClassVar[Required] = ()
    is_identity_passed: ClassVar[bool] = False
    column_keys: ClassVar[Required] = ()
    prefixes: ClassVar[tuple[Prefix, ...]] = ()

    passed: dict[str, dict[str, str]]

    @classmethod
    def list_required(cls) -> list[Property[Any]]:
        """Return the required keys, those of base classes first."""
        return cls._collect_keys("required")

    @classmethod
    def _collect_keys(cls, which: str) -> list[Property[Any]]:
        return [key for ancestor in reversed(cls.__mro__) for key in ancestor.__dict__.get(which, ())]

    def get_texts(self, which: Literal["identity_keys", "column_keys"]) -> dict[str, str | None]:
        """Return the values of the keys of one kind, without passwords in addresses.

        A new password does not change what is read or written, and the stored hash must not help to guess it.
        """
        values = {key.name: self.text(key.name) for key in self._collect_keys(which)}
        if which == "identity_keys" and self.is_identity_passed:
            passed = ((start, key, text) for start, keys in self.passed.items() for key, text in keys.items())
            values |= {f"{start}{key}": text for start, key, text in passed if not _SECRET.search(key)}
        return {name: None if text is None else hide_passwords(text) for name, text in values.items()}

    def derive(self) -> None:
        self.passed = {prefix.start: {} for prefix in self.prefixes}

    def replace(self, changes: Mapping[str, str | None]) -> Self:
        changed = super().replace(changes)
        changed.passed = self.passed
        return changed


class PipelineSettings(Settings):
    """Keys at the top of the file. All relative paths in the file are relative to the file's folder."""

    title = "The pipeline"

    name = string(
        "name",
        "",
        check=_PIPELINE_NAME.fullmatch,
        note="letters, digits, '.', '_' and '-', not only dots",
        doc="Name of the pipeline: also its group id, the prefix of its transactional ids, and its folder's name.",
    )
    bootstrap_servers = string_list(
        "bootstrap.servers", ("localhost:9092",), may_be_empty=False, doc="Bootstrap brokers, as host:port."
    )
    trigger = string(
        "trigger",
        "10 seconds",
        check=lambda text: text == AVAILABLE_NOW or is_interval(text),
        note=f"a duration such as 10 seconds, or {AVAILABLE_NOW}",
        doc=f"Interval between the starts of two batches; {AVAILABLE_NOW} processes the available records and exits.",
    )
    tasks_max = integer(
        "tasks.max",
        4,
        minimum=1,
        maximum=1024,
        doc="Parts of a batch with batch transactions, and Spark's shuffle partitions.",
    )
    home = string("home", "pipelines", may_be_empty=False, doc="Folder that contains each pipeline's state folder.")
    master = string("master", "local[*]", may_be_empty=False, doc="Spark master URL.")
    plugin_path = string("plugin.path", None, doc="Folder with the connectors' jars; if unset, Spark downloads them.")
    metrics_port = integer(
        "metrics.port",
        None,
        minimum=0,
        maximum=65535,
        doc="Port for Prometheus metrics while the pipeline runs; 0 for any free port.",
    )
    metrics_host = string(
        "metrics.host",
        "127.0.0.1",
        may_be_empty=False,
        doc="Address on which metrics are served; 0.0.0.0 for all interfaces.",
    )
    required: ClassVar[Required] = (name,)
    prefixes = (
        Prefix("spark.", "Configuration of the Spark session."),
        Prefix("consumer.override.", "Configuration of the Java consumers that read the source topics."),
        Prefix("producer.override.", "Configuration of the librdkafka producers of the sink and of dead letters."),
        Prefix(
            "admin.override.", "Configuration of the librdkafka clients that commit and look up offsets and topics."
        ),
    )

    trigger_ms: int | None

    def derive(self) -> None:
        super().derive()
        self.trigger_ms = None if self.trigger == AVAILABLE_NOW else parse_interval_ms(self.trigger)


FORMATS = ("json", "avro", "protobuf", "string", "bytes")


class PartFormat(NamedTuple):
    """Format of the keys or of the values of a topic. `registry_url` is None for other formats than Avro, and for Avro
    without a registry."""

    format: str
    schema: str | None
    message: str | None
    subject: str | None
    registry_url: str | None
    registry_user_info: str | None


class RecordFormat(Settings):
    """Keys that determine the format of record keys and values."""

    value_format = string("value.format", "json", choices=FORMATS, doc="Format of record values.")
    value_schema = string(
        "value.schema",
        None,
        doc="json: columns as Spark DDL; avro: Avro schema as JSON, or the path of an .avsc file; protobuf: path of a "
        ".desc file with a descriptor set.",
    )
    value_message = string("value.message", None, doc="protobuf: message type in the descriptor set, with its package.")
    value_subject = string(
        "value.subject", None, doc="Subject in the registry; by default the topic's name with -value."
    )
    key_format = string("key.format", "string", choices=FORMATS, doc="Format of record keys.")
    key_schema = string("key.schema", None, doc="As value.schema, for keys.")
    key_message = string("key.message", None, doc="As value.message, for keys.")
    key_subject = string("key.subject", None, doc="Subject in the registry; by default the topic's name with -key.")
    column_keys: ClassVar[Required] = (
        value_format,
        value_schema,
        value_message,
        value_subject,
        key_format,
        key_schema,
        key_message,
        key_subject,
    )
    schema_registry_url = string(
        "schema.registry.url",
        None,
        doc="Registry of Avro schemas; if set, records have Confluent's wire format, otherwise they are plain Avro.",
    )
    basic_auth_user_info = password("basic.auth.user.info", doc="user:password for the registry.")

    def get_part_format(self, side: Literal["key", "value"]) -> PartFormat:
        """Return the format of keys or values."""

        def get(what: str) -> Any:
            return self.value(f"{side}.{what}")

        registry = self.schema_registry_url if get("format") == "avro" else None
        user_info = self.basic_auth_user_info if registry else None
        return PartFormat(get("format"), get("schema"), get("message"), get("subject"), registry, user_info)


class TransformSettings(Settings):
    """One step of `[[transform]]`: a statement over sources and earlier steps, or a Python function over them."""

    title = "Transforms"

    name = string(
        "name",
        "",
        check=NAME.fullmatch,
        note="a letter or '_', then letters, digits and '_'",
        doc="Name of the result in later steps, expectations and the sink.",
    )
    sql = string("sql", None, may_be_empty=False, doc="SELECT statement in Spark SQL. Either this or python.")
    python = string(
        "python",
        None,
        check=is_python_name,
        note="module.function",
        doc="Function that takes one data frame per name in `input` and returns a data frame.",
    )
    input = string_list(
        "input", (), unique=True, doc="Arguments of the function; by default the preceding step, or the only source."
    )
    stateful = Property[bool | None](
        "stateful",
        Kind.BOOLEAN,
        None,
        doc="Whether a row of the step depends on more than one record. By default SQL is analysed, and a function "
        "counts as stateful.",
    )
    required: ClassVar[Required] = (name,)


ACTIONS = ("warn", "drop", "dead-letter", "fail")


class ExpectationSettings(Settings):
    """`[expect.X]` has expectations of the rows of source or transform X: `positive = { sql = "total > 0" }`."""

    title = "Expectations"

    sql = string("sql", "", may_be_empty=False, doc="Condition in Spark SQL that is true for a valid row.")
    action = string("action", "warn", choices=ACTIONS, doc="Action for a row for which the condition is false or null.")
    required: ClassVar[Required] = (sql,)


class ErrorSettings(Settings):
    """Treatment of records that cannot be decoded or written, and of a sink or source broker that is unavailable."""

    title = "Errors"

    tolerance = string(
        "tolerance",
        "none",
        choices=("none", "all"),
        doc="none: stop at a bad record; all: send it to the dead-letter topic and continue.",
    )
    deadletterqueue_topic_name = string(
        "deadletterqueue.topic.name",
        None,
        may_be_empty=False,
        doc="Dead-letter topic: receives bad records with their key, value and headers.",
    )
    deadletterqueue_topic_replication_factor = integer(
        "deadletterqueue.topic.replication.factor",
        3,
        maximum=32767,
        check=lambda factor: factor == -1 or factor > 0,
        note="at least 1, or -1 for the brokers' default",
        doc="Replication factor with which a run creates the dead-letter topic, with one partition, if it is missing.",
    )
    deadletterqueue_context_headers_enable = boolean(
        "deadletterqueue.context.headers.enable",
        True,
        doc="Whether dead letters have headers `__connect.errors.*` with the error.",
    )
    retry_timeout = long(
        "retry.timeout",
        -1,
        minimum=-1,
        doc="Milliseconds for which an unavailable sink, or broker of a source topic, is retried; -1 for no limit.",
    )
    retry_delay_max_ms = long("retry.delay.max.ms", 60_000, minimum=1, doc="Maximum delay between two retries.")


class TestSettings(Settings):
    """One case of `[[test]]`, run as a Spark streaming query without the pipeline's sources and sink."""

    __test__ = False  # for pytest
    title = "Tests"

    name = string("name", "", may_be_empty=False, doc="Name of the case.")
    dead_letters = integer("dead.letters", None, minimum=0, doc="Expected number of dead letters.")
    required: ClassVar[Required] = (name,)
    prefixes = (
        Prefix("given.", "Rows of a source: `given.orders = [{ id = 1 }]`; by default a source is empty.", "rows"),
        Prefix("expect.", "Rows of a transform in any order; `expect = [...]` are the rows of the sink.", "rows"),
    )
