"""Keys of a pipeline's file, each declared once; parsing, messages and docs/pipelines.md derive from it.

This module has the keys of the file and those that sources and sinks share; `source_keys` and `sink_keys` have the
others.

A class has the keys of one kind of table, with Kafka Connect's names where they exist; its docstring is the text of the
reference. Key `value.format` is attribute `value_format`. A required key has an empty default.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

from odradek.properties import Kind, Property, PropertySet, boolean, integer, long, password, string, string_list
from odradek.spark_it.definition.durations import interval_ms, is_interval
from odradek.spark_it.definition.passwords import without_passwords

AVAILABLE_NOW = "available-now"
PYTHON = "python"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,200}")  # it is a folder's too
_SECRET = re.compile(r"(?i)password|passwd|secret|token|credential|access.?key")
_PYTHON_NAME = re.compile(r"(python:)?[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def is_python_name(text: str) -> bool:
    """Return whether the text is `module.name`, with or without `python:` before it."""
    return _PYTHON_NAME.fullmatch(text) is not None


Required = tuple[Property[Any], ...]


class Prefix(NamedTuple):
    """Keys that begin alike and are passed on unread; `holds` says what their values are."""

    start: str
    doc: str
    holds: Literal["texts", "rows"] = "texts"


class Settings(PropertySet):
    """Keys of one table. `passed[prefix]` has the keys that begin with it, without it.

    `place` are the keys that say what is read or written (`is_place_passed`: what is passed on too, but for passwords
    and the like): a checkpoint does not outlive a change of one. `shape` are those that say which columns come of it;
    Spark may have state of those.
    """

    title: ClassVar[str] = ""
    required: ClassVar[Required] = ()
    place: ClassVar[Required] = ()
    is_place_passed: ClassVar[bool] = False
    shape: ClassVar[Required] = ()
    prefixes: ClassVar[tuple[Prefix, ...]] = ()

    passed: dict[str, dict[str, str]]

    @classmethod
    def all_required(cls) -> list[Property[Any]]:
        """The keys that must be given, ancestors' ones first."""
        return cls._of_all("required")

    @classmethod
    def _of_all(cls, which: str) -> list[Property[Any]]:
        return [key for ancestor in reversed(cls.__mro__) for key in ancestor.__dict__.get(which, ())]

    def texts(self, which: Literal["place", "shape"]) -> dict[str, str | None]:
        """The values of the keys of one kind, without the passwords that an address may hold.

        A new password reads and writes the same, and what is kept of the values must not help to guess it.
        """
        found = {key.name: self.text(key.name) for key in self._of_all(which)}
        if which == "place" and self.is_place_passed:
            passed = ((start, key, text) for start, keys in self.passed.items() for key, text in keys.items())
            found |= {f"{start}{key}": text for start, key, text in passed if not _SECRET.search(key)}
        return {name: None if text is None else without_passwords(text) for name, text in found.items()}

    def derive(self) -> None:
        self.passed = {prefix.start: {} for prefix in self.prefixes}

    def replace(self, changes: Mapping[str, str | None]) -> Self:
        changed = super().replace(changes)
        changed.passed = self.passed
        return changed


class PipelineSettings(Settings):
    """At the top of the file. Relative paths, here and below, are relative to the file's folder."""

    title = "The pipeline"

    name = string(
        "name",
        "",
        check=_PIPELINE_NAME.fullmatch,
        note="letters, digits, '.', '_' and '-', not dots alone",
        doc="Name of the pipeline: its group id, prefix of its transactional ids, its folder.",
    )
    bootstrap_servers = string_list(
        "bootstrap.servers", ("localhost:9092",), may_be_empty=False, doc="Brokers to begin with, as host:port."
    )
    trigger = string(
        "trigger",
        "10 seconds",
        check=lambda text: text == AVAILABLE_NOW or is_interval(text),
        note=f"a duration such as 10 seconds, or {AVAILABLE_NOW}",
        doc=f"How often a batch begins; {AVAILABLE_NOW} takes what is there and ends.",
    )
    tasks_max = integer(
        "tasks.max",
        4,
        minimum=1,
        maximum=1024,
        doc="Units of work in a batch that brings rows together, and Spark's shuffle partitions.",
    )
    home = string("home", "pipelines", may_be_empty=False, doc="Folder that holds a folder for each pipeline's state.")
    master = string("master", "local[*]", may_be_empty=False, doc="Spark's master.")
    plugin_path = string("plugin.path", None, doc="Folder with the jars of connectors; without it Spark fetches them.")
    metrics_port = integer(
        "metrics.port",
        None,
        minimum=0,
        maximum=65535,
        doc="Port for Prometheus while the pipeline runs; 0 for any free one.",
    )
    metrics_host = string(
        "metrics.host",
        "127.0.0.1",
        may_be_empty=False,
        doc="Address that the metrics are served on; 0.0.0.0 for all of the machine's.",
    )
    required: ClassVar[Required] = (name,)
    prefixes = (
        Prefix("spark.", "Configuration of the Spark session."),
        Prefix("consumer.override.", "Configuration of the Java consumers that read the source topics."),
        Prefix("producer.override.", "Configuration of the librdkafka producers of the sink and of dead letters."),
        Prefix("admin.override.", "Configuration of the librdkafka clients that commit, look up and check."),
    )

    trigger_ms: int | None

    def derive(self) -> None:
        super().derive()
        self.trigger_ms = None if self.trigger == AVAILABLE_NOW else interval_ms(self.trigger)


FORMATS = ("json", "avro", "protobuf", "string", "bytes")


class PartFormat(NamedTuple):
    """How the keys or the values of a topic are written. `registry_url` is None for Avro without a registry."""

    format: str
    schema: str | None
    message: str | None
    subject: str | None
    registry_url: str | None
    registry_user_info: str | None


class RecordFormat(Settings):
    """Keys that say how keys and values of records are written."""

    value_format = string("value.format", "json", choices=FORMATS, doc="How values are written.")
    value_schema = string(
        "value.schema",
        None,
        doc="Columns as Spark DDL (json); Avro schema as JSON, or an .avsc file "
        "(avro); a descriptor set, a .desc file (protobuf).",
    )
    value_message = string(
        "value.message", None, doc="Message type in the descriptor set, with its package (protobuf)."
    )
    value_subject = string(
        "value.subject", None, doc="Subject in the registry; the topic's name and -value without it."
    )
    key_format = string("key.format", "string", choices=FORMATS, doc="How keys are written.")
    key_schema = string("key.schema", None, doc="As value.schema, for keys.")
    key_message = string("key.message", None, doc="As value.message, for keys.")
    key_subject = string("key.subject", None, doc="Subject in the registry; the topic's name and -key without it.")
    shape: ClassVar[Required] = (
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
        doc="Registry of Avro schemas; with it records have Confluent's framing, without it they are plain Avro.",
    )
    basic_auth_user_info = password("basic.auth.user.info", doc="user:password for the registry.")

    def part(self, side: Literal["key", "value"]) -> PartFormat:
        """The keys of one side, together."""

        def of(what: str) -> Any:
            return self.value(f"{side}.{what}")

        registry = self.schema_registry_url if of("format") == "avro" else None
        user_info = self.basic_auth_user_info if registry else None
        return PartFormat(of("format"), of("schema"), of("message"), of("subject"), registry, user_info)


class TransformSettings(Settings):
    """One step of `[[transform]]`: a statement over sources and earlier steps, or a Python function over them."""

    title = "Transforms"

    name = string(
        "name",
        "",
        check=NAME.fullmatch,
        note="a letter, then letters, digits and '_'",
        doc="What later steps, expectations and the sink call the result.",
    )
    sql = string("sql", None, may_be_empty=False, doc="SELECT in Spark's SQL. Either this or python.")
    python = string(
        "python",
        None,
        check=is_python_name,
        note="module.function",
        doc="Function from data frames, one for each of input, to a data frame.",
    )
    input = string_list(
        "input", (), unique=True, doc="What the function gets; the step before it, or the only source, without it."
    )
    stateful = Property[bool | None](
        "stateful",
        Kind.BOOLEAN,
        None,
        doc="Whether the step brings rows together or remembers them: without it SQL "
        "is looked at, and a function taken to.",
    )
    required: ClassVar[Required] = (name,)


ACTIONS = ("warn", "drop", "dead-letter", "fail")


class ExpectationSettings(Settings):
    """`[expect.X]` has expectations of the rows of source or transform X: `positive = { sql = "total > 0" }`."""

    title = "Expectations"

    sql = string("sql", "", may_be_empty=False, doc="Condition in Spark's SQL that holds for a good row.")
    action = string("action", "warn", choices=ACTIONS, doc="What happens to a row of which it is false or null.")
    required: ClassVar[Required] = (sql,)


class ErrorSettings(Settings):
    """`[errors]`: what happens to records that cannot be decoded or written, and to a sink that is down."""

    title = "Errors"

    tolerance = string(
        "tolerance",
        "none",
        choices=("none", "all"),
        doc="none: stop at a bad record; all: send it to the dead-letter topic and go on.",
    )
    deadletterqueue_topic_name = string(
        "deadletterqueue.topic.name",
        None,
        may_be_empty=False,
        doc="Topic for bad records, with their key, value and headers.",
    )
    deadletterqueue_topic_replication_factor = integer(
        "deadletterqueue.topic.replication.factor",
        3,
        maximum=32767,
        check=lambda factor: factor == -1 or factor > 0,
        note="at least 1, or -1 for what the brokers are configured with",
        doc="Replicas of that topic where a run makes it, with one partition, since it does not exist.",
    )
    deadletterqueue_context_headers_enable = boolean(
        "deadletterqueue.context.headers.enable", True, doc="Whether headers `__connect.errors.*` say what was wrong."
    )
    retry_timeout = long(
        "retry.timeout", -1, minimum=-1, doc="Milliseconds for which a sink that is down is tried again; -1 for ever."
    )
    retry_delay_max_ms = long("retry.delay.max.ms", 60_000, minimum=1, doc="Longest wait between two tries.")


class TestSettings(Settings):
    """One case of `[[test]]`, run through real streaming without any of the sources and the sink."""

    __test__ = False  # for pytest
    title = "Tests"

    name = string("name", "", may_be_empty=False, doc="What the case shows.")
    dead_letters = integer("dead.letters", None, minimum=0, doc="How many rows are dead letters.")
    required: ClassVar[Required] = (name,)
    prefixes = (
        Prefix("given.", "Rows of a source: `given.orders = [{ id = 1 }]`; a source without them is empty.", "rows"),
        Prefix("expect.", "Rows of a transform; `expect = [...]` alone is what the sink gets. In any order.", "rows"),
    )
