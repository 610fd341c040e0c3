"""python -m benchmarks.security: see the package's docstring."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks import measure, report, turns
from benchmarks.fairness.ping import Delays, measure_delays
from benchmarks.measure import FULL, QUICK, ROOT, MeasurementError, Pace, Values
from benchmarks.procfs import cpu_seconds
from benchmarks.rows import Row
from benchmarks.security import brokers
from benchmarks.security.brokers import SecuredContestant
from benchmarks.security.rows import KAFKA, ROWS, SecurityRow
from benchmarks.turns import Turns

WARM_UP_S = 1.0

STARTS = 4
"""Processes of each kind, used in turn, if Odradek is measured beside itself: two of the same kind differ by up to
10 %."""


def _measure(contestant: SecuredContestant, row: Row, listener: str, pace: Pace) -> Values:
    if row.kind == "handshakes":
        return _handshakes(contestant, listener, pace)
    chosen = row._replace(load={**row.load, **contestant.load_fields(listener)})
    return measure.MEASUREMENTS[row.kind](contestant, chosen, pace)


def _handshakes(contestant: SecuredContestant, listener: str, pace: Pace) -> Values:
    fields = {
        "port": contestant.ports[listener],
        "seconds": pace.seconds,
        "security": contestant.security(listener),
    }
    delays: list[Delays] = []
    with measure_delays(contestant.broker.port, delays):
        time.sleep(WARM_UP_S)
        before_s = cpu_seconds(contestant.broker.pid)
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.security.handshakes", json.dumps(fields)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=pace.seconds + 60,
        )
        used_s = cpu_seconds(contestant.broker.pid) - before_s
    if process.returncode:
        raise MeasurementError(process.stderr.strip().splitlines()[-1])
    count = int(process.stdout)
    return {
        "handshakes_per_s": count / pace.seconds,
        "cpu_us_per_request": used_s / count * 1e6,
        "p999_ms": delays[0].p999_ms,
    }


def _run(rows: Sequence[SecurityRow], beside: str, rounds: int, pace: Pace) -> Turns:
    """Measure the rows for which `beside` is the other broker."""
    taken = Turns()
    starts = 1 if beside == KAFKA else STARTS
    with ExitStack() as stack:
        contestants = {
            name: [stack.enter_context(brokers.start(name)) for _ in range(starts)] for name in (beside, "odradek")
        }
        for row, listener, _ in rows:
            for name, started in contestants.items():
                warm_up = pace._replace(seconds=pace.warm_up_seconds)
                for one in started:
                    taken.attempt(name, f"{row.name} (warm-up)", partial(_measure, one, row, listener, warm_up))
            in_turn = {name: itertools.cycle(started) for name, started in contestants.items()}
            taken.take(
                row,
                {name: partial(_measure_next, started, row, listener, pace) for name, started in in_turn.items()},
                rounds * starts,
            )
    return taken


def _measure_next(started: Iterator[SecuredContestant], row: Row, listener: str, pace: Pace) -> Values:
    return _measure(next(started), row, listener, pace)


def _choose(only: Sequence[str] | None, quick: bool) -> Mapping[str, list[SecurityRow]]:
    """Return the requested rows, by the other broker."""
    names = {row.name for row in turns.choose_rows([one.row for one in ROWS], only, quick)}
    chosen: dict[str, list[SecurityRow]] = {}
    for one in ROWS:
        if one.row.name in names:
            chosen.setdefault(one.beside, []).append(one)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.security", description="The cost of TLS, SASL and ACLs."
    )
    parser.add_argument("--quick", action="store_true", help="shorter windows, 3 rounds")
    parser.add_argument("--only", action="append", metavar="NAME", help="a row, or a prefix; may be repeated")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    arguments = parser.parse_args()
    if arguments.list:
        print(turns.list_rows([one.row for one in ROWS]))
        return 0
    pace = QUICK if arguments.quick else FULL
    failed = False
    for beside, rows in _choose(arguments.only, arguments.quick).items():
        taken = _run(rows, beside, turns.count_rounds(arguments), pace)
        print(report.table(taken.results, [one.row for one in rows], taken.failures, beside), end="\n\n")
        failed = failed or bool(taken.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
