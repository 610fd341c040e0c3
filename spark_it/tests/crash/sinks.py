"""A pipeline for each sink, all with the same numbers, and the contents of the sinks, read without Spark."""

import json
from pathlib import Path

import pyarrow.dataset

from odradek.spark_it.dead_letters import headers as connect_headers
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock
from spark_it.tests.records import messages
from spark_it.tests.tables import column, delta_files, iceberg_files

PARTITIONS = 1
"""Partitions of each of the two topics."""
BAD_EVERY = 100
"""Good records between two bad ones of a partition."""
BAD = (
    b"{",
    json.dumps({"n": -1, "text": "below 0"}).encode(),
    b'{"n": 1, "text": "first"}{"n": 2, "text": "second"}',
    b"",
    b'{"n": 1, "price": 1.239}',
    b'{"n": 1, "text": "\xff"}',
)
"""Bad records, used in turn. The second one violates an expectation; the others cannot be decoded."""

DEAD_LETTERS_ONCE = {"offsets", "batches"}
"""Sinks that write dead letters in the transactions of the rows."""

SECOND_DRIVER = ("delta", "iceberg", "files")
"""Sinks that two drivers may write at the same time, without either being stopped."""


class Numbers:
    """Topics with the numbers 0 to `count` - 1 and bad records among them, whose positions are in `bad`."""

    def __init__(self, topics, name, count):
        self.names = [topics.create(f"{name}-{letter}", PARTITIONS) for letter in "ab"]
        self.count = count
        self.bad = set()
        slots = [(topic, partition) for topic in self.names for partition in range(PARTITIONS)]
        for slot, (topic, partition) in enumerate(slots):
            values = []
            for n in range(slot, count, len(slots)):
                values.append(json.dumps({"n": n, "text": f"number {n:08d}"}).encode())
                if len(values) % (BAD_EVERY + 1) == BAD_EVERY:
                    self.bad.add((topic, partition, len(values)))
                    values.append(BAD[len(self.bad) % len(BAD)])
            # An idempotent producer keeps the order, so the offset of each record is known.
            config = {"enable_idempotence": True, "queue_buffering_max_messages": len(values)}
            topics.produce(topic, ((None, value) for value in values), partition=partition, **config)

    @property
    def records(self):
        return self.count + len(self.bad)


class Pipelines:
    """The pipelines' files, in a folder with their state and their output files."""

    def __init__(self, folder, name, topics, numbers, postgres, jars, batches):
        self.folder = folder
        self.name = name
        self.numbers = numbers
        self.postgres = postgres
        self.servers = topics.bootstrap_servers
        self._head = f"""
bootstrap.servers = "{self.servers}"
trigger = "1 millisecond"
tasks.max = 2
master = "local[2]"
plugin.path = "{jars}"
spark.driver.memory = "1g"
spark.sql.codegen.wholeStage = "false"
spark.driver.extraJavaOptions = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""
        self._per_batch = -(-numbers.records // batches)
        self.table = name.replace("-", "_")
        both = ", ".join(f'"{topic}"' for topic in numbers.names)
        one = self._source("numbers", both, self._per_batch)
        left, right = (
            self._source(source, f'"{topic}"', -(-self._per_batch // 2))
            for source, topic in zip(("left_ones", "right_ones"), numbers.names, strict=True)
        )
        together = "SELECT n, text FROM left_ones UNION ALL SELECT n, text FROM right_ones"
        sinks = {
            "delta": 'connector = "delta"\npath = "lake/delta"',
            "iceberg": 'connector = "iceberg"\niceberg.tables = "shop.numbers"\niceberg.catalog.type = "hadoop"\n'
            'iceberg.catalog.warehouse = "lake"',
            "files": 'connector = "files"\npath = "files"\nformat = "parquet"',
            "jdbc": f'connector = "jdbc"\nconnection.url = "{postgres.jdbc_url}"\nconnection.user = "{postgres.user}"\n'
            f'connection.password = "{postgres.password}"\ntable.name.format = "{self.table}"\nauto.create = true',
        }
        for target in ("offsets", "batches"):
            topic = topics.create(f"{name}-{target}-target", 2)
            sinks[target] = f'connector = "topic"\ntopic = "{topic}"\nkey.fields = "n"'
        for sink, text in sinks.items():
            topics.create(self.dead_topic(sink))
            if sink == "batches":
                self._write(sink, left + right, together, text)
            else:
                self._write(sink, one, "SELECT n, text FROM numbers", text)
        self.sinks = list(sinks)

    def _source(self, name, names, per_batch):
        return f"""
[source.{name}]
connector = "topic"
topics = [{names}]
value.schema = "n BIGINT, text STRING, price DECIMAL(12,2)"
max.offsets.per.trigger = {per_batch}
[expect.{name}]
none_below_0 = {{ sql = "n >= 0", action = "dead-letter" }}
"""

    def _write(self, sink, sources, sql, text):
        errors = f'[errors]\ntolerance = "all"\ndeadletterqueue.topic.name = "{self.dead_topic(sink)}"\n'
        step = f"[[transform]]\nname = \"rows\"\nsql = '''{sql}'''\n"
        name = f'name = "{self.group(sink)}"\n'
        self.file(sink).write_text(f"{name}{self._head}{sources}{step}[sink]\n{text}\n{errors}", "utf-8")

    def group(self, sink):
        return f"{self.name}-{sink}"

    def dead_topic(self, sink):
        return f"{self.name}-{sink}-dead"

    def file(self, sink) -> Path:
        return self.folder / f"{sink}.toml"

    def checkpoints(self):
        """The checkpoint of each pipeline, None if it has none yet."""
        found = {}
        for sink in self.sinks:
            state = self.folder / "pipelines" / self.group(sink)
            lock = read_lock(state)
            found[sink] = None if lock is None else checkpoint.read(get_checkpoint_folder(state, lock))
        return found

    def rows(self, sink):
        """The numbers in the sink."""
        if sink in ("offsets", "batches"):
            found = messages(self.servers, f"{self.name}-{sink}-target")
            return [json.loads(message.value())["n"] for message in found]
        if sink == "delta":
            return column(delta_files(self.folder / "lake" / "delta"), "n")
        if sink == "iceberg":
            return column(iceberg_files(self.folder / "lake" / "shop" / "numbers"), "n")
        if sink == "files":
            return pyarrow.dataset.dataset(self.folder / "files", format="parquet").to_table(["n"])["n"].to_pylist()
        return [n for (n,) in self.postgres.rows(f'SELECT n FROM "{self.table}"')]

    def dead_letters(self, sink):
        """The source positions of the dead letters."""
        return list(map(_origin, messages(self.servers, self.dead_topic(sink))))


def _origin(message):
    headers = dict(message.headers())
    topic, partition, offset = (
        headers[name] for name in (connect_headers.TOPIC, connect_headers.PARTITION, connect_headers.OFFSET)
    )
    return topic.decode(), int(partition), int(offset)
