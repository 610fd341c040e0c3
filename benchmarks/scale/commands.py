"""The commands that list and describe. `own` is the CPU time beyond that of `odradek --version`.

Modules are compiled before, as those of an installed package are.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.scale.filling import PROPERTIES, WIDE, Size, fill, name_of
from benchmarks.scale.pages import NOTHING
from benchmarks.scale.timing import Times, summarize
from benchmarks.tools import odradek, run
from odradek.testing import OdradekBroker

LIMIT_MS = 300.0
ONE = name_of(0)
COMMANDS = (
    "topic list",
    f"topic describe {ONE}",
    f"topic describe {ONE}x",
    f"topic describe {WIDE}",
    "partition list",
    f"partition offsets {ONE}",
    "group list",
    f"group describe {ONE}",
    f"group describe {ONE}x",
    f"group describe {WIDE}",
    "group lag",
    f"config describe topic {ONE}",
    "broker list",
    "broker disks",
    "cluster status",
    "cluster describe",
    "transaction list",
    "acl list",
    "user list",
    "quota list",
    "doctor",
)


def measure(topics: int, rounds: int) -> None:
    """Print the time of each command."""
    size = Size(topics, topics, topics)
    with OdradekBroker(PROPERTIES) as broker, _compiled_modules():
        fill(broker, NOTHING, size)
        server = broker.bootstrap_servers
        _, start_ms = _measure([sys.executable, "-m", "odradek", "--version"], rounds)
        print(f"commands with {size}: ms; the start of a process takes {start_ms:.0f} of CPU\n")
        print(f"{'':36} {'median':>9} {'max':>9} {'CPU':>7} {'own':>7}")
        for name in COMMANDS:
            times, cpu_ms = _measure(odradek(server, *name.split()), rounds)
            mark = "  over the target" if times.max_ms >= LIMIT_MS else ""
            print(f"{name:36} {times} {cpu_ms:7.1f} {cpu_ms - start_ms:7.1f}{mark}", flush=True)


@contextmanager
def _compiled_modules() -> Iterator[None]:
    """Let the processes that are started keep compiled modules in a temporary directory."""
    before = os.environ.copy()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _measure(command: list[str], rounds: int) -> tuple[Times, float]:
    """Return the times of a command, and the median of its CPU time in ms. The first run compiles modules."""
    run(command, is_checked=False)
    found = [run(command, is_checked=False) for _ in range(rounds)]
    return summarize([one.wall_s * 1000 for one in found]), median(one.cpu_s * 1000 for one in found)
