"""Headers of dead letters, as Kafka Connect writes them; they describe the failure of the original record.

Source: KIP-298; names and stages are those of DeadLetterQueueReporter and Stage in Connect 4.3.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from odradek.spark_it.interfaces.kafka_types import Header

PREFIX = "__connect.errors."
TOPIC = f"{PREFIX}topic"
PARTITION = f"{PREFIX}partition"
OFFSET = f"{PREFIX}offset"
CONNECTOR_NAME = f"{PREFIX}connector.name"
TASK_ID = f"{PREFIX}task.id"
STAGE = f"{PREFIX}stage"
CLASS_NAME = f"{PREFIX}class.name"
EXCEPTION_CLASS_NAME = f"{PREFIX}exception.class.name"
EXCEPTION_MESSAGE = f"{PREFIX}exception.message"
EXCEPTION_STACKTRACE = f"{PREFIX}exception.stacktrace"
FILE = f"{PREFIX}file"
LINE = f"{PREFIX}line"
"""Not in Kafka Connect: the file and line number of a record from a file; if several lines have its text, all of their
numbers."""
LEFT_OUT = f"{PREFIX}record.left.out"
"""Not in Kafka Connect: the dead letter lacks the key, value and headers of its record."""
PART_WRITTEN = f"{PREFIX}record.part.written"
"""Not in Kafka Connect: the failed row may be one of several of its record, and the sink may contain the others."""
DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""The exception of Connect's converters."""


class FailureStage(Enum):
    """The stage at which a record failed: decoding of its key or value, an expectation, the write."""

    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    TRANSFORMATION = "TRANSFORMATION"
    TASK_PUT = "TASK_PUT"


class RecordOrigin(NamedTuple):
    """Topic, partition and offset of the record that failed."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


class Failure(NamedTuple):
    """A failure of a record. `class_name` is the component that reported it: a format, an expectation or a sink."""

    stage: FailureStage
    class_name: str
    exception_class_name: str
    message: str
    stacktrace: str | None = None


class BadRecordError(Exception):
    """A bad record stops a pipeline with `errors.tolerance = "none"`; `str()` identifies the record."""

    def __init__(self, origin: RecordOrigin | None, failure: Failure) -> None:
        where = f"record {origin}" if origin is not None else "a record"
        super().__init__(f"{where}: {failure.message} ({failure.stage.value} in {failure.class_name})")
        self.origin = origin
        self.failure = failure


def make_error_headers(
    origin: RecordOrigin | None, failure: Failure, *, connector_name: str, task_id: int
) -> list[Header]:
    """Return Connect's headers, in Connect's order. A record that was not read from a topic has no `origin`."""
    texts: list[tuple[str, object]] = []
    if origin is not None:
        texts += [(TOPIC, origin.topic), (PARTITION, origin.partition), (OFFSET, origin.offset)]
    texts += [
        (CONNECTOR_NAME, connector_name),
        (TASK_ID, task_id),
        (STAGE, failure.stage.value),
        (CLASS_NAME, failure.class_name),
        (EXCEPTION_CLASS_NAME, failure.exception_class_name),
        (EXCEPTION_MESSAGE, failure.message),
        (EXCEPTION_STACKTRACE, failure.stacktrace),
    ]
    return [(name, None if value is None else str(value).encode()) for name, value in texts]


def replace_error_headers(original: Iterable[Header], added: Iterable[Header]) -> list[Header]:
    """Return the record's headers without those of an earlier failure, followed by `added`."""
    return [*remove_error_headers(original), *added]


def remove_error_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of the original record."""
    return [header for header in headers if not header[0].startswith(PREFIX)]


def shorten_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of a dead letter that is too large for its topic and is written without key and value.

    These are Connect's headers, which locate the record, and LEFT_OUT, which distinguishes the dead letter from a
    record whose key and value are null.
    """
    kept = [(name, value and value[:_BRIEF_BYTES]) for name, value in headers if name.startswith(PREFIX)]
    return [*kept, (LEFT_OUT, b"true")]


_BRIEF_BYTES = 1000


def find_origin(headers: Iterable[Header]) -> RecordOrigin | None:
    """Return the origin of a dead letter, equal for two copies of one record; None if the headers lack it."""
    values: Mapping[str, bytes | None] = dict(headers)
    topic, partition, offset = values.get(TOPIC), values.get(PARTITION), values.get(OFFSET)
    if topic is None or partition is None or offset is None:
        return None
    try:
        return RecordOrigin(topic.decode(), int(partition), int(offset))
    except ValueError:
        return None
