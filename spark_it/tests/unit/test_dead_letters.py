"""The writer of dead letters: retriable and permanent errors."""

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from odradek.spark_it.dead_letters.writer import DeadLetterWriter
from odradek.spark_it.interfaces.sink import SinkError
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline

LETTER = {"key": b"k", "value": b"v" * 2000, "headers": [{"key": "h", "value": None}]}


class Frame:
    """A DataFrame whose tasks run in this process instead of Spark's workers."""

    def select(self, *_):
        return self

    def mapInArrow(self, task, _):  # noqa: N802
        self.task = task
        return self

    def collect(self):
        try:
            [counts] = self.task([pa.RecordBatch.from_pylist([LETTER])])
        except RuntimeError as error:
            text = f'Traceback (most recent call last):\n  File "x.py", line 1, in x\nRuntimeError: {error}\n'
            raise PySparkException(text) from None
        return [type("Row", (), {"rows": count}) for count in counts.column("rows").to_pylist()]


@pytest.fixture
def writer(broker, topics, unique):
    def made(more=""):
        servers = f'bootstrap.servers = "{broker.bootstrap_servers}"\n'
        errors = f'[errors]\ndeadletterqueue.topic.name = "{topics.create(unique)}"\n'
        return DeadLetterWriter(pipeline(servers + more + SOURCE + CONSOLE + errors))

    return made


def test_dead_letters_are_counted(writer):
    assert writer().write(Frame()) == 1


def test_permanent_errors(writer):
    """For example a setting that does not exist."""
    with pytest.raises(SinkError, match=r"cannot be written to topic .*: No such configuration .*no\.such") as refused:
        writer('producer.override."no.such" = "1"\n').write(Frame())
    assert not refused.value.is_retriable


def test_retriable_errors(writer):
    one = writer('producer.override."message.timeout.ms" = 1000\n')
    one._find_max_size()
    one._configuration["bootstrap.servers"] = "127.0.0.1:1"
    with pytest.raises(SinkError, match=r"cannot be written to topic .*timed out") as failed:
        one.write(Frame())
    assert failed.value.is_retriable
