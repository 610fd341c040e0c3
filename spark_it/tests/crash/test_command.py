"""`odradek pipeline run` as a process: its status, and SIGTERM, in the middle of a batch."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars, tools
from odradek.spark_it.state import checkpoint
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock
from odradek.spark_it.state.reset import get_reached_offsets
from spark_it.tests.crash import held
from spark_it.tests.records import values

COMMAND = [sys.executable, "-m", "odradek", "pipeline"]
ROOT = Path(__file__).parents[3]
PARTITIONS = 3

pytestmark = pytest.mark.side_by_side


def command(*arguments):
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=limits.TOOL_S, cwd=ROOT
    )
    return done.returncode, done.stdout, done.stderr


class Running:
    """A pipeline from a topic to another, and the process that runs it."""

    def __init__(self, folder, topics, name):
        self.folder = folder
        self.file = folder / "p.toml"
        self.name = name
        self.topics = topics
        self.servers = topics.bootstrap_servers
        self.source = topics.create(f"{name}-source", PARTITIONS)
        self.target = topics.create(f"{name}-target")
        self.made = 0
        shutil.copy(held.__file__, folder)
        connectors = jars.spark_connector_jars()[0].parent
        self.file.write_text(
            f"""
name = "{name}"
bootstrap.servers = "{self.servers}"
trigger = "1 millisecond"
master = "local[1]"
plugin.path = "{connectors}"
[source.texts]
connector = "topic"
topics = "{self.source}"
value.format = "string"
max.offsets.per.trigger = 300
[[transform]]
name = "held"
python = "held.hold"
stateful = false
[sink]
connector = "topic"
topic = "{self.target}"
value.format = "string"
""",
            "utf-8",
        )
        self.process = processes.start(
            [*COMMAND, "run", str(self.file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_DIRS": str(folder)},
        )

    def produce(self, count):
        for partition in range(PARTITIONS):
            numbers = range(self.made + partition, self.made + count, PARTITIONS)
            self.topics.produce(self.source, ((None, b"%08d" % n) for n in numbers), partition=partition)
        self.made += count

    def lines_until(self, wanted):
        """Lines of standard error, up to the one that contains `wanted`."""
        found = []
        for line in self.process.stderr:
            found.append(line)
            if wanted in line:
                return found
        raise AssertionError(f"no {wanted!r} in {found}")

    def checkpoint(self):
        state = self.folder / "pipelines" / self.name
        lock = read_lock(state)
        assert lock is not None
        return checkpoint.read(get_checkpoint_folder(state, lock))

    def check_lag(self, lag):
        """Check that checkpoint, Kafka's tool and `status` agree on offsets and lag. Return the output of `status`."""
        where = ["--bootstrap-server", self.servers, "--describe", "--group", self.name]
        header, *lines = (
            line.split()
            for line in tools.run(tools.CONSUMER_GROUPS, *where).lines
            if "TOPIC" in line or self.source in line
        )
        rows = [dict(zip(header, line, strict=False)) for line in lines]
        reached = get_reached_offsets(self.checkpoint())
        assert {(row["TOPIC"], int(row["PARTITION"])): int(row["CURRENT-OFFSET"]) for row in rows} == reached
        assert sum(int(row["LAG"]) for row in rows) == self.made - sum(reached.values()) == lag
        code, out, err = command("status", self.file)
        assert (code, err) == (0, "") and f"source texts: lag {lag}\n" in out
        return out

    def close(self):
        (self.folder / "hold").unlink(missing_ok=True)
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def running(tmp_path, topics, unique):
    made = Running(tmp_path, topics, unique)
    yield made
    made.close()


def test_status_and_stop_in_the_middle_of_a_batch(running):
    running.produce(300)
    assert running.lines_until("batch 0: 300 read, 300 written in ")[0] == f"{running.name}: started\n"
    (running.folder / "hold").touch()
    running.produce(900)
    give_up_at = time.monotonic() + limits.TOOL_S
    while not (running.folder / "held").exists():
        assert running.process.poll() is None and time.monotonic() < give_up_at
        time.sleep(0.01)

    out = running.check_lag(900)
    assert f"{running.name}: running, process {running.process.pid}\n" in out
    assert "is not completed; last completed: batch 0\n" in out and "300 read = 300 written" in out
    for refused in (("run", running.file), ("reset", running.file, "--to", "earliest", "--execute")):
        code, out, err = command(*refused)
        assert (code, out) == (1, "") and f"is already running as process {running.process.pid}; stop it first\n" in err

    running.process.send_signal(signal.SIGTERM)
    (running.folder / "hold").unlink()
    assert running.process.wait(limits.TOOL_S) == 0
    assert running.process.stderr.read().startswith(f"{running.name}: batch 1: 300 read, 300 written in ")
    # Spark may have planned batch 2, of which nothing is written.
    assert running.checkpoint().done.id == 1
    assert f"{running.name}: stopped\n" in running.check_lag(600)
    assert len(values(running.servers, running.target)) == 600
