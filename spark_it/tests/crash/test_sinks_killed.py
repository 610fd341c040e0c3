"""Every sink, with its pipeline killed in the middle of a batch, and its last batch repeated. Twins of the tasks that
write to a database write late.

All pipelines run in one process; one of them, chosen at random, has a second driver that writes the same batches.
ODRADEK_CRASH_ROWS is the number of rows of each pipeline, ODRADEK_CRASH_KILLS the number of kills. ODRADEK_CRASH_SEED
determines the moments of the kills and the pipeline with a second driver; a failure prints the seed.
ODRADEK_COMPAT_BACKEND=kafka runs the test on Apache Kafka.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests import limits, processes
from compat_tests.apache_kafka import jars
from odradek.spark_it.state.reset import get_reached_offsets
from spark_it.tests.crash import late_twin
from spark_it.tests.crash.driver import ENDED, REFUSED, TOGETHER
from spark_it.tests.crash.sinks import DEAD_LETTERS_ONCE, SECOND_DRIVER, Numbers, Pipelines

ROWS = int(os.environ.get("ODRADEK_CRASH_ROWS", "10000"))
KILLS = int(os.environ.get("ODRADEK_CRASH_KILLS", "1"))
BATCHES = 2 * KILLS + 2
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(limits.PIPELINES_KILLED_S)


class Driver:
    """A process that runs all pipelines, and its output. The end of the context kills it, and its JVM."""

    def __init__(self, pipelines, number):
        folder = pipelines.folder
        self._pipelines = pipelines
        self._said = folder / f"driver-{number}.out"
        work = folder / "work"
        work.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "spark_it.tests.crash.driver", str(folder / f"driver-{number}.log")]
        with self._said.open("wb") as said:
            self._process = processes.start(
                [*command, *(str(pipelines.file(sink)) for sink in pipelines.sinks)],
                cwd=work,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "JAVA_HOME": str(Path(jars.java()).resolve().parent.parent),
                    "PYTHONPATH": str(ROOT),
                    "SPARK_LOCAL_DIRS": str(work),
                },
            )

    def run(self, **options):
        """Start a run of all pipelines."""
        self._process.stdin.write(f"{json.dumps(options)}\n".encode())
        self._process.stdin.flush()

    def refusals(self, timeout_s, **options):
        """Run pipelines that must be refused. Return the reason of each, by its name."""
        before = len(self._everything())
        self.run(refused=True, is_available_now=True, **options)
        self._wait_until(lambda: REFUSED in self._everything()[before:], timeout_s)
        return dict(re.findall(r"^(\S+): refused: (.*)", self._everything()[before:], re.MULTILINE))

    def wait_for_output(self, what, timeout_s, times=1):
        """Wait until the driver has printed `what` so many times."""
        self._wait_until(lambda: self._everything().count(what) >= times, timeout_s)

    def stop_in_batch(self, timeout_s):
        """Freeze the process while every pipeline is in a batch or has read everything."""
        records = self._pipelines.numbers.records

        def stopped():
            os.killpg(self._process.pid, signal.SIGSTOP)
            if all(is_in_batch(one) or has_all(one, records) for one in self._pipelines.checkpoints().values()):
                return True
            os.killpg(self._process.pid, signal.SIGCONT)
            return False

        self._wait_until(stopped, timeout_s)

    def _wait_until(self, is_so, timeout_s):
        give_up_at = time.monotonic() + timeout_s
        while not is_so():
            assert self._process.poll() is None, self._everything()
            assert time.monotonic() < give_up_at, f"not in {timeout_s} s\n{self._everything()}"
            time.sleep(0.02)

    def _everything(self):
        return self._said.read_text("utf-8", "replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()


@pytest.fixture
def pipelines(topics, postgres, unique, tmp_path):
    connectors = tmp_path / "jars"
    connectors.mkdir()
    of = (jars.spark_connector_jars(), jars.delta_jars(), jars.iceberg_jars(), jars.postgresql_jars())
    for jar in (jar for some in of for jar in some):
        (connectors / jar.name).symlink_to(jar)
    name = unique[-40:].lstrip("-")
    return Pipelines(tmp_path, name, topics, Numbers(topics, name, ROWS), postgres, connectors, BATCHES)


def doubled(pipelines, chosen):
    """Choose the pipeline that has a second driver; return its name, in a list."""
    names = [pipelines.group(chosen.choice(SECOND_DRIVER))]
    print("with a second driver:", *names)
    return names


def batch_of(found):
    return -1 if found is None or found.planned is None else found.planned.id


def is_in_batch(found):
    return found is not None and found.is_in_batch


def has_all(found, records):
    return found is not None and found.done is not None and sum(get_reached_offsets(found).values()) == records


def check(pipelines):
    """Check that each sink has each row once, and its dead letters each bad record."""
    count, bad = pipelines.numbers.count, pipelines.numbers.bad
    counts = {}
    for sink in pipelines.sinks:
        rows, dead = pipelines.rows(sink), pipelines.dead_letters(sink)
        counts[sink] = (len(rows), len(set(rows)), len(dead), len(set(dead)))
        print(f"  {sink}:", "{:,} rows, {:,} distinct; {:,} dead letters, {:,} distinct".format(*counts[sink]))
        assert set(rows) <= set(range(count)) and set(dead) <= bad, sink
    for sink, (rows, distinct, dead, distinct_dead) in counts.items():
        assert (rows, distinct, distinct_dead) == (count, count, len(bad)), sink
        assert dead == len(bad) or sink not in DEAD_LETTERS_ONCE, sink


def check_second_copy(pipelines, driver):
    """Check that each sink refuses a second copy of its pipeline, also after the first one was killed in a batch."""
    said = driver.refusals(limits.ALL_READ_S, home="second")
    assert set(said) == {pipelines.group(sink) for sink in pipelines.sinks}
    assert all(re.search(r"the \w+ sink (has|belongs)|has committed", why) for why in said.values()), said


def check_lost_markers(pipelines, driver):
    """Check that a batch is not repeated without markers, which would show whether it is written."""
    names = {sink: pipelines.group(sink) for sink in DEAD_LETTERS_ONCE}
    groups = [names["offsets"], f"{names['batches']}:batches"]
    admin = AdminClient({"bootstrap.servers": pipelines.servers})
    for future in admin.delete_consumer_groups(groups).values():
        future.result(30)
    said = driver.refusals(limits.ALL_READ_S, of=list(names.values()), rewinds=True)
    assert "the group has no offsets at all" in said[names["offsets"]], said
    assert "is gone, expired or deleted" in said[names["batches"]], said


def test_every_sink_killed_in_a_batch_and_its_last_batch_repeated(pipelines):
    seed = int(os.environ.get("ODRADEK_CRASH_SEED", random.randrange(1 << 32)))
    print(f"ODRADEK_CRASH_SEED={seed}")
    chosen = random.Random(seed)
    begun = time.monotonic()
    killed_in_batch = Counter()
    for number in range(1, KILLS + 1):
        with Driver(pipelines, number) as driver:
            twins = chosen.choice(list(late_twin.MOMENTS))
            driver.run(together=number, twins=twins, doubled=doubled(pipelines, chosen))
            driver.wait_for_output(TOGETHER, limits.ALL_IN_A_BATCH_S)
            time.sleep(chosen.uniform(0, 1))  # varies the moment of the kill; nothing is awaited
            driver.stop_in_batch(limits.ALL_IN_A_BATCH_S)
        found = pipelines.checkpoints()
        killed_in_batch.update(sink for sink, one in found.items() if is_in_batch(one))
        print(f"{time.monotonic() - begun:.0f} s: killed in", {sink: batch_of(one) for sink, one in found.items()})
    assert set(killed_in_batch) == set(pipelines.sinks), killed_in_batch
    copied_at = chosen.randrange(3)
    with Driver(pipelines, KILLS + 1) as driver:
        runs: list[dict[str, Any]] = [{"twins": chosen.choice(list(late_twin.MOMENTS))}, {"rewinds": True}]
        for times, options in enumerate(runs):
            print(options)
            if copied_at == times:
                check_second_copy(pipelines, driver)
            driver.run(is_available_now=True, doubled=doubled(pipelines, chosen), **options)
            driver.wait_for_output(ENDED, limits.ALL_READ_S, times + 1)
            driver.wait_for_output(late_twin.WROTE, 0)
            print(f"{time.monotonic() - begun:.0f} s: everything is read")
            check(pipelines)
        if copied_at == 2:
            check_second_copy(pipelines, driver)
        check_lost_markers(pipelines, driver)
        check(pipelines)
