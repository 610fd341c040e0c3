"""The table of raw values: medians over the rounds, ratios, and comparisons with the targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.brokers import TITLES
from benchmarks.rows import HIDDEN_METRICS, METRICS, Row, Target

LOADER_LIMIT_CORES = 0.95

# broker name -> one mapping of metrics for each round
RoundsByBroker = Mapping[str, Sequence[Mapping[str, float]]]


class Line(NamedTuple):
    """One metric of one row. Values are medians; None for a broker without values."""

    row: Row
    metric: str
    other: float | None
    odradek: float | None
    ratio: float | None
    ratio_range: tuple[float, float] | None
    target: Target | None

    @property
    def is_met(self) -> bool | None:
        """Return None without a target or without values."""
        value = None if self.target is None else self.ratio if self.target.of_kafka else self.odradek
        return None if self.target is None or value is None else self.target.is_met(value)


def _values(rounds: Sequence[Mapping[str, float]], metric: str) -> list[float]:
    return [values[metric] for values in rounds if metric in values]


def make_lines(row: Row, results: RoundsByBroker, other: str = "kafka") -> Iterator[Line]:
    """Return the visible metrics of a row in the order of METRICS. Beside a baseline there are no targets."""
    targets = {} if other == "baseline" else {target.metric: target for target in row.targets}
    for metric in METRICS:
        others, odradek = (_values(results.get(name, ()), metric) for name in (other, "odradek"))
        if metric in HIDDEN_METRICS or not (others or odradek):
            continue
        other_median = statistics.median(others) if others else None
        odradek_median = statistics.median(odradek) if odradek else None
        ratio = odradek_median / other_median if other_median and odradek_median is not None else None
        pairs = [ours / theirs for ours, theirs in zip(odradek, others, strict=False) if theirs]
        ratio_range = (min(pairs), max(pairs)) if len(pairs) > 1 else None
        yield Line(row, metric, other_median, odradek_median, ratio, ratio_range, targets.get(metric))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _cells(line: Line) -> list[str]:
    metric = METRICS[line.metric]
    spread = "" if line.ratio_range is None else f"{line.ratio_range[0]:.2f}-{line.ratio_range[1]:.2f}"
    verdict = "" if line.target is None else {True: "yes", False: "NO", None: "?"}[line.is_met]
    return [
        f"{metric.title}, {metric.unit}",
        _number(line.other, metric.digits),
        _number(line.odradek, metric.digits),
        _number(line.ratio, 2),
        spread,
        "" if line.target is None else str(line.target),
        verdict,
    ]


def _warnings(row: Row, results: RoundsByBroker) -> Iterator[str]:
    for name, rounds in results.items():
        cores = _values(rounds, "loader_cores")
        if cores and statistics.median(cores) > LOADER_LIMIT_CORES:
            yield f"{row.name}: the loader used a whole core against {TITLES[name]} and may be the limit"


def table(
    results: Mapping[str, RoundsByBroker], rows: Sequence[Row], failures: Sequence[str], other: str = "kafka"
) -> str:
    """Return the report as text, beside Apache Kafka or another broker, `other`."""
    header = ["", TITLES[other], TITLES["odradek"], "ratio", "rounds", "target", "met"]
    body: list[list[str]] = []
    lines: list[Line] = []
    for row in rows:
        row_lines = list(make_lines(row, results.get(row.name, {}), other))
        if row_lines:
            body.append([f"{row.name}: {row.title}"])
            body += [_cells(line) for line in row_lines]
            lines += row_lines
    widths = [max(len(cells[i]) for cells in [header, *body] if len(cells) > 1) for i in range(len(header))]
    text = [_align(header, widths)]
    for cells in body:
        text.append(f"\n{cells[0]}" if len(cells) == 1 else _align(cells, widths))
    text += ["", _summary(lines)]
    for row in rows:
        text += [f"note: {warning}" for warning in _warnings(row, results.get(row.name, {}))]
    text += [f"FAILED: {failure}" for failure in failures]
    return "\n".join(text)


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  " + "  ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()


def _summary(lines: Sequence[Line]) -> str:
    judged = [line for line in lines if line.is_met is not None]
    if not judged:
        return "No target could be checked: that requires Odradek and Apache Kafka."
    misses = [line for line in judged if not line.is_met]
    missed = [f"{line.row.name}: {METRICS[line.metric].title} ({_missed_by(line)})" for line in misses]
    return f"{len(judged) - len(missed)} of {len(judged)} targets met." + (
        f" Missed: {'; '.join(missed)}." if missed else ""
    )


def _missed_by(line: Line) -> str:
    assert line.target is not None
    value = line.ratio if line.target.of_kafka else line.odradek
    return f"{value:.2f}, target {line.target}"
