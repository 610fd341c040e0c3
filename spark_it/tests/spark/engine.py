"""Pipelines in the tests' session, with a Python sink that keeps its rows in memory."""

import json
from dataclasses import dataclass, field
from typing import Any

from odradek.spark_it.definition.reader import parse
from odradek.spark_it.execution import runner
from odradek.spark_it.state.progress import read_progress
from spark_it.tests.records import messages

HERE = __name__


@dataclass
class Kept:
    """The rows of a sink, by batch. `failures` are raised first, one in each call; `during` is called in each batch."""

    batches: list[tuple[int, list[Any]]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    during: Any = None

    @property
    def rows(self):
        return [row for _, rows in self.batches for row in rows]


kept: dict[str, Kept] = {}
"""The rows of each sink, by its option `name`."""


def keep(frame, batch_id, name):
    """The Python sink of these pipelines."""
    into = kept[name]
    if into.failures:
        raise into.failures.pop(0)
    rows = frame.collect()
    into.batches.append((batch_id, rows))
    if into.during is not None:
        into.during(batch_id)


class Engine:
    """One pipeline, whose runs share a state."""

    def __init__(self, spark, servers, folder, name):
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.name = name
        self.kept = kept.setdefault(name, Kept())
        self.said: list[str] = []
        self.environment: dict[str, str] = {}

    def pipeline(self, text, sink=None):
        head = f'name = "{self.name}"\nbootstrap.servers = "{self.servers}"\nmetrics.port = 0\n'
        sink = sink or f'[sink]\nconnector = "python:{HERE}.keep"\noptions.name = "{self.name}"\n'
        return parse(head + text + sink, self.environment, file="p.toml", folder=self.folder)

    def run(self, text, sink=None, stop=None, now=True, **options):
        """Run until everything available is read, or until `stop` is set."""
        pipeline = self.pipeline(text, sink)
        runner.run(pipeline, runner.Options(now, **options), self.said.append, spark=self.spark, stop=stop)
        return self.kept

    def progress(self):
        return read_progress(self.folder / "pipelines" / self.name)

    def counters(self):
        """The numbers of rows read, written, dead-lettered and dropped."""
        of = self.progress()
        return of.read, of.written, of.dead_lettered, of.dropped


def orders(topic, more=""):
    return f"""
[source.orders]
connector = "topic"
topics = "{topic}"
value.schema = "id BIGINT, amount DECIMAL(12,2), placed TIMESTAMP"
{more}
"""


def order(number, amount=1):
    placed = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"
    return str(number).encode(), json.dumps({"id": number, "amount": amount, "placed": placed}).encode()


def transform(sql, name="step"):
    return f"[[transform]]\nname = \"{name}\"\nsql = '''{sql}'''\n"


def errors(topic, tolerance="all"):
    return f'[errors]\ntolerance = "{tolerance}"\ndeadletterqueue.topic.name = "{topic}"\nretry.delay.max.ms = 10\n'


def all_records(servers, topic, isolation="read_committed"):
    """Key, value and headers of every record of a topic."""
    found = messages(servers, topic, isolation_level=isolation)
    return [(message.key(), message.value(), message.headers() or []) for message in found]
