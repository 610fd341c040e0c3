"""The tools: `odradek record` beside kcat, and the times of commands and of the console's pages.

    python -m benchmarks.tools [--records N] [--topics N] [--groups N] [--rounds N]

Records are lines of about 100 bytes in three partitions. Each round runs kcat and odradek in turn. The times of
commands include the start of the process. A page is requested first after its data expired in the console's cache.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import wire
from odradek.testing import OdradekBroker

PARTITIONS: Final = 3
CACHE_S: Final = 11.0
"""Longer than the console keeps data."""

COMMANDS: Final = (
    "topic list",
    "topic describe bench-0000",
    "partition list",
    "group list",
    "group lag",
    "config describe topic bench-0000",
    "broker list",
    "broker disks",
    "cluster status",
    "cluster describe",
    "transaction list",
    "user list",
    "quota list",
    "doctor",
)
PAGES: Final = (
    "",
    "topics",
    "topics/bench-0000",
    "topics/bench-0000/records",
    "groups",
    "group?name=bench-0000",
    "transactions",
    "users",
    "quotas",
)


class Used(NamedTuple):
    """The time of a process, and the CPU time of it."""

    wall_s: float
    cpu_s: float


def run(command: Sequence[str], source: Path | None = None, *, is_checked: bool = True) -> Used:
    """Run a program without output. Raises CalledProcessError for a failure if `is_checked`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.monotonic()
    with open(source or os.devnull, "rb") as stdin:
        errors = None if is_checked else subprocess.DEVNULL
        subprocess.run(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=errors, check=is_checked)
    wall_s = time.monotonic() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def odradek(server: str, *arguments: str) -> list[str]:
    """Return a command line of odradek."""
    return [sys.executable, "-m", "odradek", *arguments, "--bootstrap-server", server]


def make_record_rows(server: str) -> Mapping[str, tuple[list[str], list[str]]]:
    """Return the commands of kcat and odradek by the names of the rows; a row with `produce` reads the lines."""

    def consume(kcat: Sequence[str], own: Sequence[str]) -> tuple[list[str], list[str]]:
        topic = "bench-records"
        base = ["kcat", "-b", server, "-C", "-t", topic, "-o", "beginning", "-e", "-q"]
        return [*base, *kcat], odradek(server, "record", "consume", topic, *own)

    return {
        "produce": (
            ["kcat", "-b", server, "-P", "-t", "bench-kcat"],
            odradek(server, "record", "produce", "bench-odradek"),
        ),
        "consume": consume([], []),
        "consume with keys": consume(["-K", ":"], ["--key-separator", ":"]),
        "consume as JSON": consume(["-J"], ["--json"]),
    }


def measure_records(server: str, lines: Path, rounds: int) -> None:
    """Print the throughput of odradek as a ratio of kcat's."""
    for topic in ("records", "kcat", "odradek"):
        run(odradek(server, "topic", "create", f"bench-{topic}", "--partitions", str(PARTITIONS)))
    run(["kcat", "-b", server, "-P", "-t", "bench-records"], lines)
    print("row                   throughput (rounds)    CPU")
    for name, commands in make_record_rows(server).items():
        source = lines if name == "produce" else None
        taken: list[list[Used]] = [[], []]
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                taken[which].append(run(commands[which], source))
        kcat, own = taken
        ratios = sorted(theirs.wall_s / ours.wall_s for theirs, ours in zip(kcat, own, strict=True))
        cpu = statistics.median(ours.cpu_s / theirs.cpu_s for theirs, ours in zip(kcat, own, strict=True))
        print(f"{name:20}  {statistics.median(ratios):5.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})     {cpu:5.2f}")


def measure_times(names: Sequence[str], measure: Callable[[str], float], rounds: int) -> None:
    """Print the median and the longest time of each name."""
    for name in names:
        times_ms = sorted(measure(name) * 1000 for _ in range(rounds))
        print(f"{name or '/':36}  {statistics.median(times_ms):5.0f} ms, at most {times_ms[-1]:5.0f} ms")


@contextmanager
def open_console(server: str, *options: str) -> Iterator[str]:
    """Start a console and return its address."""
    command = odradek(server, "console", "--listen", "127.0.0.1:0", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        try:
            assert found is not None
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)


def measure_page(url: str) -> float:
    """Return the time of a request for a page."""
    began_s = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as response:
        response.read()
    return time.monotonic() - began_s


def measure_expired_page(url: str) -> float:
    """Return the time of a request for a page whose data must be read again."""
    time.sleep(CACHE_S)
    return measure_page(url)


def fill(broker: OdradekBroker, topics: int, groups: int) -> None:
    """Create topics, and groups that have committed offsets in them."""
    with wire.Admin(broker.port) as admin:
        for number in range(topics):
            admin.create_topic(f"bench-{number:04}", PARTITIONS)
        for number in range(groups):
            admin.commit_offset(f"bench-{number:04}", f"bench-{number % topics:04}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools", description="The command line and the console.")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if shutil.which("kcat") is None:
        parser.exit(1, "kcat is not installed (Debian: apt-get install kcat)\n")
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        with lines.open("wb") as file:
            file.writelines(b"value-%08d-%s\n" % (number, b"x" * 85) for number in range(arguments.records))
        with OdradekBroker({}) as broker:
            measure_records(broker.bootstrap_servers, lines, arguments.rounds)
    with OdradekBroker({}) as broker:
        server = broker.bootstrap_servers
        fill(broker, arguments.topics, arguments.groups)
        print(f"\ncommands, {arguments.topics:,} topics, {arguments.groups:,} groups")
        measure_times(COMMANDS, lambda name: run(odradek(server, *name.split())).wall_s, arguments.rounds)
        with open_console(server) as url:
            print("\npages of the console")
            measure_times(PAGES, lambda page: measure_expired_page(url + page), min(arguments.rounds, 3))
    return 0


if __name__ == "__main__":
    sys.exit(main())
