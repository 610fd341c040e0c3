"""The order in which the contestants are measured, and the results and failures of all turns."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.measure import Values
from benchmarks.rows import Row

FULL_ROUNDS, QUICK_ROUNDS = 5, 3
T = TypeVar("T")


class Turns:
    """Runs the turns of rows, and collects values by row and contestant, and failures."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, list[Values]]] = {}
        self.failures: list[str] = []

    def take(self, row: Row, turns: Mapping[str, Callable[[], Values]], rounds: int) -> None:
        """Run the turn of each contestant, `rounds` times."""
        names = list(turns)
        for number in range(rounds):
            # A B, then B A: neither contestant always follows the other.
            for name in names if number % 2 == 0 else reversed(names):
                values = self.attempt(name, row.name, turns[name])
                if values is not None:
                    self.results.setdefault(row.name, {}).setdefault(name, []).append(values)

    def attempt(self, name: str, what: str, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; after an exception record a failure and return None."""
        print(f"  {name:8} {what}", file=sys.stderr, flush=True)
        try:
            return work()
        except Exception as error:
            failure = f"{what} against {name}: {type(error).__name__}: {error}"
            if failure not in self.failures:
                self.failures.append(failure)
            print(f"  failed: {failure}", file=sys.stderr)
            return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all tables of rows have."""
    parser.add_argument("--quick", action="store_true", help="fewer rows, shorter windows, 3 rounds")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="a row, or a prefix of several rows' names; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help=f"default: {FULL_ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--broker", choices=("both", "kafka", "odradek"), default="both")
    parser.add_argument(
        "--baseline", type=Path, metavar="DIRECTORY", help="beside another checkout of Odradek, not Apache Kafka"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all raw values to FILE")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")


def count_rounds(arguments: argparse.Namespace) -> int:
    """Return the number of rounds that the arguments request."""
    return int(arguments.rounds or (QUICK_ROUNDS if arguments.quick else FULL_ROUNDS))


def choose_rows(rows: Sequence[Row], only: Sequence[str] | None, quick: bool) -> list[Row]:
    """Return the rows that the arguments request. Exits if one does not exist."""
    if not only:
        return [row for row in rows if row.in_quick or not quick]
    names = [row.name for row in rows]
    unknown = [name for name in only if not any(known.startswith(name) for known in names)]
    if unknown:
        sys.exit(f"no such row: {', '.join(unknown)}; there are: {', '.join(names)}")
    exact = [name for name in only if name in names]
    prefixes = tuple(name for name in only if name not in names)
    return [row for row in rows if row.name in exact or (prefixes and row.name.startswith(prefixes))]


def list_rows(rows: Sequence[Row]) -> str:
    """Return a line for each row."""
    return "\n".join(f"{row.name:20} {row.title}" for row in rows)


def environment() -> dict[str, object]:
    """Describe the machine, for the JSON."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }
