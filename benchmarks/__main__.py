"""python -m benchmarks: see the package's docstring."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks import brokers, measure, report
from benchmarks.measure import FULL, QUICK, Contestant, Pace, Values
from benchmarks.rows import BY_NAME, ROWS, Row

FULL_ROUNDS, QUICK_ROUNDS = 5, 3
IDLE_S = 3.0
ONCE = frozenset({"memory"})
T = TypeVar("T")


class Session:
    """All chosen rows against all chosen brokers, one turn each, round by round."""

    def __init__(self, names: Sequence[str], rows: Sequence[Row], rounds: int, pace: Pace) -> None:
        self.names = names
        self.rows = rows
        self.rounds = rounds
        self.pace = pace
        self.results: dict[str, dict[str, list[Values]]] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        # Starts are measured while no other broker takes processor time.
        others = [row for row in self.rows if row.kind not in measure.STARTS]
        for row in self.rows:
            if row.kind in measure.STARTS:
                begin = measure.STARTS[row.kind]
                self._take_turns(row, {name: partial(begin, name, row, self.pace) for name in self.names})
        if not others:
            return
        with contextlib.ExitStack() as stack:
            contestants = {}
            for name in self.names:
                contestants[name] = Contestant(stack.enter_context(brokers.BROKERS[name]()), name)
                contestants[name].observe_idle(IDLE_S)
            for warm_row in measure.WARM_UP_ROWS:
                self._warm_up(warm_row, contestants)
            for row in sorted(others, key=lambda row: row.kind in ONCE):
                if row.kind in measure.LOADS:
                    self._warm_up(row, contestants)
                measurement = measure.MEASUREMENTS[row.kind]
                self._take_turns(row, {n: partial(measurement, c, row, self.pace) for n, c in contestants.items()})

    def _warm_up(self, row: Row, contestants: Mapping[str, Contestant]) -> None:
        for name, contestant in contestants.items():
            self._attempt(name, f"{row.name} (warm-up)", partial(measure.warm_up, contestant, row, self.pace))

    def _take_turns(self, row: Row, turns: Mapping[str, Callable[[], Values]]) -> None:
        names = list(turns)
        for turn in range(1 if row.kind in ONCE else self.rounds):
            # A B, then B A: neither broker always follows the other.
            for name in names if turn % 2 == 0 else reversed(names):
                values = self._attempt(name, row.name, turns[name])
                if values is not None:
                    self.results.setdefault(row.name, {}).setdefault(name, []).append(values)

    def _attempt(self, name: str, what: str, work: Callable[[], T]) -> T | None:
        print(f"  {name:8} {what}", file=sys.stderr, flush=True)
        try:
            return work()
        except Exception as error:
            failure = f"{what} against {name}: {type(error).__name__}: {error}"
            if failure not in self.failures:
                self.failures.append(failure)
            print(f"  failed: {failure}", file=sys.stderr)
            return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Odradek and Apache Kafka 4.3.0 side by side."
    )
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
    return parser.parse_args()


def _chosen_rows(only: Sequence[str] | None, quick: bool) -> list[Row]:
    if not only:
        return [row for row in ROWS if row.in_quick or not quick]
    unknown = [name for name in only if not any(known.startswith(name) for known in BY_NAME)]
    if unknown:
        sys.exit(f"no such row: {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    exact = [name for name in only if name in BY_NAME]
    prefixes = tuple(name for name in only if name not in BY_NAME)
    return [row for row in ROWS if row.name in exact or (prefixes and row.name.startswith(prefixes))]


def environment() -> dict[str, object]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def main() -> int:
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{row.name:20} {row.title}" for row in ROWS))
        return 0
    pace = QUICK if arguments.quick else FULL
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else FULL_ROUNDS)
    other = "baseline" if arguments.baseline else "kafka"
    if arguments.baseline:
        brokers.add_baseline(arguments.baseline.resolve())
    names = [other, "odradek"] if arguments.broker == "both" else [arguments.broker]
    before = environment()
    session = Session(names, _chosen_rows(arguments.only, arguments.quick), rounds, pace)
    try:
        session.run()
    except RuntimeError as error:
        session.failures.append(str(error))
    print(report.table(session.results, session.rows, session.failures, other))
    if arguments.json:
        document = {"environment": before, "rounds": session.results, "failures": session.failures}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
