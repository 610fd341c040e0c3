"""A consumer group member in a separate process, so that it can leave and be killed.

    python -m compat_tests.clients.member <library> <bootstrap> <topic> <options as JSON>

It prints one JSON line for each event: {"event": "assigned" | "revoked" | "lost" | "records", ...}, of records after it
has committed them; it leaves the group and ends when its input ends. With ODRADEK_COMPAT_MEMBER_LOG=DEBUG the library's
log is printed.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from compat_tests import limits, processes
from compat_tests.clients import load
from compat_tests.clients.common import ClientError, Consumer, ConsumerOptions, Partition, wait_until

ROOT = Path(__file__).parents[2]


class Member:
    """The test's end: starts the process and reads its events. A context manager that kills the process at the end."""

    def __init__(self, library: str, bootstrap: str, topic: str, options: Mapping[str, Any]) -> None:
        self.name = options.get("client_id", "member")
        self.events: list[dict[str, Any]] = []
        arguments = ["-m", "compat_tests.clients.member", library, bootstrap, topic, json.dumps(options)]
        self._process = processes.start(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    @property
    def changes(self) -> list[tuple[str, frozenset[Partition]]]:
        """Return the (event, partitions) pairs of the library's rebalance listener, except for empty ones."""
        reported = [
            (e["event"], frozenset(map(tuple, e["partitions"]))) for e in list(self.events) if "partitions" in e
        ]
        return [(what, partitions) for what, partitions in reported if partitions]

    @property
    def assignment(self) -> frozenset[Partition]:
        held: frozenset[Partition] = frozenset()
        for what, partitions in self.changes:
            held = held | partitions if what == "assigned" else held - partitions
        return held

    @property
    def values(self) -> list[str]:
        return [value for e in list(self.events) if e["event"] == "records" for value in e["values"]]

    def wait_for_assignment(self, count: int, timeout_s: float = limits.CONDITION_S) -> frozenset[Partition]:
        wait_until(lambda: len(self.assignment) == count, timeout_s, f"{self.name} holds {count}: {self.events}")
        return self.assignment

    def leave(self) -> None:
        """Close the consumer by the library's method and wait for the end of the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(limits.CONDITION_S)

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()


def main() -> None:
    library, bootstrap, topic, options = sys.argv[1:]
    if level := os.environ.get("ODRADEK_COMPAT_MEMBER_LOG"):
        logging.basicConfig(level=level, format="%(asctime)s %(process)d %(name)s %(message)s")
    is_leaving = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        is_leaving.set()

    uncommitted: dict[Partition, tuple[list[str], int]] = {}

    def report(what: str, partitions: list[Partition]) -> None:
        if what != "assigned":
            # Their records come again, to this member or to another one.
            for partition in partitions:
                uncommitted.pop(partition, None)
        print(json.dumps({"event": what, "partitions": partitions}), flush=True)

    threading.Thread(target=listen, daemon=True).start()
    with load(library).Consumer(bootstrap, ConsumerOptions(**json.loads(options))) as consumer:
        consumer.subscribe([topic], report)
        while not is_leaving.is_set():
            for record in consumer.poll(0.1):
                partition = (record.topic, record.partition)
                values, _ = uncommitted.get(partition, ([], 0))
                uncommitted[partition] = ([*values, (record.value or b"").decode()], record.offset + 1)
            found = dict(uncommitted)
            if found and is_committed(consumer, {partition: (end, "") for partition, (_, end) in found.items()}):
                uncommitted.clear()
                every = [value for values, _ in found.values() for value in values]
                print(json.dumps({"event": "records", "values": every}), flush=True)


def is_committed(consumer: Consumer, ends: Mapping[Partition, tuple[int, str]]) -> bool:
    """Commit offsets; return False if the broker or the library refuses it, as during a rebalance."""
    try:
        consumer.commit(ends)
    except ClientError as error:
        print(f"the commit is repeated: {error}", file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
