"""The pipelines of `odradek pipeline` beside plain PySpark, and on Odradek beside Apache Kafka, in one run.

    python -m benchmarks.pipelines                  1,000,000 records a turn, 5 rounds
    python -m benchmarks.pipelines --quick          250,000 records, 3 rounds
    python -m benchmarks.pipelines --only files     rows by name or by a prefix of it; `--list` prints the names

docs/benchmarks.md explains the table. pipeline_turns.py has the work of one turn, pipeline_data.py its input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import brokers
from benchmarks.measure import Contestant, Values
from benchmarks.pipeline_turns import NONE, REWRITING, PipelineSetup
from benchmarks.turns import environment
from compat_tests.apache_kafka import jars
from spark_it.tests.postgres import PostgreSQL

BATCHES = 5
FULL_RECORDS, QUICK_RECORDS = 1_000_000, 250_000
FULL_ROUNDS, QUICK_ROUNDS = 5, 3
ENGINE = "engine"


class Side(NamedTuple):
    """One side of a comparison: its broker, and the options of plain PySpark's sink; None is the engine."""

    title: str
    broker: str
    plain: Mapping[str, str] | None


# In the order of a round's turns, which is reversed in the next round.
SIDES: Mapping[str, Side] = {
    "rewriting": Side("plain PySpark, reWriteBatchedInserts", "odradek", REWRITING),
    "plain": Side("plain PySpark", "odradek", NONE),
    ENGINE: Side("pipeline", "odradek", None),
    "kafka": Side("pipeline on Apache Kafka", "kafka", None),
}


class PipelineRow(NamedTuple):
    """The engine on Odradek beside `other`: its rows a second are to be at least `target` of the other's."""

    name: str
    title: str
    work: str
    other: str
    target: float | None = None


ROWS = (
    PipelineRow("files", "topic to Parquet files; plain: Spark's file sink", "files", "plain", 0.9),
    PipelineRow("files-broker", "the same on Odradek and on Apache Kafka", "files", "kafka", 1.0),
    PipelineRow(
        "topic", "topic to topic, exactly once; plain: Spark's Kafka sink, at least once", "topic", "plain", 0.7
    ),
    PipelineRow("topic-broker", "the same on Odradek and on Apache Kafka", "topic", "kafka", 1.0),
    PipelineRow("jdbc", "topic to PostgreSQL, exactly once; plain: append in foreachBatch", "jdbc", "plain", 0.8),
    PipelineRow(
        "jdbc-rewriting", "the same; plain has reWriteBatchedInserts, as the pipeline has", "jdbc", "rewriting"
    ),
    PipelineRow("jdbc-broker", "the same on Odradek and on Apache Kafka", "jdbc", "kafka", 1.0),
)
BY_NAME = {row.name: row for row in ROWS}

# work -> side -> one mapping of values for each round; None for a round in which the side failed
Results = dict[str, dict[str, list[Values | None]]]


class PipelineSession:
    """All turns of the chosen rows, on one Spark session."""

    def __init__(self, rows: Sequence[PipelineRow], records: int, rounds: int) -> None:
        self._rows = rows
        self._records = records
        self._rounds = rounds
        self.results: Results = {}
        self.failures: list[str] = []

    def run(self) -> None:
        works = dict.fromkeys(row.work for row in self._rows)
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odradek-pipelines-")))
            setup = PipelineSetup(folder, self._records, BATCHES)
            for name in dict.fromkeys(SIDES[side].broker for work in works for side in self._sides(work)):
                contestant = Contestant(stack.enter_context(brokers.BROKERS[name]()), name)
                stack.enter_context(setup.with_broker(name, contestant))
            if "jdbc" in works:
                setup.database = stack.enter_context(PostgreSQL())
            connectors = [*jars.spark_connector_jars(), *jars.postgresql_jars()]
            stack.enter_context(setup.with_spark(connectors, Path(jars.java()).resolve().parent.parent))
            for work in works:
                self._take_turns(setup, work)

    def _sides(self, work: str) -> list[str]:
        wanted = {ENGINE, *(row.other for row in self._rows if row.work == work)}
        return [name for name in SIDES if name in wanted]

    def _take_turns(self, setup: PipelineSetup, work: str) -> None:
        sides = self._sides(work)
        for side in sides:
            self._turn(setup, work, side, "warm-up")
        kept = self.results.setdefault(work, {side: [] for side in sides})
        for number in range(self._rounds):
            # A B C, then C B A: no side always follows the same one.
            for side in sides if number % 2 == 0 else reversed(sides):
                kept[side].append(self._turn(setup, work, side, f"round {number + 1}"))

    def _turn(self, setup: PipelineSetup, work: str, side: str, which: str) -> Values | None:
        _, broker, plain = SIDES[side]
        try:
            values = setup.turn(work, broker, plain)
        except Exception as error:
            self.failures.append(f"{work}, {side}, {which}: {type(error).__name__}: {error}")
            print(f"  failed: {self.failures[-1]}", file=sys.stderr, flush=True)
            return None
        print(f"  {work:6} {side:10} {which:8} {_shown(values)}", file=sys.stderr, flush=True)
        return values


def _shown(values: Values) -> str:
    return (
        f"{values['rows_per_s']:9,.0f} rows/s in {values['measured_s']:.1f} s, {values['in_sink_s']:.1f} s of it in "
        f"the sink, first batch "
        f"{values['first_batch_s']:.1f} s, all {values['wall_s']:.1f} s, load {values['load']:.1f}"
    )


class PipelineLine(NamedTuple):
    """One row: medians, and the ratio of each round in which both sides were measured."""

    row: PipelineRow
    other: float
    engine: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_met(self) -> bool | None:
        return None if self.row.target is None else self.ratio >= self.row.target


def make_lines(results: Results, rows: Sequence[PipelineRow]) -> list[PipelineLine]:
    """Return the measured rows. The ratio is the median of the rounds' ratios, because the machine's load varies."""
    lines = []
    for row in rows:
        sides = results.get(row.work, {})
        pairs = [(a, b) for a, b in zip(sides.get(row.other, ()), sides.get(ENGINE, ()), strict=False) if a and b]
        if pairs:
            other, engine = (statistics.median(pair[at]["rows_per_s"] for pair in pairs) for at in (0, 1))
            ratios = [ours["rows_per_s"] / theirs["rows_per_s"] for theirs, ours in pairs]
            lines.append(PipelineLine(row, other, engine, ratios))
    return lines


def table(lines: Sequence[PipelineLine], failures: Sequence[str]) -> str:
    """Return the report as text."""
    text = [f"  {'rows/s':16} {'other':>10} {'pipeline':>10} {'ratio':>6} {'rounds':>10} {'target':>7}  met"]
    for line in lines:
        row = line.row
        spread = f"{min(line.ratios):.2f}-{max(line.ratios):.2f}"
        target = "" if row.target is None else f">= {row.target}"
        verdict = {None: "", True: "yes", False: "NO"}[line.is_met]
        text.append(f"\n{row.name}: {row.title}")
        text.append(
            f"  {'on ' + SIDES[row.other].broker:16} {line.other:10,.0f} {line.engine:10,.0f} "
            f"{line.ratio:6.2f} {spread:>10} {target:>7}  {verdict}"
        )
    judged = [line for line in lines if line.is_met is not None]
    text += ["", f"{sum(line.is_met is True for line in judged)} of {len(judged)} targets met."]
    return "\n".join([*text, *(f"FAILED: {failure}" for failure in failures)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipelines", description="Pipelines side by side.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RECORDS:,} records a turn, {QUICK_ROUNDS} rounds")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="a row, or a prefix of several rows' names; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help=f"default: {FULL_ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all raw values to FILE")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    return parser.parse_args()


def _chosen_rows(only: Sequence[str] | None) -> list[PipelineRow]:
    if not only:
        return list(ROWS)
    if unknown := [name for name in only if not any(known.startswith(name) for known in BY_NAME)]:
        sys.exit(f"no such row: {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    exact = [name for name in only if name in BY_NAME]
    prefixes = tuple(name for name in only if name not in BY_NAME)
    return [row for row in ROWS if row.name in exact or (prefixes and row.name.startswith(prefixes))]


def main() -> int:
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{row.name:16} {row.title}" for row in ROWS))
        return 0
    rows = _chosen_rows(arguments.only)
    records = QUICK_RECORDS if arguments.quick else FULL_RECORDS
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else FULL_ROUNDS)
    before = environment()
    session = PipelineSession(rows, records, rounds)
    # A signal also stops the brokers that were started here, and prints the results so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        session.run()
    except (KeyboardInterrupt, OSError):
        # Signals may have stopped the brokers first.
        session.failures.append("the run was interrupted")
    lines = make_lines(session.results, rows)
    print(table(lines, session.failures))
    if arguments.json:
        document = {
            "environment": before,
            "records": records,
            "ratios": {line.row.name: line.ratios for line in lines},
            "rounds": session.results,
            "failures": session.failures,
        }
        arguments.json.write_text(json.dumps(document, indent=1))
    return 1 if session.failures or len(lines) < len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
