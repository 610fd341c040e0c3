"""Attempts that are killed just before or just after their commit, with their records at the broker, and attempts that
sleep at that moment and wake when others have taken over."""

import json
import os
import signal
import subprocess
import sys

import pytest

from compat_tests import processes
from odradek.spark_it.exactly_once.slots import MarkerError
from odradek.spark_it.exactly_once.transactions import Clients, TopicRecords, write_transaction
from odradek.spark_it.interfaces.marker import make_marker_number
from spark_it.tests.crash import transaction_attempt
from spark_it.tests.records import values

GENERATION = 29_000_000
ROWS = 2000

pytestmark = pytest.mark.side_by_side


class Attempts:
    """Processes that write transactions of one slot."""

    def __init__(self, broker, topics, name, kind):
        self.servers = broker.bootstrap_servers
        self.kind = kind
        self.target = topics.create(f"{name}-target", 2)
        self.source = topics.create(f"{name}-source")
        group = name if kind == "offsets" else f"{name}:batches"
        self._slot = (f"{name}:0", group, self.source, 0)
        self._processes = []

    def fields(self, batch, state="one"):
        of_kind = {"start": ROWS * batch, "end": ROWS * (batch + 1)}
        if self.kind == "batches":
            of_kind = {"end": make_marker_number(GENERATION, batch)}
        common = {"generation": GENERATION, "batch": batch, "is_first": batch == 0, "resets": "reset", "state": state}
        return common | of_kind

    def texts(self, batch):
        return [f"{ROWS * batch + n:08d}" for n in range(ROWS)]

    def start(self, moment, batch=0, **options):
        """Start an attempt in a process; return it when it waits at `moment`."""
        process = processes.start(
            [sys.executable, "-m", "spark_it.tests.crash.transaction_attempt"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        given = {
            "servers": self.servers,
            "topic": self.target,
            "kind": self.kind,
            "slot": self._slot,
            "moment": moment,
            "values": self.texts(batch),
            "fields": self.fields(batch, **options),
        }
        self.send(process, json.dumps(given))
        if moment != "never":
            assert process.stdout.readline() == "waiting\n"
        return process

    def send(self, process, line):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    def result(self, process):
        """Let the attempt continue, and return its outcome."""
        self.send(process, "")
        return json.loads(process.stdout.readline())

    def write(self, batch=0, **options):
        """Make an attempt in this process; return True if it wrote anything."""
        transaction = transaction_attempt.transaction_of(self.kind, self._slot, **self.fields(batch, **options))
        texts = [text.encode() for text in self.texts(batch)]
        outcome = write_transaction(
            transaction, [TopicRecords(self.target, [None] * ROWS, texts)], Clients(self.servers)
        )
        assert outcome.rows == ROWS
        return outcome.is_new

    def counts(self):
        """The numbers of committed rows and of distinct ones."""
        found = values(self.servers, self.target)
        return len(found), len(set(found))

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.fixture(params=["offsets", "batches"])
def attempts(broker, topics, unique, request):
    made = Attempts(broker, topics, f"{unique}-{request.param}", request.param)
    yield made
    made.close()


def test_killed_before_and_after_the_commit(attempts):
    attempts.start("before").kill()
    assert attempts.write(), "the records of the killed attempt count as written"
    assert attempts.counts() == (ROWS, ROWS)
    there = values(attempts.servers, attempts.target, isolation_level="read_uncommitted")
    assert len(there) == 2 * ROWS, "the killed attempt had written nothing, so the test proves nothing"
    attempts.start("after", batch=1).kill()
    assert not attempts.write(batch=1)
    assert attempts.write(batch=2)
    assert attempts.counts() == (3 * ROWS, 3 * ROWS)


def test_an_attempt_that_wakes_after_a_later_batch(attempts):
    sleeper = attempts.start("before")
    processes.freeze(sleeper.pid)
    assert attempts.write()
    assert attempts.write(batch=1)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert attempts.result(sleeper) == {"error": "FencedError"}
    assert attempts.counts() == (2 * ROWS, 2 * ROWS)
    assert not attempts.write(batch=1)


def test_an_attempt_that_wakes_while_another_one_writes(attempts):
    sleeper = attempts.start("before")
    other = attempts.start("before")
    assert attempts.result(sleeper) == {"error": "FencedError"}
    assert attempts.result(other) == {"rows": ROWS, "dead_letters": 0, "is_new": True}
    assert attempts.counts() == (ROWS, ROWS)


def test_each_attempt_overtaken_by_the_next(attempts):
    overtaken = [attempts.start("before") for _ in range(3)]
    assert attempts.write()
    assert [attempts.result(process) for process in overtaken] == [{"error": "FencedError"}] * 3
    assert attempts.counts() == (ROWS, ROWS)


def test_attempts_of_another_copy_of_the_pipeline(attempts):
    """Generation and batch are the same. The first copy that commits is the only one that writes."""
    killed, sleeper = attempts.start("before", state="two"), attempts.start("before", state="two")
    killed.kill()
    assert attempts.write()
    assert attempts.result(sleeper) == {"error": "FencedError"}
    for batch in (0, 1):
        with pytest.raises(MarkerError, match="belongs to another copy of the pipeline"):
            attempts.write(batch, state="two")
    assert attempts.write(batch=1)
    assert attempts.counts() == (2 * ROWS, 2 * ROWS)
