"""python -m benchmarks.fairness: see the package's docstring."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import brokers
from benchmarks.brokers import RestartableBroker
from benchmarks.fairness.loads import LEAST_ACT_S, LOADS, FairnessLoad
from benchmarks.fairness.ping import Delays, measure_delays

SETTLE_S = 1.0
TARGET_MS = 20.0


def _act(broker: RestartableBroker, load: FairnessLoad) -> float:
    """Run a load; return its duration in seconds."""
    begin_s = time.monotonic()
    load.act(broker)
    while load.repeats and time.monotonic() - begin_s < LEAST_ACT_S:
        load.act(broker)
    return time.monotonic() - begin_s


def measure(name: str, load: FairnessLoad) -> Delays:
    """Measure one load against a new broker."""
    delays: list[Delays] = []
    with brokers.BROKERS[name]() as broker:
        with measure_delays(broker.port, delays):
            # Connections and code are warm before the load.
            time.sleep(SETTLE_S)
        load.prepare(broker)
        time.sleep(SETTLE_S)
        delays.clear()
        with measure_delays(broker.port, delays):
            seconds = _act(broker, load)
    print(f"  {name:8} {load.name:20} {seconds:6.1f} s  {delays[0]}", file=sys.stderr, flush=True)
    return delays[0]


def table(names: Sequence[str], rows: Sequence[tuple[FairnessLoad, dict[str, list[Delays]]]]) -> str:
    """Return, for each load, the median of the rounds' p99.9 and the longest delay, in ms."""
    width = max(len(load.title) for load, _ in rows)
    head = "".join(f"  {brokers.TITLES[name] + ' p99.9':>20} {'longest':>9}" for name in names)
    lines = [f"{'delay in ms':{width}}{head}"]
    for load, delays in rows:
        cells = ""
        for name in names:
            found = delays.get(name)
            cells += (
                f"  {_median_p999_ms(found):20.1f} {max(one.max_ms for one in found):9.1f}"
                if found
                else f"  {'failed':>20} {'':>9}"
            )
        missed = "odradek" in delays and _median_p999_ms(delays["odradek"]) >= TARGET_MS
        lines.append(f"{load.title:{width}}{cells}{'  over the target' if missed else ''}")
    return "\n".join(lines)


def _median_p999_ms(rounds: Sequence[Delays]) -> float:
    return median(one.p999_ms for one in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description="Delays of other clients.")
    parser.add_argument("--only", action="append", metavar="NAME", help="a load; may be repeated")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--broker", choices=("both", "kafka", "odradek"), default="both")
    parser.add_argument("--baseline", type=Path, metavar="DIRECTORY", help="beside another checkout of Odradek")
    parser.add_argument("--list", action="store_true", help="print the names of the loads and exit")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{load.name:20} {load.title}" for load in LOADS))
        return 0
    chosen = [load for load in LOADS if not arguments.only or load.name in arguments.only]
    other = "kafka"
    if arguments.baseline:
        brokers.add_baseline(arguments.baseline.resolve())
        other = "baseline"
    names = [other, "odradek"] if arguments.broker == "both" else [arguments.broker]
    rows: list[tuple[FairnessLoad, dict[str, list[Delays]]]] = []
    failures = 0
    for load in chosen:
        rows.append((load, {}))
        for name in names * arguments.rounds:
            try:
                rows[-1][1].setdefault(name, []).append(measure(name, load))
            except Exception as error:
                failures += 1
                print(f"  {name:8} {load.name}: {type(error).__name__}: {error}", file=sys.stderr)
    print(table(names, rows))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
