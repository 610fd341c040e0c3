"""The commands that list and describe. `own` is the time beyond that of `odradek --version`, which imports little."""

from __future__ import annotations

import sys
from statistics import median

from benchmarks.scale.filling import PROPERTIES, WIDE, Size, fill, name_of
from benchmarks.scale.pages import NOTHING
from benchmarks.scale.timing import summarize
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
    with OdradekBroker(PROPERTIES) as broker:
        fill(broker, NOTHING, size)
        server = broker.bootstrap_servers
        start_ms = median(_run_ms([sys.executable, "-m", "odradek", "--version"]) for _ in range(rounds))
        print(f"commands with {size}: ms; the start of a process takes {start_ms:.0f}\n")
        print(f"{'':36} {'median':>9} {'max':>9} {'own':>7}")
        for name in COMMANDS:
            times = summarize([_run_ms(odradek(server, *name.split())) for _ in range(rounds)])
            mark = "  over the target" if times.max_ms >= LIMIT_MS else ""
            print(f"{name:36} {times} {times.median_ms - start_ms:7.1f}{mark}", flush=True)


def _run_ms(command: list[str]) -> float:
    return run(command, is_checked=False).wall_s * 1000
