"""python -m benchmarks: see the package's docstring."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks import brokers, measure, report, turns
from benchmarks.measure import FULL, QUICK, Contestant, Pace
from benchmarks.rows import ROWS, Row
from benchmarks.turns import Turns

IDLE_S = 3.0
ONCE = frozenset({"memory"})


class BenchmarkSession:
    """All chosen rows against all chosen brokers, one turn each, round by round."""

    def __init__(self, names: Sequence[str], rows: Sequence[Row], rounds: int, pace: Pace) -> None:
        self.names = names
        self.rows = rows
        self.rounds = rounds
        self.pace = pace
        self.turns = Turns()

    def run(self) -> None:
        # Starts are measured while no other broker takes processor time.
        others = [row for row in self.rows if row.kind not in measure.STARTS]
        for row in self.rows:
            if row.kind in measure.STARTS:
                begin = measure.STARTS[row.kind]
                self.turns.take(row, {n: partial(begin, n, row, self.pace) for n in self.names}, self.rounds)
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
                rounds = 1 if row.kind in ONCE else self.rounds
                self.turns.take(
                    row, {n: partial(measurement, c, row, self.pace) for n, c in contestants.items()}, rounds
                )

    def _warm_up(self, row: Row, contestants: Mapping[str, Contestant]) -> None:
        for name, contestant in contestants.items():
            self.turns.attempt(name, f"{row.name} (warm-up)", partial(measure.warm_up, contestant, row, self.pace))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Odradek and Apache Kafka 4.3.0 side by side."
    )
    turns.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.list:
        print(turns.list_rows(ROWS))
        return 0
    pace = QUICK if arguments.quick else FULL
    other = "baseline" if arguments.baseline else "kafka"
    if arguments.baseline:
        brokers.add_baseline(arguments.baseline.resolve())
    names = [other, "odradek"] if arguments.broker == "both" else [arguments.broker]
    before = turns.environment()
    rows = turns.choose_rows(ROWS, arguments.only, arguments.quick)
    session = BenchmarkSession(names, rows, turns.count_rounds(arguments), pace)
    taken = session.turns
    try:
        session.run()
    except RuntimeError as error:
        taken.failures.append(str(error))
    print(report.table(taken.results, session.rows, taken.failures, other))
    if arguments.json:
        document = {"environment": before, "rounds": taken.results, "failures": taken.failures}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 1 if taken.failures else 0


if __name__ == "__main__":
    sys.exit(main())
