"""python -m benchmarks.cluster: see the package's docstring."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks import report, turns
from benchmarks.cluster import catch_up, clusters, failover, load, partitions
from benchmarks.cluster.contestant import ClusterContestant
from benchmarks.cluster.rows import ROWS
from benchmarks.measure import FULL, QUICK, WARM_UP_ROWS, Pace, Values
from benchmarks.rows import Row
from benchmarks.turns import Turns

MEASUREMENTS: Mapping[str, Callable[[ClusterContestant, Row, Pace], Values]] = {
    "produce": load.produce,
    "requests": load.requests,
    "paced": load.requests,
    "failover": failover.failover,
    "failover_controller": failover.failover_of_controller,
    "partitions": partitions.partitions,
    "catch_up": catch_up.catch_up,
}
WARMED = frozenset({"produce", "requests", "paced"})
FULL_WARM_UP_S, QUICK_WARM_UP_S = 15.0, 6.0


def _run(
    factories: Mapping[str, Callable[[], clusters.BenchmarkCluster]], rows: Sequence[Row], rounds: int, pace: Pace
) -> Turns:
    taken = Turns()
    with ExitStack() as stack:
        contestants = {name: ClusterContestant(stack.enter_context(start()), name) for name, start in factories.items()}

        def warm_up(row: Row) -> None:
            for name, contestant in contestants.items():
                taken.attempt(name, f"{row.name} (warm-up)", partial(load.warm_up, contestant, row, pace))

        for row in WARM_UP_ROWS:
            if row.kind in WARMED:
                warm_up(row)
        for row in rows:
            if row.kind in WARMED:
                warm_up(row)
            measurement = MEASUREMENTS[row.kind]
            taken.take(row, {name: partial(measurement, one, row, pace) for name, one in contestants.items()}, rounds)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description="Clusters of Odradek and Apache Kafka 4.3.0 side by side."
    )
    turns.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.list:
        print(turns.list_rows(ROWS))
        return 0
    factories = clusters.make_factories(arguments.baseline and arguments.baseline.resolve())
    other = next(iter(factories))
    if arguments.broker != "both":
        factories = {arguments.broker: factories[arguments.broker]}
    rows = turns.choose_rows(ROWS, arguments.only, arguments.quick)
    before = turns.environment()
    warm_up_s = QUICK_WARM_UP_S if arguments.quick else FULL_WARM_UP_S
    pace = (QUICK if arguments.quick else FULL)._replace(warm_up_seconds=warm_up_s)
    taken = _run(factories, rows, turns.count_rounds(arguments), pace)
    print(report.table(taken.results, rows, taken.failures, other))
    if arguments.json:
        document = {"environment": before, "rounds": taken.results, "failures": taken.failures}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 1 if taken.failures else 0


if __name__ == "__main__":
    sys.exit(main())
