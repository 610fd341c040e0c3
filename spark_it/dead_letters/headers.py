"""Dead letters as Kafka Connect writes them: the record as it came, and headers that say what was wrong with it.

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
"""Ours: of a record that comes from a file, its address, and the number of its line; of several with the same text, all
of them."""
LEFT_OUT = f"{PREFIX}record.left.out"
"""Ours: the dead letter has no key, value and headers of its record."""
PART_WRITTEN = f"{PREFIX}record.part.written"
"""Ours: the row that died may be one of several that were made of the record, and the sink may have the others."""
DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""What Connect's converters raise."""


class Stage(Enum):
    """Where a record failed: when its key or value was decoded, at an expectation, when it was written."""

    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    TRANSFORMATION = "TRANSFORMATION"
    TASK_PUT = "TASK_PUT"


class Origin(NamedTuple):
    """The record that failed."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


class Failure(NamedTuple):
    """What was wrong. `class_name` is what found it: a format, a transform or expectation, a sink."""

    stage: Stage
    class_name: str
    exception_class_name: str
    message: str
    stacktrace: str | None = None


class BadRecordError(Exception):
    """A record that stops a pipeline with `errors.tolerance = "none"`; `str()` says which it is."""

    def __init__(self, origin: Origin | None, failure: Failure) -> None:
        where = f"record {origin}" if origin is not None else "a record"
        super().__init__(f"{where}: {failure.message} ({failure.stage.value} in {failure.class_name})")
        self.origin = origin
        self.failure = failure


def error_headers(origin: Origin | None, failure: Failure, *, connector_name: str, task_id: int) -> list[Header]:
    """Connect's headers, in Connect's order; without origin for a record that does not come from a topic."""
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


def headers(original: Iterable[Header], added: Iterable[Header]) -> list[Header]:
    """Those of a dead letter: what the record had, but what an earlier failure said, then what this one says."""
    return [*without_errors(original), *added]


def without_errors(headers: Iterable[Header]) -> list[Header]:
    """The headers that a dead letter had before it was one, as for writing it once more."""
    return [header for header in headers if not header[0].startswith(PREFIX)]


def brief(headers: Iterable[Header]) -> list[Header]:
    """Those of a dead letter that is too large for its topic and goes there without key and value: what Connect's say,
    which is where the record is; and that it was left out, for else it looks like a record that has neither."""
    kept = [(name, value and value[:_BRIEF_BYTES]) for name, value in headers if name.startswith(PREFIX)]
    return [*kept, (LEFT_OUT, b"true")]


_BRIEF_BYTES = 1000


def origin_of(headers: Iterable[Header]) -> Origin | None:
    """Where a dead letter comes from: it is the same for two copies of one record. None if it does not say."""
    said: Mapping[str, bytes | None] = dict(headers)
    topic, partition, offset = said.get(TOPIC), said.get(PARTITION), said.get(OFFSET)
    if topic is None or partition is None or offset is None:
        return None
    try:
        return Origin(topic.decode(), int(partition), int(offset))
    except ValueError:
        return None
