"""Read, process, write, with kills: the output equals the input exactly.

Kafka's TransactionalMessageCopier (the Java client) and a copier on librdkafka each copy a topic partition by
partition, records and offsets in one transaction. The broker and the copiers are killed at random; some copiers are
only paused, and resume after another has taken over their transactional id.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka import tools
from compat_tests.clients import load
from compat_tests.clients.common import wait_until
from compat_tests.kill.load import read_whole
from compat_tests.kill.writers import LIBRDKAFKA

pytestmark = pytest.mark.usefixtures("kafka_jars")

INPUT = "input"
PARTITIONS = 2
RECORDS = 2000
TRANSACTION_SIZE = 10
EVENTS = int(os.environ.get("ODRADEK_KILL_ROUNDS", "4"))


class Copier:
    """A copier process that is restarted until it has ended successfully.

    `ready` is the text that the process prints once it has fenced all others with its transactional id.
    """

    def __init__(self, name: str, command: list[str], work: Path, ready: str) -> None:
        self.name = name
        self.is_done = False
        self.starts = 0
        self._command = command
        self._work = work
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped: list[subprocess.Popen[bytes]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        self._thread.start()

    def kill(self) -> None:
        if (process := self._process) is not None:
            process.kill()

    def stop_for_a_while(self) -> None:
        """Pause the process, as in a long pause of its machine, and start another one in its place.

        Only after it has fenced its predecessors: otherwise it would fence its successor when it resumes.
        """
        if (process := self._process) is not None and self._ready in self.output():
            process.send_signal(signal.SIGSTOP)
            self._stopped.append(process)
            self._process = None

    def wake(self) -> None:
        """Resume the paused processes: as zombies, which must not be able to commit anything.

        Only after their successor has fenced them: TransactionalMessageCopier fetches the committed offset first, and
        would copy again what a predecessor commits in between.
        """
        if self._process is not None and self._ready in self.output():
            for process in self._stopped:
                process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def output(self) -> str:
        """Return the output of the latest process."""
        path = self._work / f"{self.name}.{self.starts}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def _run(self) -> None:
        while not self.is_done and not self._closing.is_set():
            self.starts += 1
            with open(self._work / f"{self.name}.{self.starts}.out", "wb") as output:
                process = processes.start(
                    self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            self._process = process
            while self._process is process and process.poll() is None and not self._closing.is_set():
                time.sleep(0.02)
            self.is_done = process.poll() == 0
        for each in (*self._stopped, process):
            each.kill()
            each.wait()


def copiers(bootstrap: str, work: Path) -> list[Copier]:
    made = []
    for kind in ("java", "librdkafka"):
        for partition in range(PARTITIONS):
            name = f"{kind}-{partition}"
            arguments = ["--broker-list", bootstrap, "--input-topic", INPUT, "--input-partition", str(partition)]
            arguments += ["--output-topic", f"output-{kind}", "--consumer-group", name, "--transactional-id", name]
            arguments += ["--transaction-size", str(TRANSACTION_SIZE)]
            if kind == "java":
                more = ["--enable-random-aborts", "--use-group-metadata", "--transaction-timeout", "20000"]
                command = tools.command(tools.TRANSACTIONAL_MESSAGE_COPIER, [*arguments, *more])
            else:
                command = [sys.executable, "-m", "compat_tests.kill.copier", *arguments]
            made.append(Copier(name, command, work, "ProcessLoop" if kind == "java" else "initialised"))
    return made


def write_input(bootstrap: str) -> dict[int, list[bytes]]:
    producer = confluent_kafka.Producer({**LIBRDKAFKA, "bootstrap.servers": bootstrap, "enable.idempotence": True})
    written = {p: [b"%d" % n for n in range(RECORDS)] for p in range(PARTITIONS)}
    for partition, values in written.items():
        for value in values:
            producer.produce(INPUT, value, value, partition)
            producer.poll(0)
    assert producer.flush(limits.ANSWERS_S) == 0
    return written


def unfinished(running: list[Copier]) -> list[Copier]:
    return [copier for copier in running if not copier.is_done]


def disturb(broker: Any, running: list[Copier], chance: random.Random) -> None:
    """Kill the broker or a copier, or pause a copier, until all is copied or the limit of disturbances is reached."""
    for _ in range(EVENTS):
        time.sleep(chance.uniform(0.3, 1.5))  # the test is about events during this time
        if not (left := unfinished(running)):
            return
        for copier in running:
            copier.wake()
        what = chance.random()
        if what < 0.5:
            broker.restart(clean=False)
        elif what < 0.8:
            chance.choice(left).kill()
        else:
            chance.choice(left).stop_for_a_while()


@pytest.mark.timeout(limits.KILLS_S)
@pytest.mark.parametrize("transaction_version", [2, 1])
def test_the_output_equals_the_input(
    start_broker: Callable[..., Any], tmp_path: Path, transaction_version: int
) -> None:
    seed = os.environ.get("ODRADEK_KILL_SEED") or secrets.token_hex(4)
    broker = start_broker({"log.roll.ms": "3000"}, directory=tmp_path / "broker")
    bootstrap = broker.bootstrap_servers
    with load("kafka_python").Admin(bootstrap) as admin:
        for topic in (INPUT, "output-java", "output-librdkafka"):
            admin.create_topic(topic, PARTITIONS)
        if transaction_version != 2:
            set_transaction_version(admin._admin, transaction_version)
    written = write_input(bootstrap)
    running = copiers(bootstrap, tmp_path)
    try:
        for copier in running:
            copier.start()
        disturb(broker, running, random.Random(seed))
        wait_until(
            lambda: all(c.is_done for c in running), limits.COPIED_S, lambda: [c.name for c in running if not c.is_done]
        )
        for kind in ("java", "librdkafka"):
            log = read_whole(bootstrap, f"output-{kind}", PARTITIONS, "read_committed")
            copied = {partition: [record.value for record in records] for partition, records in log.items()}
            assert copied == written, kind
    finally:
        for copier in running:
            copier.close()
        print(f"seed: ODRADEK_KILL_SEED={seed}\nstarts: {[(c.name, c.starts) for c in running]}")
        for copier in running:
            print(f"{copier.name} ends:\n", "\n".join(copier.output().splitlines()[-8:]))
        print("the broker's log ends:\n", "\n".join(broker.log_text().splitlines()[-40:]))


def set_transaction_version(admin: Any, version: int) -> None:
    admin.update_features({"transaction.version": ("SAFE_DOWNGRADE", version)})
